"""`python -m specdec.run +drafter=NAME`: decode, measure, compare with theory, log.

Answers unknown names before anything heavy is imported, then makes the plan, and hands it over.
"""

import io
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from specdec import ranks
from specdec.commands import cli
from specdec.config import RunConfig
from specdec.errors import NotLossless
from specdec.progress import IMPORTS_S, stage
from specdec.signals import STOPS

_PATIENCE_S = 5.0  # a fault of all ranks is told by rank 0, whose end makes torchrun stop this process before


def task(values: Mapping[str, Any]) -> Mapping[str, float]:
    """Run one cell and return its metrics; raises SpecdecError for faults that the user can correct."""
    begun, config = time.monotonic(), cli.typed_config(RunConfig, values)
    size = config.target.get("tensor_parallel", 1)
    if isinstance(size, int) and size > 0:  # any other value is refused with the target's own keys
        ranks.check_count(size)

    with stage("Start", told=False, expected=IMPORTS_S):
        from specdec.plan.plan import plan

        planned, folder = plan(config), cli.output_dir()
    found: Any
    if planned.study is not None:
        from specdec.studies.base.run_study import run_study

        found = run_study(planned, folder, cli.earlier_runs())
    else:
        from specdec.session.experiment import follow_experiment, run_experiment

        if ranks.rank() > 0:
            for number in STOPS:  # rank 0 decides: a rank that ended before it would look like one that died
                signal.signal(number, signal.SIG_IGN)
            follow_experiment(planned, folder)
            return {}
        found = run_experiment(planned, folder, cli.earlier_runs(), begun)
    return metrics_of(found)


def metrics_of(found: Any) -> Mapping[str, float]:
    """Return the metrics of findings, or of a kept run; NotLossless where outputs are not the target's own."""
    if found.refuted:
        raise NotLossless(found.refuted)
    return found.metrics


def main() -> None:
    """Run the command: the console entry point. What a rank that follows prints is dropped, and its folder is a
    temporary one. Its faults are printed if it is still there a few seconds later: they are its own.
    """
    if ranks.rank() == 0:
        cli.main("config", task)
        return
    said = io.StringIO()
    try:
        with tempfile.TemporaryDirectory(prefix="specdec-rank-") as folder:
            sys.argv += [f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
            sys.argv += ["hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
            with redirect_stdout(io.StringIO()), redirect_stderr(said):
                cli.main("config", task)
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_PATIENCE_S)
        for line in said.getvalue().splitlines():
            print(f"rank {ranks.rank()}: {line}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()

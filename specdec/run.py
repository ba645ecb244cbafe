"""`python -m specdec.run +drafter=NAME`: decode, measure, compare with theory, log.

Checks what can be checked before anything heavy is imported, then hands over to `session.experiment`.
"""

from collections.abc import Mapping
from typing import Any

from specdec import ranks
from specdec.commands import cli
from specdec.commands.early import check_early
from specdec.commands.follower import as_follower, patient
from specdec.config import RunConfig, validated
from specdec.errors import NotLossless, UsageError


def task(values: Mapping[str, Any]) -> Mapping[str, float]:
    """Run one cell and return its metrics; raises SpecdecError for faults that the user can correct."""
    cli.check_drafter(values)
    config = validated(RunConfig, values, source="the configuration")
    size = config.target.get("tensor_parallel", 1)
    if isinstance(size, int) and size > 0:  # any other value is refused with the target's own keys
        ranks.check_count(size)
        if size > 1:
            _check_parallel(config, size)
    check_early(lambda: _check(config))

    if config.study is not None:
        from specdec.studies.base.run_study import run_study

        return _stood(run_study(config, cli.output_dir(), cli.earlier_runs()))

    if ranks.follows():
        from specdec.session.experiment import follow_experiment

        patient()
        follow_experiment(config, cli.output_dir())
        return {}

    from specdec.session.experiment import run_experiment

    return _stood(run_experiment(config, cli.output_dir(), cli.earlier_runs()))


def _stood(found: Any) -> Mapping[str, float]:
    """Return the metrics of findings, or of a kept run.

    Raises:
        NotLossless: outputs are not the target's own; the folder is complete.
    """
    if found.refuted:
        raise NotLossless(found.refuted)
    metrics: Mapping[str, float] = found.metrics
    return metrics


def _check(config: RunConfig) -> None:
    """Check what a run checks before it reads a model, the parts first, because they import least.

    Raises:
        UsageError: the first fault.
    """
    from specdec.plan.beside import settled
    from specdec.session.parts import checked

    if config.study is None:
        checked(settled(config))

        from specdec.plan.budget import budget_of

        budget_of(config)
    else:
        checked(config)

        from specdec.studies.base.run_study import checked_study

        checked_study(config)


def _check_parallel(config: RunConfig, size: int) -> None:
    """Refuse what several processes cannot do in step.

    Raises:
        UsageError: a part of the configuration by which times or files of one process decide what is called next.
    """
    measurement = config.measurement
    for refused, key, instead in (
        (config.study is not None, "study", "a run without a study"),
        (bool(measurement.peers), "measurement.peers", "measurement.peers=[]"),
        ((measurement.workers or 1) > 1, f"measurement.workers={measurement.workers}", "measurement.workers=null"),
    ):
        if refused:
            raise UsageError(
                f"Bad value {key}: the {size} processes of target.tensor_parallel={size} have to make the same calls, "
                f"and with this they would not; use {instead}, or target.tensor_parallel=1."
            )


def main() -> None:
    """Run the command: the console entry point."""
    if ranks.follows():
        as_follower(lambda: cli.main("config", task))
    else:
        cli.main("config", task)


if __name__ == "__main__":
    main()

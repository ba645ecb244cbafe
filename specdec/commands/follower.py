"""The command in a process that follows rank 0: quiet, and without files.

Knows Hydra's overrides; knows nothing of decoding.
"""

import io
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from specdec import ranks

_PATIENCE_S = 5.0  # a fault of all ranks is told by rank 0, whose end makes torchrun stop this process before


def as_follower(command: Callable[[], None]) -> None:
    """Run a command of `specdec.commands.cli` as a rank that follows: what it prints is dropped, and the folder that it
    would write to is a temporary one.

    Its faults are printed if this process is still there a few seconds later: then they are its own.

    Raises:
        SystemExit: the exit code of the command, if it is not 0.
    """
    said = io.StringIO()
    try:
        with tempfile.TemporaryDirectory(prefix="specdec-rank-") as folder:
            sys.argv += [f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
            sys.argv += ["hydra/job_logging=disabled", "hydra/hydra_logging=disabled"]
            with redirect_stdout(io.StringIO()), redirect_stderr(said):
                command()
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_PATIENCE_S)
        for line in said.getvalue().splitlines():
            print(f"rank {ranks.rank()}: {line}", file=sys.stderr)
        raise

"""`python -m specdec.advise +drafter=NAME`: would speculation pay, and at which gamma, without speculating once.

Checks what can be checked before anything heavy is imported, then hands over to `advice.advisor`.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.commands.early import check_early
from specdec.config import AdviseConfig, validated


def task(values: Mapping[str, Any]) -> None:
    """Give advice for one configuration; raises SpecdecError for faults that the user can correct."""
    cli.check_drafter(values)
    config = validated(AdviseConfig, values, source="the configuration")
    check_early(lambda: _check(config))

    from specdec.advice.advisor import advise

    advise(config, cli.output_dir())


def _check(config: AdviseConfig) -> None:
    """Check what advice checks before it reads a model, the parts first, because they import least.

    Raises:
        UsageError: the first fault.
    """
    from specdec.session.parts import checked

    checked(config)

    from specdec.advice.advisor import refuse_other_runs

    refuse_other_runs(config)


def main() -> None:
    """Run the command: the console entry point."""
    cli.main("advise", task)


if __name__ == "__main__":
    main()

"""`python -m specdec.advise +drafter=NAME`: would speculation pay, and at which gamma, without speculating once.

Checks what can be checked before anything heavy is imported, then hands over to `experiment.advisor`.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.config import AdviseConfig, validated


def task(values: Mapping[str, Any]) -> None:
    """Give advice for one configuration; raises SpecdecError for faults that the user can correct."""
    cli.check_drafter(values)
    config = validated(AdviseConfig, values, source="the configuration")

    from specdec.experiment.advisor import advise

    advise(config, cli.output_dir())


def main() -> None:
    """Run the command: the console entry point."""
    cli.main("advise", task)


if __name__ == "__main__":
    main()

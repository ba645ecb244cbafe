"""`python -m specdec.advise +drafter=NAME`: would speculation pay, and at which gamma, without speculating once.

Answers unknown names before anything heavy is imported, then makes the plan, and hands it over.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.config import AdviseConfig
from specdec.progress import IMPORTS_S, stage


def task(values: Mapping[str, Any]) -> None:
    """Give advice for one configuration; raises SpecdecError for faults that the user can correct."""
    config = cli.typed_config(AdviseConfig, values)

    with stage("Start", told=False, expected=IMPORTS_S):
        from specdec.advice.advisor import advise
        from specdec.plan.plan import plan

        planned = plan(config, "advise")
    advise(planned, config.advice.text, cli.output_dir())


def main() -> None:
    """Run the command: the console entry point."""
    cli.main("advise", task)


if __name__ == "__main__":
    main()

"""`python -m specdec.train +recipe=NAME`: build the corpus, train, export, log.

Checks what can be checked before anything heavy is imported, then hands over to `training.session`.
"""

from collections.abc import Mapping
from typing import Any

from specdec import cli
from specdec.errors import UsageError


def task(values: Mapping[str, Any]) -> None:
    """Train one recipe; raises SpecdecError, one sentence, for what the user can put right."""
    if "recipe" not in values:
        raise UsageError(f"No recipe: add +recipe=NAME, one of {', '.join(cli.options('recipe'))}.")

    from specdec.training.session import run

    run(values)


def main() -> None:
    """The console entry point."""
    cli.main("train", task)


if __name__ == "__main__":
    main()

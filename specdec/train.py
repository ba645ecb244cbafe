"""`python -m specdec.train +recipe=NAME` trains a whole model, `+heads=NAME` heads on a target's hidden states.

Checks what can be checked before anything heavy is imported, then hands over to `training.models` or `training.heads`.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.errors import UsageError


def task(values: Mapping[str, Any]) -> None:
    """Train one recipe; raises SpecdecError for faults that the user can correct."""
    if ("recipe" in values) == ("heads" in values):
        choices = (
            f"+recipe=NAME, one of {', '.join(cli.options('recipe'))}, or +heads=NAME, one of "
            f"{', '.join(cli.options('heads'))}."
        )
        raise UsageError(f"Two recipes: choose one, {choices}" if "recipe" in values else f"No recipe: add {choices}")
    if "recipe" in values:
        from specdec.training.models import model_training

        model_training.run(values)
    else:
        from specdec.training.heads import head_training

        head_training.run(values)


def main() -> None:
    """The console entry point."""
    cli.main("train", task)


if __name__ == "__main__":
    main()

"""`python -m specdec.train +recipe=NAME` trains a whole model, `+heads=NAME` heads on a target's hidden states,
`+eagle=NAME` a feature drafter on them, and `+parallel=NAME` a model to draft all tokens in one call.

Checks what can be checked before anything heavy is imported, then hands over to one of the folders of `training`.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.errors import UsageError

KINDS = ("recipe", "heads", "eagle", "parallel")


def task(values: Mapping[str, Any]) -> None:
    """Train one recipe; raises SpecdecError for faults that the user can correct."""
    chosen = [kind for kind in KINDS if kind in values]
    if len(chosen) != 1:
        named = [f"+{kind}=NAME, one of {', '.join(cli.options(kind))}" for kind in KINDS]
        choices = f"{', '.join(named[:-1])}, or {named[-1]}."
        raise UsageError(f"Two recipes: choose one, {choices}" if chosen else f"No recipe: add {choices}")
    if chosen == ["recipe"]:
        from specdec.training.models import model_training

        model_training.run(values)
    elif chosen == ["heads"]:
        from specdec.training.heads import head_training

        head_training.run(values)
    elif chosen == ["eagle"]:
        from specdec.training.eagle import eagle_training

        eagle_training.run(values)
    else:
        from specdec.training.parallel import parallel_training

        parallel_training.run(values)


def main() -> None:
    """The console entry point."""
    cli.main("train", task)


if __name__ == "__main__":
    main()

"""`python -m specdec.train +recipe=NAME` trains a whole model, `+heads=NAME` heads on a target's hidden states,
`+eagle=NAME` a feature drafter on them, `+parallel=NAME` a model to draft all tokens in one call, and
`+unlikelihood=NAME` a model not to fall into loops.

Checks what can be checked before anything heavy is imported, then hands over to one of the folders of `training`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec import ranks
from specdec.commands import cli
from specdec.errors import UsageError
from specdec.plan.names import check_training_files

KINDS = ("recipe", "heads", "eagle", "parallel", "unlikelihood")
_SHARED = ("heads", "eagle")  # several processes of torchrun train these together, each on its share of every batch


def task(values: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Train one recipe and return its metrics; raises SpecdecError for faults that the user can correct."""
    chosen = [kind for kind in KINDS if kind in values]
    if len(chosen) != 1:
        named = [f"+{kind}=NAME, one of {', '.join(cli.options(kind))}" for kind in KINDS]
        choices = f"{', '.join(named[:-1])}, or {named[-1]}."
        raise UsageError(f"Two recipes: choose one, {choices}" if chosen else f"No recipe: add {choices}")
    (kind,) = chosen
    if kind not in _SHARED:
        ranks.check_single(f"a training with +{kind}=")
    check_training_files(values)
    values = {**values, "output_dir": _folder(kind, values)}

    from specdec.training import loop

    outcome = loop.run(kind, values)
    return None if outcome is None else outcome.metrics  # in a process that writes no files


def _folder(kind: str, values: Mapping[str, Any]) -> str | None:
    """Return the folder of a training; None for the usual one of its recipe. A cell of a sweep gets its own, named for
    what the sweep varies: the same in every sitting, so that it goes on from its checkpoint.
    """
    folder = values["output_dir"]
    label = cli.cell_label(() if folder else (kind,))
    if not label:
        return None if folder is None else str(folder)
    named = values[kind].get("name") if isinstance(values[kind], Mapping) else None
    usual = Path("models") / ("" if kind == "recipe" else kind) / str(named or kind)
    return str(Path(folder or usual) / label)


def main() -> None:
    """The console entry point."""
    cli.main("train", task)


if __name__ == "__main__":
    main()

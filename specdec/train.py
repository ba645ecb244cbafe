"""`python -m specdec.train +recipe=pocket_target`: compose, build the corpus, train, export, log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec import cli
from specdec.errors import UsageError


def task(values: Mapping[str, Any]) -> None:
    """Train what the configuration says; see `specdec.training.loop` for what is raised."""
    if "recipe" not in values:
        names = ", ".join(cli.options("recipe"))
        raise UsageError(f"No recipe was named: add +recipe=NAME. The options are: {names}.")
    from specdec.training.session import run

    run(values)


def main() -> None:
    cli.main("train", task)


if __name__ == "__main__":
    main()

"""Parts that studies which replay texts share: checks of drafters, and strategies replayed on all cores, by prompt."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specdec.drafters import drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.progress import progress_bar
from specdec.prompts import first_turn
from specdec.replay.walk import Cell, replay_grid
from specdec.studies.base.contract import Bench
from specdec.text.streams import Stream


@dataclass(frozen=True)
class Strategy:
    """One way to draft.

    Attributes:
        keys: what tells it from the study's other strategies, a column each.
        drafter, structure: config values, as `conf/` has them.
    """

    keys: Mapping[str, Any]
    drafter: Mapping[str, Any]
    structure: Mapping[str, Any]


def check_lookup(drafter: str, study: str) -> None:
    """Refuse a drafter that looks no tokens up, since it cannot be replayed without its model.

    Raises:
        UsageError: it is such a drafter.
    """
    if not issubclass(drafters.get(drafter), Lookup):
        able = [name for name in drafters.names() if issubclass(drafters.get(name), Lookup)]
        raise UsageError(
            f"Bad value drafter={drafter}: study {study!r} replays drafters that look tokens up, not models; use one "
            f"of {', '.join(able)}."
        )


def built_lookups(
    bench: Bench, configs: Mapping[str, Mapping[str, Any]], study: str, fills: Sequence[str]
) -> dict[str, Lookup]:
    """Build the drafters of `study.drafters` before anything is decoded, which takes a while.

    Raises:
        UsageError: one of them is badly configured, looks no tokens up, or does not fill all structures of `fills`.
    """
    built: dict[str, Lookup] = {}
    for label, values in configs.items():
        place = f"study.drafters.{label}"
        try:
            drafters.config(values)
            check_lookup(values["name"], study)
            drafter = drafters.build(values, target=bench.parts.target)
        except UsageError as error:
            raise UsageError(re.sub(r"(?<![\w./-])drafter(?=[.=])", place, str(error))) from None
        lacking = [name for name in fills if name not in drafter.capabilities.fills]
        if lacking or not isinstance(drafter, Lookup):
            raise UsageError(
                f"Bad value {place}.name={values['name']}: this drafter fills no {' and no '.join(lacking)}; use "
                "another."
            )
        built[label] = drafter
    return built


def check_rows(bench: Bench, study: str) -> dict[str, Any]:
    """Return the run's structure, which has to be rows of a drafter that looks tokens up.

    Raises:
        UsageError: it is not.
    """
    values = bench.values
    check_lookup(values.drafter["name"], study)
    if values.structure["name"] != "rows":
        raise UsageError(
            f"Bad value structure={values.structure['name']}: study {study!r} is about k rows of width w; use "
            "structure=rows."
        )
    return values.structure


def replay(
    bench: Bench, strategies: Sequence[Strategy], streams: Sequence[Stream]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Replay every stream by every strategy.

    Returns:
        A table with a line for each strategy and stream: its keys, stream, prompt (the unit of the bootstrap: turns of
        a conversation share one), category, context (mean number of cached tokens over the text's positions), paths
        (rows offered, summed over rounds), and tokens to proposals as `replay_grid` has them. And the histograms of
        `replay_grid`, with keys and prompt too.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with progress_bar() as progress:
        bar = progress.add_task("replaying", total=None)

        def advance(done: int, of: int) -> None:
            progress.update(bar, completed=done, total=of)
            bench.heartbeat()

        grid = replay_grid(
            [Cell(strategy.drafter, strategy.structure) for strategy in strategies],
            streams,
            target=bench.parts.target,
            max_new_tokens=bench.parts.limit,
            workers=bench.plan.measurement.workers or cores,
            progress=advance,
        )
    keys = pd.DataFrame([dict(strategy.keys) for strategy in strategies])
    histograms = keys.merge(grid.histograms, left_index=True, right_on="cell")
    table = keys.merge(grid.table[_KEPT], left_index=True, right_on="cell")
    length = {stream.id: len(stream.prompt) for stream in streams}
    table["context"] = table["stream"].map(length) - 1 + (table["tokens"] + 1) / 2
    rows = histograms[histograms["histogram"] == "allotment"]
    paths = (rows["value"] * rows["count"]).groupby([rows["cell"], rows["stream"]]).sum().rename("paths")
    table = table.join(paths, on=["cell", "stream"])
    table["paths"] = table["paths"].fillna(0).astype(int)
    for each in (table, histograms):
        each["prompt"] = each["stream"].map(first_turn)
    return table.drop(columns="cell").reset_index(drop=True), histograms.drop(columns="cell").reset_index(drop=True)


_KEPT = ["cell", "stream", "category", "tokens", "rounds", "offered", "nodes", "accepted", "rejections", "proposals"]

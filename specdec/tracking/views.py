"""What MLflow shows first: views of an experiment with few charts, and the address of one that overlays a run's lines.

MLflow orders charts by the names of metrics. A view says which stand first: a tag of the experiment, which the menu
*Views* of its pages lists, in a form that is theirs (MLflow 3.17). Links to them stand in the note of the experiment,
at the top of all of its pages. Addresses are relative to the page, so that they hold on any port.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

NOTE = "mlflow.note.content"  # tag: what the page of a run, or of an experiment, says of it
RUN, EXPERIMENT = "__RUN_ID__", "__EXPERIMENT_ID__"  # stand in a note for the numbers that a store gives
PAGE = "#/experiments/{}/runs?workflowType=machine_learning&compareRunsMode=CHART"
HEADLINE = "specdec-headline"
ACROSS = "curve/x"  # metric: where a line's points stand, moved a little from line to line, so that none hides another
_TAG = "mlflow.sharedViewState."
_FAMILIES = {"curve": "Theory over measurement", "sweep": "Sweep"}  # of the keys that lines share
_FLAT = "attributes.end_time"  # any order but that by start puts children below their collapsed parents
_HEADLINES = (
    ("LINE", ("curve/measured", "curve/capped_geometric")),
    ("LINE", ("curve/speedup/measured", "curve/speedup/capped_geometric")),
    ("BAR", ("speedup",)),
    ("BAR", ("tokens_per_round",)),
)


def overlay(experiment: str, run: str, key: str) -> str:
    """Return the address of the charts of a run's lines that were logged under `key`: each in its own colour."""
    return f"{PAGE.format(experiment)}&orderByKey={_FLAT}&searchFilter={quote(_lines(run, key))}"


def artifact(run: str, path: str) -> str:
    """Return the address of a run's artifact."""
    return f"get-artifact?path={quote(path)}&run_uuid={run}"


def view(experiment: str, key: str) -> str:
    """Return the address of a view's charts; `key` is that of its tag, without the beginning."""
    return f"{PAGE.format(experiment)}&viewStateShareKey={key}"


def views(experiment: str, run: str, names: Collection[str], line_keys: Collection[str], time: int) -> dict[str, str]:
    """Return the tags of an experiment whose newest run, with metrics of these names, this is: its views, and the note
    that links to them.

    One view compares the headlines of all runs, with the other charts folded below; another for each key that the run's
    lines share, `curve/speedup` and the like, overlays these, side by side where they are equal.
    """
    others = ["Model metrics", *sorted({name.rpartition("/")[0] for name in names if "/" in name})]
    cards = [_card(kind, keys) for kind, keys in _HEADLINES]
    tags = {_TAG + HEADLINE: _view("Headlines of all runs", "tags.`specdec.role` = 'main'", cards, others, time)}
    note = f"[Headlines of all runs]({view(experiment, HEADLINE)})"
    for key in sorted(line_keys):
        family, _, quantity = key.partition("/")
        if family in _FAMILIES and quantity and key != ACROSS and not key.endswith((".ci_low", ".ci_high")):
            name = f"{_FAMILIES[family]}: {quantity.replace('_', ' ')}, newest {'run' if family == 'curve' else family}"
            side_by_side = {"xAxisKey": "metric", "selectedXAxisMetricKey": ACROSS, "useGlobalXaxisKey": False}
            cards = [{**_card("LINE", (key,)), **side_by_side}]
            own = f"specdec-{key.replace('/', '-')}"
            tags[_TAG + own] = _view(name, _lines(run, key), cards, [family], time)
            note += f" · [{name}]({view(experiment, own)})"
    return {**tags, NOTE: note}


def _lines(run: str, key: str) -> str:
    """Return the search that finds the children of a run with a line under `key`."""
    return f"tags.`mlflow.parentRunId` = '{run}' AND metrics.`{key}` > -1e300"


def _card(kind: str, keys: Sequence[str]) -> dict[str, Any]:
    own = {"selectedMetricKeys": keys, "lineSmoothness": 0, "useGlobalLineSmoothing": False} if kind == "LINE" else {}
    return {"uuid": f"specdec-{keys[0]}", "type": kind, "metricKey": keys[0], "metricSectionId": HEADLINE, **own}


def _view(name: str, search: str, cards: list[dict[str, Any]], folded: Sequence[str], time: int) -> str:
    shape = {"columns": 1, "cardHeight": 420} if len(cards) == 1 else {"columns": 2, "cardHeight": 320}
    sections = [{"uuid": HEADLINE, "name": name, "display": True, **shape}]
    sections += [{"uuid": f"specdec-{other}", "name": other, "display": False} for other in folded]
    state = {
        "searchFilter": search,
        "orderByKey": _FLAT,
        "compareRunCharts": cards,
        "compareRunSections": sections,
        "isAccordionReordered": True,  # keeps the order of the sections
    }
    return json.dumps({"name": name, "createdAt": time, "updatedAt": time, "state": json.dumps(state)})

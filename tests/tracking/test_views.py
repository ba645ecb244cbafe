"""What a view of an experiment shows, asked of the store with the view's own search."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from specdec.config import TrackingConfig
from specdec.tracking.store import locate, opened
from specdec.tracking.views import NOTE
from specdec.tracking.writer import tracked_run

SETTINGS = TrackingConfig(uri=None, experiment="viewed", enabled=True, required=False, run_name=None)
KEY = "curve/tokens_per_round"


@pytest.fixture(scope="module")
def viewed(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str, list[str], Path]:
    """A store's client, an experiment with two runs of three lines, the addresses of their overlays, and the store's
    folder.
    """
    folder = tmp_path_factory.mktemp("viewed")
    shutil.copy(empty_database, folder / "mlflow.db")
    links, settings = [], replace(SETTINGS, uri=f"sqlite:///{folder}/mlflow.db")
    for name in ("first", "second"):
        with tracked_run(settings, name=name, params={}, tags={}, results=folder / name) as run:
            run.metrics({"speedup": 1.3, "account/verify": 0.9, "cost/c": 0.1})
            same = {1: 1.5, 2: 2.0}
            run.curve_children(KEY, {"measured": same, "replay": same})
            run.curve_children("curve/speedup", {"measured": same, "priced": same})
            links.append(run.overlay(KEY))
    client, experiment = opened(locate(None, folder), SETTINGS.experiment)
    return client, experiment, links, folder


def test_a_view_shows_the_lines_of_the_newest_run_side_by_side_and_no_empty_one(viewed):
    client, experiment, *_ = viewed
    states = [
        json.loads(json.loads(value)["state"])
        for name, value in client.get_experiment(experiment).tags.items()
        if name.startswith("mlflow.sharedViewState.")
    ]
    (newest,) = client.search_runs([experiment], "attributes.run_name = 'second'")
    lines = {}  # by the key that a card draws
    for state in states:
        found = client.search_runs([experiment], state["searchFilter"])
        for card in state["compareRunCharts"]:
            assert card["metricSectionId"] == state["compareRunSections"][0]["uuid"]
            if "selectedXAxisMetricKey" in card:
                lines[card["metricKey"]] = found
                across = [client.get_metric_history(each.info.run_id, card["selectedXAxisMetricKey"]) for each in found]
                places = sorted((point.step, point.value) for line in across for point in line)
                assert len(set(places)) == len(places) == 2 * len(found)  # no point hides another
                assert all(step <= place < step + 0.5 for step, place in places)
    assert {key: {run.info.run_name for run in found} for key, found in lines.items()} == {
        KEY: {"measured", "replay"},
        "curve/speedup": {"measured", "priced"},
    }
    parents = {run.data.tags["mlflow.parentRunId"] for found in lines.values() for run in found}
    assert parents == {newest.info.run_id}
    (headlines,) = (state for state in states if "selectedXAxisMetricKey" not in state["compareRunCharts"][0])
    mains = client.search_runs([experiment], headlines["searchFilter"])
    assert {run.info.run_name for run in mains} == {"first", "second"}
    first, *others = headlines["compareRunSections"]
    assert first["display"] and not any(other["display"] for other in others)
    assert {"account", "cost"} <= {other["name"] for other in others}


def test_the_experiments_note_links_to_its_views_and_one_that_somebody_wrote_stays(viewed):
    client, experiment, _, folder = viewed
    tags = client.get_experiment(experiment).tags
    linked = re.findall(r"\(#/experiments/(\d+)/.*?&viewStateShareKey=([^)]*)\)", tags[NOTE])
    assert len(linked) == 3 and all(where == experiment for where, _ in linked)
    assert all(f"mlflow.sharedViewState.{key}" in tags for _, key in linked)
    noted = client.create_experiment("noted", tags={NOTE: "Mine."})
    settings = replace(SETTINGS, uri=f"sqlite:///{folder}/mlflow.db", experiment="noted")
    with tracked_run(settings, name="third", params={}, tags={}, results=folder / "third") as run:
        run.curve_children(KEY, {"measured": {1: 1.0}})
    assert client.get_experiment(noted).tags[NOTE] == "Mine."


def test_an_overlay_has_the_lines_of_its_own_run(viewed):
    client, experiment, links, _ = viewed
    for name, link in zip(("first", "second"), links, strict=True):
        (search,) = parse_qs(link.partition("?")[2])["searchFilter"]
        found = client.search_runs([experiment], search)
        assert {run.info.run_name for run in found} == {"measured", "replay"}
        (parent,) = {run.data.tags["mlflow.parentRunId"] for run in found}
        assert client.get_run(parent).info.run_name == name

"""Copies finished trainings to where the package ships them, and puts the figures of their records into the cards.

    python -m specdec.training.pocket.publish models/pocket_target models/pocket_drafter specdec/pocket
    python -m specdec.training.pocket.publish models/unlikelihood/pocket specdec/pocket
    python -m specdec.training.pocket.publish models/parallel/pocket specdec/pocket
    python -m specdec.training.pocket.publish models/heads/medusa models/heads/grounded models/eagle/pocket \
        specdec/pocket/heads
    python -m specdec.training.pocket.publish models/heads/medusa_smollm2 models/heads/grounded_smollm2 \
        models/eagle/smollm2 specdec/pocket/heads/smollm2

The second puts a target that was trained against its loops in place of the first one's.
"""

import csv
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import specdec
from specdec.errors import UsageError
from specdec.models.model_files import SMOLLM2
from specdec.training.pocket.cards import (
    heads_figures,
    kind_of,
    models_figures,
    parallel_figures,
    refreshed,
    text_sha256,
)


def publish(folders: Sequence[Path], destination: Path) -> None:
    """Copy trainings that ship together, with histories and summaries, and write their `MODEL_CARD.md`.

    Raises:
        UsageError: a training is not finished; these do not ship together, or are of different texts or targets.
    """
    trainings: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        if not (folder / "summary.json").is_file():
            raise UsageError(f"{folder} has no summary.json, so the training is not finished: run its command again.")
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        trainings[shipped_name(summary)] = (folder, summary)
    summaries = {name: summary for name, (_, summary) in trainings.items()}
    kinds = set(map(kind_of, summaries.values()))
    on_states = kinds <= {"heads", "eagle"}
    if not on_states and set(trainings) not in ({"target", "drafter"}, {"unlikelihood"}, {"parallel"}):
        raise UsageError(
            f"{', '.join(trainings)} do not ship together: give target and drafter, heads and feature drafters, or a "
            "single other training."
        )
    texts = {s["corpus_sha256"] if kinds == {"recipe"} else text_sha256(s) for s in summaries.values()}
    if len(texts) > 1 or len({summary.get("target") for summary in summaries.values()}) > 1:
        raise UsageError(f"{', '.join(trainings)} differ in their text or target: train them on one.")
    # The words of the card that ships, before a folder that it may lie in is made anew.
    below = "heads" if on_states else "parallel" if "parallel" in summaries else ""
    if on_states and all(summary["recipe"]["target"]["model"] == SMOLLM2 for summary in summaries.values()):
        below = f"heads/{SMOLLM2}"
    card = (Path(specdec.__file__).parent / "pocket" / below / "MODEL_CARD.md").read_text(encoding="utf-8")
    destination.mkdir(parents=True, exist_ok=True)
    for name, (folder, summary) in trainings.items():
        if on_states:
            shutil.copyfile(folder / f"{kind_of(summary)}.safetensors", destination / f"{name}.safetensors")
        else:
            place = destination / ("target" if name == "unlikelihood" else name)
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(folder / "model", place)
            for file in place.iterdir():
                file.chmod(0o644)  # safetensors writes for its owner alone
        if name == "target":
            for file in destination.glob("*_unlikelihood.*"):
                file.unlink()  # of an earlier target
            shutil.copyfile(folder / "corpus.json", destination / "corpus.json")
        shutil.copyfile(folder / "history.csv", destination / f"history_{name}.csv")
        shutil.copyfile(folder / "summary.json", destination / f"summary_{name}.json")
    if on_states:
        figures = heads_figures(summaries)
    elif "parallel" in summaries:
        figures = parallel_figures(summaries["parallel"])
    else:
        figures = models_figures(**records(destination))
    place = destination / "parallel" if "parallel" in summaries else destination
    (place / "MODEL_CARD.md").write_text(refreshed(card, figures), encoding="utf-8")


def shipped_name(summary: dict[str, Any]) -> str:
    """Return the name under which a training's results are shipped: of heads their own without their target's, of a
    whole model its role, otherwise that of the kind.
    """
    kind, recipe = kind_of(summary), summary["recipe"]
    own = recipe["heads"]["name"].removesuffix(f"_{SMOLLM2}") if kind == "heads" else recipe.get("role", kind)
    return str(own)


def records(folder: Path) -> dict[str, Any]:
    """Return the records of target and drafter in a folder, as `models_figures` takes them."""

    def record(name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
        return content

    models = {}
    for role in ("target", "drafter"):
        history = list(csv.DictReader((folder / f"history_{role}.csv").read_text(encoding="utf-8").splitlines()))
        monitor = {"monitor": float(history[-1]["heldout_nats_per_token"])}
        models[role] = record(f"summary_{role}.json") | monitor
    again = record("summary_unlikelihood.json") if (folder / "summary_unlikelihood.json").is_file() else None
    return {**models, "corpus": record("corpus.json"), "again": again}


if __name__ == "__main__":
    *trained, place = map(Path, sys.argv[1:])
    publish(trained, place)

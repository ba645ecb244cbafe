"""Copies finished trainings to where the package ships them, and writes the model card from their summaries.

    python -m specdec.training.models.publish models/pocket_target models/pocket_drafter specdec/pocket
    python -m specdec.training.models.publish models/unlikelihood/pocket specdec/pocket

The second puts a target that was trained against its loops in place of the first one's. Every figure of the card comes
from `summary.json` and `corpus.json`; none is typed by hand.
"""

import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specdec.errors import UsageError

UNLIKELIHOOD = "unlikelihood"  # the end of the names of history and summary
CARD = """\
# Pocket models

A target and a drafter small enough to ship, so that specdec's first command needs no download.
**They demonstrate the tool and are evidence of nothing else**: speedups and acceptance measured with them
say nothing about any real model. They continue Python source text and do not follow instructions.

| | target | drafter |
|---|---|---|
{rows}

{against_loops}Held-out text: {modules} files of the standard-library modules named in `holdout.json`, read from Python
{python}, and {topics} topics of `pydoc_data`. The shipped bfloat16 weights are scored, in float32, in windows
of {context} tokens that do not overlap; the end-of-text token is not counted. Bits per byte divide by the
UTF-8 bytes of the scored tokens and can be compared across tokenizers; nats per token cannot.

## Recipe

`python -m specdec.train +recipe=pocket_target`, then `python -m specdec.train +recipe=pocket_drafter`, on one
corpus with one tokenizer. Muon (`torch.optim.Muon`) for the matrices of the layers, AdamW for embeddings and
norms; learning rates grow linearly from zero, stay constant, and fall linearly to zero. Arithmetic: {arithmetic}.
The tokenizer is a byte-level BPE of {vocabulary:,} pieces, trained on the training part only; `<|endoftext|>`
stands between documents.

```json
{recipe}
```

`history_target.csv` and `history_drafter.csv` have one line per step. Unlike the table, their held-out columns
score a fixed slice of the held-out code, in the arithmetic of training and in shorter windows. Seconds count
training alone, all sittings together; the machine did other work at the same time.

## Hardware

{hardware}

## Corpus

{corpus_bytes:,} bytes in {corpus_files:,} files, {corpus_tokens:,} tokens; content hash
`{corpus_sha256}`.
The standard library and the language reference were read {passes} times, and a seeded random part
of the packages once. `corpus.json` has hashes per source, and counts the dropped files by reason: tests, vendored and
generated files, repetitions, and every file that repeats a held-out module (tests are found by name, copies by shared
lines).

| source | version | licence as stated by the distribution | files | bytes | sha256 |
|---|---|---|---|---|---|
{sources}

## Licence

The weights and the tokenizer come under specdec's licence (Apache-2.0). They were trained on sources under
the licences listed above: PSF-2.0 for the standard library and its reference; BSD, MIT, Apache and similar
permissive licences for the packages, whose authors hold the rights in those texts. A model of this kind can
repeat passages of its training text: its output is a demonstration, not code to reuse.
"""


AGAINST_LOOPS = """\
**The target that ships is this one after a second training, against the loops that it wrote**
(`python -m specdec.train +unlikelihood=pocket model=models/pocket_target/model`: {tokens} tokens of the same sources in
{steps} steps, {seconds} s, on {date}; sequence-level unlikelihood, Welleck et al., 1908.04319). Beside the target of
the table, in float32, on {texts} sequences of {length} tokens of the held-out modules:

| | before | after, as shipped |
|---|---|---|
| nats per token | {before[nats_per_token]:.3f} | {after[nats_per_token]:.3f} |
| greedy continuations that loop | {before[looping]:.1%} | {after[looping]:.1%} |

The first {prefix} tokens of a sequence are continued greedily to its length. A continuation loops where at least
{share:.0%} of it lies in one loop of at most {period} tokens. What was made unlikely in training are the tokens of the
third and later rounds of such loops, with this recipe:

```json
{recipe}
```

`history_unlikelihood.csv` has one line per step.

"""


def publish(target: Path, drafter: Path, destination: Path) -> None:
    """Copy both models, histories and the corpus manifest, and write `MODEL_CARD.md`.

    Raises:
        UsageError: a training is not finished, or the two read different corpora.
    """
    folders = {"target": target, "drafter": drafter}
    corpora = {finished_summary(folder)["corpus_sha256"] for folder in folders.values()}
    if len(corpora) > 1:
        raise UsageError(f"{target} and {drafter} were trained on different corpora: train both on one.")
    for role, folder in folders.items():
        copy_model(folder, destination / role)
        copy_records(folder, destination, role)
    for file in destination.glob("*_unlikelihood.*"):
        file.unlink()  # of an earlier target
    shutil.copyfile(target / "corpus.json", destination / "corpus.json")
    write_card(destination)


def publish_against_loops(folder: Path, destination: Path) -> None:
    """Put a target that was trained against its loops in place of the first one, and tell it in `MODEL_CARD.md`.

    Raises:
        UsageError: the training is not finished.
    """
    finished_summary(folder)
    copy_model(folder, destination / "target")
    copy_records(folder, destination, UNLIKELIHOOD)
    write_card(destination)


def write_card(destination: Path) -> None:
    """Write `MODEL_CARD.md` from the records that lie beside it."""
    summaries = {}
    for role in ("target", "drafter"):
        summaries[role] = json.loads((destination / f"summary_{role}.json").read_text(encoding="utf-8"))
        history = list(csv.DictReader((destination / f"history_{role}.csv").read_text(encoding="utf-8").splitlines()))
        summaries[role]["monitor"] = float(history[-1]["heldout_nats_per_token"])
    again = destination / f"summary_{UNLIKELIHOOD}.json"
    if again.is_file():
        summaries[UNLIKELIHOOD] = json.loads(again.read_text(encoding="utf-8"))
    corpus = json.loads((destination / "corpus.json").read_text(encoding="utf-8"))
    (destination / "MODEL_CARD.md").write_text(model_card(summaries, corpus), encoding="utf-8")


def copy_model(folder: Path, place: Path) -> None:
    """Copy the model of a finished training to a folder, in place of what is there."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "model", place)
    for file in place.iterdir():
        file.chmod(0o644)  # safetensors writes for its owner alone


def copy_records(folder: Path, destination: Path, name: str) -> None:
    """Copy history and summary of a training, under names that end in its own."""
    shutil.copyfile(folder / "history.csv", destination / f"history_{name}.csv")
    shutil.copyfile(folder / "summary.json", destination / f"summary_{name}.json")


def finished_summary(folder: Path) -> dict[str, Any]:
    """Read the summary of a finished training.

    Raises:
        UsageError: the training is not finished.
    """
    if not (folder / "summary.json").is_file():
        raise UsageError(f"{folder} has no summary.json, so the training is not finished: run its command again.")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def model_card(summaries: dict[str, dict[str, Any]], corpus: dict[str, Any]) -> str:
    """Return the card's text, from the `summary.json` of each training and the `corpus.json`."""
    target, drafter = summaries["target"], summaries["drafter"]
    models = {"target": target, "drafter": drafter}
    sources = corpus["sources"]
    recipe = {role: {key: s["recipe"][key] for key in ("model", "data", "optimizer")} for role, s in models.items()}
    machines = {role: hardware_line(s["hardware"]) for role, s in summaries.items()}
    return CARD.format(
        rows=table(_shown(), [target, drafter]),
        against_loops=against_loops(summaries[UNLIKELIHOOD]) if UNLIKELIHOOD in summaries else "",
        modules=sum(name.startswith("stdlib:") for name in corpus["held_out"]),
        topics=sum(name.startswith("pydoc_data:") for name in corpus["held_out"]),
        python=corpus["python"],
        context=target["recipe"]["model"]["context"],
        vocabulary=target["recipe"]["corpus"]["vocabulary"],
        arithmetic=_arithmetic(target),
        recipe=json.dumps(recipe, indent=1),
        hardware=machines["target"]
        if len(set(machines.values())) == 1
        else "\n".join(f"- {r}: {m}" for r, m in machines.items()),
        corpus_bytes=sum(s["bytes"] for s in sources.values()),
        corpus_files=sum(s["files"] for s in sources.values()),
        corpus_tokens=sum(s["tokens"] for s in sources.values()),
        corpus_sha256=corpus["sha256"],
        passes=" and ".join(f"{s['recipe']['data']['stdlib_passes']:g} ({r})" for r, s in models.items()),
        sources="\n".join(_source_line(name, source) for name, source in sources.items()),
    )


def against_loops(summary: dict[str, Any]) -> str:
    """Return what the card tells of the training against loops."""
    recipe, heldout = summary["recipe"], summary["heldout"]
    settings = recipe["unlikelihood"]
    data = {key: value for key, value in recipe["data"].items() if key != "source"}
    return AGAINST_LOOPS.format(
        tokens=f"{summary['tokens']:,}",
        steps=summary["steps"],
        seconds=f"{summary['seconds']:,.0f}",
        date=summary["date"],
        texts=summary["heldout_texts"],
        length=data["sequence_length"],
        prefix=settings["prefix_tokens"],
        share=settings["repetition_share"],
        period=settings["repetition_period"],
        before=heldout["before"],
        after=heldout["after"],
        recipe=json.dumps({UNLIKELIHOOD: settings, "data": data, "optimizer": recipe["optimizer"]}, indent=1),
    )


def table(shown: dict[str, Callable[[dict[str, Any]], str]], summaries: Iterable[dict[str, Any]]) -> str:
    """Return the lines of a Markdown table: a label, then each summary's value as the label's function shows it."""
    columns = list(summaries)
    return "\n".join(f"| {label} | " + " | ".join(map(show, columns)) + " |" for label, show in shown.items())


def figures() -> dict[str, Callable[[dict[str, Any]], str]]:
    """Return the labels, and how they are shown, that models and heads have in common."""
    return {
        "tokens trained on": lambda s: f"{s['tokens']:,}",
        "steps": lambda s: f"{s['steps']:,}",
        "training (seconds)": lambda s: f"{s['seconds']:,.0f}",
        "date": lambda s: s["date"],
    }


def _source_line(name: str, source: dict[str, Any]) -> str:
    cells = (name, source["version"], source["licence"], source["files"], f"{source['bytes']:,}")
    return "| " + " | ".join(map(str, cells)) + f" | `{source['sha256'][:16]}` |"


def _arithmetic(summary: dict[str, Any]) -> str:
    """Say in what a model was trained: as its summary has it, or in older ones as its recipe asked for."""
    used = summary.get("arithmetic", "bfloat16" if summary["recipe"]["bfloat16"] else "float32")
    return "bfloat16 autocast over float32 weights" if used == "bfloat16" else "float32"


def _shown() -> dict[str, Callable[[dict[str, Any]], str]]:
    def loss(part: str, unit: str) -> Callable[[dict[str, Any]], str]:
        return lambda s: f"{s['heldout'][part][unit]:.3f}"

    def shape(s: dict[str, Any]) -> str:
        m = s["recipe"]["model"]
        return f"{m['layers']} layers of {m['hidden_size']}, {m['heads']} heads, MLP {m['mlp_size']}"

    return {
        "architecture": lambda s: "Llama, tied embeddings",
        "shape": shape,
        "parameters": lambda s: f"{s['parameters']:,}",
        "context (tokens)": lambda s: f"{s['recipe']['model']['context']:,}",
        "files (bytes)": lambda s: f"{s['bytes']:,}",
        **figures(),
        "**held-out, nats per token**": loss("all", "nats_per_token"),
        "**held-out, bits per byte**": loss("all", "bits_per_byte"),
        "held-out code, nats per token": loss("code", "nats_per_token"),
        "held-out code, bits per byte": loss("code", "bits_per_byte"),
        "held-out reference, nats per token": loss("docs", "nats_per_token"),
        "held-out reference, bits per byte": loss("docs", "bits_per_byte"),
        "held-out code, nats per token in short windows": lambda s: (
            f"{s['monitor']:.3f} ({s['recipe']['monitor']['heldout_window']} tokens, the history's slice)"
        ),
        "scored tokens": lambda s: f"{s['heldout']['all']['tokens']:,}",
    }


def hardware_line(hardware: dict[str, Any]) -> str:
    """Describe a summary's hardware in one line."""
    return (
        f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['threads']} threads; "
        f"Python {hardware['python']}, torch {hardware['torch']}."
    )


if __name__ == "__main__":
    *trainings, place = map(Path, sys.argv[1:])
    if len(trainings) == 1:
        publish_against_loops(trainings[0], place)
    else:
        publish(trainings[0], trainings[1], place)

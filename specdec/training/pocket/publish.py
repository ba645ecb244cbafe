"""Copies finished trainings to where the package ships them, and puts the figures of their records into the cards.

    python -m specdec.training.pocket.publish models/pocket_target models/pocket_drafter specdec/pocket
    python -m specdec.training.pocket.publish models/unlikelihood/pocket specdec/pocket
    python -m specdec.training.pocket.publish models/parallel/pocket specdec/pocket
    python -m specdec.training.pocket.publish models/heads/medusa models/heads/grounded models/eagle/pocket \
        specdec/pocket/heads
    python -m specdec.training.pocket.publish models/heads/medusa_smollm2 models/heads/grounded_smollm2 \
        models/eagle/smollm2 specdec/pocket/heads/smollm2

The second puts a target that was trained against its loops in place of the first one's. The words of a card stand in
its `MODEL_CARD.md` alone; each figure or table in it stands between `<!-- NAME -->` and `<!-- / -->`, and is put there
from the records of the trainings.
"""

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import specdec
from specdec.commands.failures import told_faults
from specdec.errors import UsageError
from specdec.models.model_files import SMOLLM2
from specdec.text.writing import read_json

Summary = Mapping[str, Any]  # the content of a `summary.json`
Row = str | Callable[[Summary], str]  # of a table: what it shows of a summary, as a format of the summary's keys

AGAINST_LOOPS = """\
**The target that ships is this one after a second training, against the loops that it wrote**
(`python -m specdec.train +unlikelihood=pocket target.model=models/pocket_target/model`: {tokens:,} tokens of the same
sources in {steps} steps, {seconds:,.0f} s, on {date}; sequence-level unlikelihood, Welleck et al., 1908.04319). \
Beside the
target of the table, in float32, on {heldout_texts} sequences of {data[sequence_length]} tokens of the held-out modules:

| | before | after, as shipped |
|---|---|---|
| nats per token | {heldout[before][nats_per_token]:.3f} | {heldout[after][nats_per_token]:.3f} |
| greedy continuations in an exact loop | {heldout[before][looping]:.1%} | {heldout[after][looping]:.1%} |

The first {prefix_tokens} tokens of a sequence are continued greedily to its length. One counts where \
at least {repetition_share:.0%} of
it lies in one exact loop of at most {repetition_period} tokens; a run sees near repeats as well and flags more. \
What was made
unlikely in training are the tokens of the third and later rounds of such loops, with this recipe:

{listing}

`history_unlikelihood.csv` has one line per step."""

EFFORT = {  # rows of all tables, by label
    "tokens trained on": "{tokens:,}",
    "steps": "{steps:,}",
    "training (seconds)": "{seconds:,.0f}",
    "date": "{date}",
}

HARDWARE = "{cpu}, {cores} cores, {threads} threads; Python {python}, torch {torch}."


def publish(folders: Sequence[Path], destination: Path) -> None:
    """Copy trainings that ship together, with histories and summaries, and write their `MODEL_CARD.md`. Raises
    UsageError: a training is not finished; these do not ship together, or are of different texts or targets.
    """
    trainings: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        summary = read_json(folder / "summary.json")
        if summary is None:
            raise UsageError(f"{folder} has no summary.json, so the training is not finished: run its command again.")
        trainings[shipped_name(summary)] = (folder, summary)
    summaries = {name: summary for name, (_, summary) in trainings.items()}
    names = ", ".join(summaries)
    kinds = set(map(kind_of, summaries.values()))
    on_states = kinds <= {"heads", "eagle"}
    if not on_states and set(summaries) not in ({"target", "drafter"}, {"unlikelihood"}, {"parallel"}):
        raise UsageError(
            f"{names} do not ship together: give target and drafter, heads and feature drafters, or a single other "
            "training."
        )
    texts = {s["corpus_sha256"] if kinds == {"recipe"} else text_sha256(s) for s in summaries.values()}
    if len(texts) > 1 or len({summary.get("target") for summary in summaries.values()}) > 1:
        raise UsageError(f"{names} differ in their text or target: train them on one.")
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
        figures = models_figures(destination)
    place = destination / "parallel" if "parallel" in summaries else destination
    marked = re.compile(r"<!-- (\w+) -->(\n?).*?\n?<!-- / -->", re.DOTALL)
    card = marked.sub(lambda mark: f"<!-- {mark[1]} -->{mark[2]}{figures[mark[1]]}{mark[2]}<!-- / -->", card)
    (place / "MODEL_CARD.md").write_text(card, encoding="utf-8")


def shipped_name(summary: dict[str, Any]) -> str:
    """Return the name under which a training's results are shipped: of heads their own without their target's, of a
    whole model its role, otherwise that of the kind.
    """
    kind, recipe = kind_of(summary), summary["recipe"]
    return recipe["heads"]["name"].removesuffix(f"_{SMOLLM2}") if kind == "heads" else recipe.get("role", kind)


def models_figures(folder: Path) -> dict[str, str]:
    """Return the figures of the card of target and drafter from the records in a folder."""
    corpus: Any = read_json(folder / "corpus.json")
    models: dict[str, Any] = {role: read_json(folder / f"summary_{role}.json") for role in ("target", "drafter")}
    for role, summary in models.items():
        history = list(csv.DictReader((folder / f"history_{role}.csv").read_text(encoding="utf-8").splitlines()))
        summary["monitor"] = float(history[-1]["heldout_nats_per_token"])
    target, sources = models["target"], corpus["sources"]
    machines = {role: HARDWARE.format_map(summary["hardware"]) for role, summary in models.items()}
    against_loops = ""
    if again := read_json(folder / "summary_unlikelihood.json"):  # the target was trained again, against its loops
        machines["unlikelihood"] = HARDWARE.format_map(again["hardware"])
        words = again | again["recipe"] | again["recipe"]["unlikelihood"]
        words["listing"] = listing(chosen(again, "unlikelihood", "data", "optimizer", source=False))
        against_loops = AGAINST_LOOPS.format_map(words)
    one_machine = len(set(machines.values())) == 1

    rows = {
        "architecture": "Llama, tied embeddings",
        "shape": "{recipe[model][layers]} layers of {recipe[model][hidden_size]}, {recipe[model][heads]} heads, "
        "MLP {recipe[model][mlp_size]}",
        "parameters": "{parameters:,}",
        "context (tokens)": "{recipe[model][context]:,}",
        "files (bytes)": "{bytes:,}",
        **EFFORT,
        "**held-out, nats per token**": "{heldout[all][nats_per_token]:.3f}",
        "**held-out, bits per byte**": "{heldout[all][bits_per_byte]:.3f}",
        "held-out code, nats per token": "{heldout[code][nats_per_token]:.3f}",
        "held-out code, bits per byte": "{heldout[code][bits_per_byte]:.3f}",
        "held-out reference, nats per token": "{heldout[docs][nats_per_token]:.3f}",
        "held-out reference, bits per byte": "{heldout[docs][bits_per_byte]:.3f}",
        "held-out code, nats per token in short windows": "{monitor:.3f} ({recipe[monitor][heldout_window]} tokens, "
        "the history's slice)",
        "scored tokens": "{heldout[all][tokens]:,}",
    }
    # Older summaries say what their recipe asked for alone.
    arithmetic = target.get("arithmetic", "bfloat16" if target["recipe"]["bfloat16"] else "float32")
    return dict(
        table=table(rows, models),
        against_loops=against_loops,
        modules=str(sum(name.startswith("stdlib:") for name in corpus["held_out"])),
        topics=str(sum(name.startswith("pydoc_data:") for name in corpus["held_out"])),
        python=corpus["python"],
        context=str(target["recipe"]["model"]["context"]),
        vocabulary=f"{target['recipe']['corpus']['vocabulary']:,}",
        arithmetic="bfloat16 autocast over float32 weights" if arithmetic == "bfloat16" else "float32",
        recipe=listing({role: chosen(s, "model", "data", "optimizer") for role, s in models.items()}),
        hardware=machines["target"] if one_machine else "\n".join(f"- {r}: {m}" for r, m in machines.items()),
        **{f"corpus_{unit}": f"{sum(s[unit] for s in sources.values()):,}" for unit in ("bytes", "files", "tokens")},
        corpus_sha256=f"`{corpus['sha256']}`",
        passes=" and ".join(f"{s['recipe']['data']['stdlib_passes']:g} ({r})" for r, s in models.items()),
        sources="| source | version | licence as stated by the distribution | files | bytes | sha256 |\n"
        "|---|---|---|---|---|---|\n"
        + "\n".join(
            f"| {name} | {s['version']} | {s['licence']} | {s['files']} | {s['bytes']:,} | `{s['sha256'][:16]}` |"
            for name, s in sources.items()
        ),
    )


def heads_figures(summaries: Mapping[str, Summary]) -> dict[str, str]:
    """Return the figures of the card of heads and feature drafters, by name."""
    first = next(iter(summaries.values()))

    def accuracy(number: int, top: int) -> Callable[[Summary], str]:
        def shown(summary: Summary) -> str:
            unit = "head" if kind_of(summary) == "heads" else "step"
            names = [f"heldout/{unit}_{number}.top{top}{given}" for given in ("", "_given_earlier")]
            shares = [summary["heldout"].get(name) for name in names]
            return "" if None in shares else f"{shares[0]:.3f} ({shares[1]:.3f})"

        return shown

    deepest = max(
        s["recipe"]["heads"]["count"] if kind_of(s) == "heads" else s["recipe"]["loss"]["steps"]
        for s in summaries.values()
    )
    numbers = range(1, deepest + 1)
    rows: dict[str, Row] = {
        "parameters": "{parameters:,}",
        "file (bytes)": "{bytes:,}",
        **EFFORT,
        **{f"**head or step {k}, top-1 (given earlier)**": accuracy(k, 1) for k in numbers},
        **{f"head or step {k}, top-5 (given earlier)": accuracy(k, 5) for k in numbers},
    }
    recipes = {name: chosen(s, kind_of(s), "loss", "optimizer", "data") for name, s in summaries.items()}
    choices = [f"+{kind_of(s)}={s['recipe'][kind_of(s)]['name']}" for s in summaries.values()]
    return dict(
        target=f"`{first['target']}`",
        table=table(rows, summaries),
        reference=f"{first['heldout']['heldout/target.top1']:.3f}",
        commands="\n".join(f"- `python -m specdec.train {choice}`" for choice in choices),
        recipe=listing(recipes),
        hardware="\n".join(sorted({HARDWARE.format_map(s["hardware"]) for s in summaries.values()})),
        corpus_sha256=f"`{text_sha256(first)}`",
    )


def parallel_figures(summary: Summary) -> dict[str, str]:
    """Return the figures of the card of the model that drafts in parallel."""
    recipe = summary["recipe"]
    lines = ["| draft token | masks read | top-1 | top-1 where all earlier ones were right | nats per token |"]
    lines.append("|---|---|---|---|---|")
    for k in range(1, recipe["parallel"]["ahead"] + 1):
        names = [f"heldout/token_{k}.{name}" for name in ("top1", "top1_given_earlier", "nats_per_token")]
        cells = [f"{summary['heldout'][name]:.3f}" if name in summary["heldout"] else "-" for name in names]
        lines.append("| " + " | ".join([str(k), str(k - 1), *cells]) + " |")
    rows = {"parameters": "{parameters:,}", "files (bytes)": "{bytes:,}", **EFFORT}
    return dict(
        mask_token=str(summary["mask_token"]),
        table=table(rows, {"": summary}),
        inputs=f"{summary['inputs']:,}",
        accuracies="\n".join(lines),
        length=str(recipe["data"]["sequence_length"]),
        command=f"`python -m specdec.train +parallel={recipe['parallel']['name']}`",
        recipe=listing(chosen(summary, "parallel", "data", "optimizer", source=False)),
        hardware=HARDWARE.format_map(summary["hardware"]),
        corpus_sha256=f"`{summary['data']['corpus_sha256']}`",
    )


def text_sha256(summary: Summary) -> str:
    """Return the hash of the text that a training read: of its corpus, or of the sequences that the target wrote."""
    return str(summary["data"].get("corpus_sha256", summary["data_fingerprint"]))


def kind_of(summary: Summary) -> str:
    """Return the kind of training that a summary tells of, by its config group."""
    kinds = ("heads", "eagle", "parallel", "unlikelihood")
    return next((kind for kind in kinds if kind in summary["recipe"]), "recipe")


def table(rows: Mapping[str, Row], summaries: Mapping[str, Summary]) -> str:
    """Return a Markdown table: a label in each line, then what its row shows of each summary."""
    lines = ["| |" + "".join(f" {name} |" if name else " |" for name in summaries), "|---" * (1 + len(summaries)) + "|"]
    for label, row in rows.items():
        show: Callable[[Summary], str] = row.format_map if isinstance(row, str) else row
        lines.append(f"| {label} | {' | '.join(map(show, summaries.values()))} |")
    return "\n".join(lines)


def listing(values: Mapping[str, Any]) -> str:
    """Return values as a block of JSON."""
    return f"```json\n{json.dumps(values, indent=1)}\n```"


def chosen(summary: Summary, *keys: str, source: bool = True) -> dict[str, Any]:
    """Return some keys of a recipe; the text's source is left out where the card names it elsewhere."""
    values = {key: summary["recipe"][key] for key in keys}
    if not source:
        values["data"] = {key: value for key, value in values["data"].items() if key != "source"}
    return values


if __name__ == "__main__":
    with told_faults():
        *trained, place = map(Path, sys.argv[1:])
        publish(trained, place)

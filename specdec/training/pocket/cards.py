"""Figures of the cards of the models that the package ships, made of the records of their trainings: no figure is typed
by hand.

The words of a card stand in its `MODEL_CARD.md` alone; each figure or table in it stands between `<!-- NAME -->` and
`<!-- / -->`, and is put there by this module.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Summary = Mapping[str, Any]  # the content of a `summary.json`

AGAINST_LOOPS = """\
**The target that ships is this one after a second training, against the loops that it wrote**
(`python -m specdec.train +unlikelihood=pocket target.model=models/pocket_target/model`: {tokens} tokens of the same
sources in {steps} steps, {seconds} s, on {date}; sequence-level unlikelihood, Welleck et al., 1908.04319). Beside the
target of the table, in float32, on {texts} sequences of {length} tokens of the held-out modules:

| | before | after, as shipped |
|---|---|---|
| nats per token | {before[nats_per_token]:.3f} | {after[nats_per_token]:.3f} |
| greedy continuations in an exact loop | {before[looping]:.1%} | {after[looping]:.1%} |

The first {prefix} tokens of a sequence are continued greedily to its length. One counts where at least {share:.0%} of
it lies in one exact loop of at most {period} tokens; a run sees near repeats as well and flags more. What was made
unlikely in training are the tokens of the third and later rounds of such loops, with this recipe:

{recipe}

`history_unlikelihood.csv` has one line per step."""


def refreshed(card: str, figures: Mapping[str, str]) -> str:
    """Return a card with these figures, by name, in the places of its old ones. KeyError for a place without one."""

    def new(place: re.Match[str]) -> str:
        name, line = place.groups()
        return f"<!-- {name} -->{line}{figures[name]}{line}<!-- / -->"

    return re.sub(r"<!-- (\w+) -->(\n?).*?\n?<!-- / -->", new, card, flags=re.DOTALL)


def models_figures(target: Summary, drafter: Summary, corpus: Summary, again: Summary | None) -> dict[str, str]:
    """Return the figures of the card of target and drafter.

    Args:
        target, drafter: with the last figure of their history as `monitor`.
        corpus: their `corpus.json`.
        again: of the target's second training, against its loops, if there was one.
    """
    models = {"target": target, "drafter": drafter}
    sources = corpus["sources"]
    machines = {role: hardware_line(summary) for role, summary in models.items()}
    if again is not None:
        machines["unlikelihood"] = hardware_line(again)
    one_machine = len(set(machines.values())) == 1

    def loss(part: str, unit: str) -> Callable[[Summary], str]:
        return lambda s: f"{s['heldout'][part][unit]:.3f}"

    shapes = "{layers} layers of {hidden_size}, {heads} heads, MLP {mlp_size}"
    rows = {
        "architecture": lambda s: "Llama, tied embeddings",
        "shape": lambda s: shapes.format(**s["recipe"]["model"]),
        "parameters": lambda s: f"{s['parameters']:,}",
        "context (tokens)": lambda s: f"{s['recipe']['model']['context']:,}",
        "files (bytes)": lambda s: f"{s['bytes']:,}",
        **EFFORT,
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
    # Older summaries say what their recipe asked for alone.
    arithmetic = target.get("arithmetic", "bfloat16" if target["recipe"]["bfloat16"] else "float32")
    return dict(
        table=table(rows, models),
        against_loops="" if again is None else against_loops(again),
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


def against_loops(summary: Summary) -> str:
    """Return what the card tells of the training against loops."""
    settings, held = summary["recipe"]["unlikelihood"], summary["heldout"]
    return AGAINST_LOOPS.format(
        tokens=f"{summary['tokens']:,}",
        steps=summary["steps"],
        seconds=f"{summary['seconds']:,.0f}",
        date=summary["date"],
        texts=summary["heldout_texts"],
        length=summary["recipe"]["data"]["sequence_length"],
        prefix=settings["prefix_tokens"],
        share=settings["repetition_share"],
        period=settings["repetition_period"],
        before=held["before"],
        after=held["after"],
        recipe=listing(chosen(summary, "unlikelihood", "data", "optimizer", source=False)),
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
    rows = {
        "parameters": lambda s: f"{s['parameters']:,}",
        "file (bytes)": lambda s: f"{s['bytes']:,}",
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
        hardware="\n".join(sorted(set(map(hardware_line, summaries.values())))),
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
    rows = {"parameters": lambda s: f"{s['parameters']:,}", "files (bytes)": lambda s: f"{s['bytes']:,}", **EFFORT}
    return dict(
        mask_token=str(summary["mask_token"]),
        table=table(rows, {"": summary}),
        inputs=f"{summary['inputs']:,}",
        accuracies="\n".join(lines),
        length=str(recipe["data"]["sequence_length"]),
        command=f"`python -m specdec.train +parallel={recipe['parallel']['name']}`",
        recipe=listing(chosen(summary, "parallel", "data", "optimizer", source=False)),
        hardware=hardware_line(summary),
        corpus_sha256=f"`{summary['data']['corpus_sha256']}`",
    )


EFFORT: Mapping[str, Callable[[Summary], str]] = {
    "tokens trained on": lambda s: f"{s['tokens']:,}",
    "steps": lambda s: f"{s['steps']:,}",
    "training (seconds)": lambda s: f"{s['seconds']:,.0f}",
    "date": lambda s: s["date"],
}
"""The rows that all tables have: a label, and how a summary's value is shown."""


def text_sha256(summary: Summary) -> str:
    """Return the hash of the text that a training read: of its corpus, or of the sequences that the target wrote."""
    return str(summary["data"].get("corpus_sha256", summary["data_fingerprint"]))


def kind_of(summary: Summary) -> str:
    """Return the kind of training that a summary tells of, by its config group."""
    kinds = ("heads", "eagle", "parallel", "unlikelihood")
    return next((kind for kind in kinds if kind in summary["recipe"]), "recipe")


def table(rows: Mapping[str, Callable[[Summary], str]], summaries: Mapping[str, Summary]) -> str:
    """Return a Markdown table: a label in each line, then each summary's value as the label's function shows it."""
    lines = ["| |" + "".join(f" {name} |" if name else " |" for name in summaries), "|---" * (1 + len(summaries)) + "|"]
    for label, show in rows.items():
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


def hardware_line(summary: Summary) -> str:
    """Describe the hardware of a training in one line."""
    return "{cpu}, {cores} cores, {threads} threads; Python {python}, torch {torch}.".format(**summary["hardware"])

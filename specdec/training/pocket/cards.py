"""Cards of the models that the package ships, made of the records of their trainings: no figure is typed by hand."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Summary = Mapping[str, Any]  # the content of a `summary.json`

MODELS = """\
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

HEADS = """\
# Heads and a feature drafter of the pocket target

They draft for the pocket target from its own hidden states, so that `+drafter=medusa`, `+drafter=grounded`,
`+drafter=blockwise` and `+drafter=eagle` need no download. **They demonstrate the tool and are evidence of nothing
else**: see the [pocket models' card](../MODEL_CARD.md). They work only with the target whose weights have the hash that
they carry (`{target}`).

| | {names} |
|---|{rules}
{rows}

The held-out text is the standard-library modules that the pocket models never saw. The top-1 accuracy of head k, or of
step k of the feature drafter, counts how often its most likely token is the token k places after the next one, the
top-5 accuracy how often one of its five most likely tokens is; what reads earlier tokens is given the true ones. In
brackets is the accuracy where all earlier heads or steps were right, as in a draft whose earlier tokens are accepted.
The target's own accuracy at the next token is {reference}. Notebook 04 has both over training, and intervals.

## Recipe

{commands}

The target is frozen; the loss is against its own law at the predicted position (`loss.teacher`). `history_*.csv` has
one line per step. Seconds count training alone, all sittings together; computing the hidden states took some minutes
more.

```json
{recipe}
```

## Hardware

{hardware}

## Text

The Python sources that the pocket models' card names, as far as they were installed, in the target's tokens; content
hash `{corpus}`. The summaries have the version and licence of every source.

## Licence

As the pocket models: specdec's own (Apache-2.0), trained on sources under the licences that the summaries list.
"""

PARALLEL = """\
# The pocket drafter, drafting in parallel

The [pocket drafter](../MODEL_CARD.md), adapted to draft all tokens of a round in one call over mask tokens (PARD,
2504.18583), so that `+drafter=parallel` needs no download. **It demonstrates the tool and is evidence of nothing
else.** Shape, tokenizer and context are the pocket drafter's. The mask token is {mask_token}, in `config.json` as
`pard_token`: a byte that UTF-8 text never holds.

| | |
|---|---|
{rows}

The tokens are those of the text; with the masks behind them, {inputs:,} tokens went through the model. Training the
pocket drafter came first, and its tokens and seconds are on its own card.

| draft token | masks read | top-1 | top-1 where all earlier ones were right | nats per token |
|---|---|---|---|---|
{accuracies}

Draft token k is read behind k - 1 masks. The held-out text is the standard-library modules that the pocket models never
saw; the shipped bfloat16 weights are scored, in float32, in sequences of {length} tokens. A dash stands where the
earlier tokens never were all right.

## Recipe

`python -m specdec.train +parallel={name}`. Subtask k of the training predicts the token k + 1 places ahead from k
masks, and is kept behind a share max(keep^k, keep_least) of the positions. The loss is the mean cross entropy over all
that is kept.
`history_parallel.csv` has one line per step. Seconds count training alone, all sittings together, on a machine that did
other work at the same time.

```json
{recipe}
```

## Hardware

{hardware}

## Text

The Python sources that the pocket models' card names, as far as they were installed; content hash `{corpus}`.
`summary_parallel.json` has the version and licence of every source.

## Licence

As the pocket models: specdec's own (Apache-2.0), trained on sources under the licences that the summary lists.
"""


def models_card(target: Summary, drafter: Summary, corpus: Summary, again: Summary | None) -> str:
    """Return the card of target and drafter.

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
    return MODELS.format(
        rows=table(rows, models.values()),
        against_loops="" if again is None else against_loops(again),
        modules=sum(name.startswith("stdlib:") for name in corpus["held_out"]),
        topics=sum(name.startswith("pydoc_data:") for name in corpus["held_out"]),
        python=corpus["python"],
        context=target["recipe"]["model"]["context"],
        vocabulary=target["recipe"]["corpus"]["vocabulary"],
        arithmetic="bfloat16 autocast over float32 weights" if arithmetic == "bfloat16" else "float32",
        recipe=json.dumps({role: chosen(s, "model", "data", "optimizer") for role, s in models.items()}, indent=1),
        hardware=machines["target"] if one_machine else "\n".join(f"- {r}: {m}" for r, m in machines.items()),
        corpus_bytes=sum(s["bytes"] for s in sources.values()),
        corpus_files=sum(s["files"] for s in sources.values()),
        corpus_tokens=sum(s["tokens"] for s in sources.values()),
        corpus_sha256=corpus["sha256"],
        passes=" and ".join(f"{s['recipe']['data']['stdlib_passes']:g} ({r})" for r, s in models.items()),
        sources="\n".join(
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
        recipe=json.dumps(chosen(summary, "unlikelihood", "data", "optimizer", source=False), indent=1),
    )


def heads_card(summaries: Mapping[str, Summary]) -> str:
    """Return the card of heads and feature drafters, by name."""
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
    return HEADS.format(
        target=first["target"],
        names=" | ".join(summaries),
        rules="---|" * len(summaries),
        rows=table(rows, summaries.values()),
        reference=f"{first['heldout']['heldout/target.top1']:.3f}",
        commands="\n".join(f"- `python -m specdec.train {choice}`" for choice in choices),
        recipe=json.dumps(recipes, indent=1),
        hardware="\n".join(sorted(set(map(hardware_line, summaries.values())))),
        corpus=first["data"]["corpus_sha256"],
    )


def parallel_card(summary: Summary) -> str:
    """Return the card of the model that drafts in parallel."""
    recipe, lines = summary["recipe"], []
    for k in range(1, recipe["parallel"]["ahead"] + 1):
        names = [f"heldout/token_{k}.{name}" for name in ("top1", "top1_given_earlier", "nats_per_token")]
        cells = [f"{summary['heldout'][name]:.3f}" if name in summary["heldout"] else "-" for name in names]
        lines.append("| " + " | ".join([str(k), str(k - 1), *cells]) + " |")
    rows = {"parameters": lambda s: f"{s['parameters']:,}", "files (bytes)": lambda s: f"{s['bytes']:,}", **EFFORT}
    return PARALLEL.format(
        mask_token=summary["mask_token"],
        rows=table(rows, [summary]),
        inputs=summary["inputs"],
        accuracies="\n".join(lines),
        length=recipe["data"]["sequence_length"],
        name=recipe["parallel"]["name"],
        recipe=json.dumps(chosen(summary, "parallel", "data", "optimizer", source=False), indent=1),
        hardware=hardware_line(summary),
        corpus=summary["data"]["corpus_sha256"],
    )


EFFORT: Mapping[str, Callable[[Summary], str]] = {
    "tokens trained on": lambda s: f"{s['tokens']:,}",
    "steps": lambda s: f"{s['steps']:,}",
    "training (seconds)": lambda s: f"{s['seconds']:,.0f}",
    "date": lambda s: s["date"],
}
"""The rows that all tables have: a label, and how a summary's value is shown."""


def kind_of(summary: Summary) -> str:
    """Return the kind of training that a summary tells of, by its config group."""
    kinds = ("heads", "eagle", "parallel", "unlikelihood")
    return next((kind for kind in kinds if kind in summary["recipe"]), "recipe")


def table(rows: Mapping[str, Callable[[Summary], str]], summaries: Iterable[Summary]) -> str:
    """Return the lines of a Markdown table: a label, then each summary's value as the label's function shows it."""
    columns = list(summaries)
    return "\n".join(f"| {label} | " + " | ".join(map(show, columns)) + " |" for label, show in rows.items())


def chosen(summary: Summary, *keys: str, source: bool = True) -> dict[str, Any]:
    """Return some keys of a recipe; the text's source is left out where the card names it elsewhere."""
    values = {key: summary["recipe"][key] for key in keys}
    if not source:
        values["data"] = {key: value for key, value in values["data"].items() if key != "source"}
    return values


def hardware_line(summary: Summary) -> str:
    """Describe the hardware of a training in one line."""
    return "{cpu}, {cores} cores, {threads} threads; Python {python}, torch {torch}.".format(**summary["hardware"])

"""Ablations of heads: grounded against independent heads, each variant against the plain grounded ones, how many heads
pay, and accuracy by head of every variant as the figures of "Not So Speculative Decoding" have it (its Figures 5 to 8).
Reads `results/heads_ablation.json`, which holds counts of every prompt, so that each figure is made anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specdec.errors import UsageError

from ..comparisons import listed
from ..figures import pictures, style
from ..intervals import ANY, POSITIVE, SHARE, Columns, Interval, Range, bootstrap
from ..sections import Section, counted
from .committed import BENCHMARK, RESULTS, Measured, load_figures, paired, rate, rate_difference
from .heads_accuracy import accuracy_by_head

RESULT = RESULTS / "heads_ablation.json"
COMMAND = BENCHMARK.format("test_heads_ablation")
GROUNDED, INDEPENDENT = "grounded", "medusa"
TREE, CHAIN = "tree", "chain"
PANELS, PANELS_ABREAST = "Accuracy by head, for every variant", 3
PUBLISHED_GAIN = 0.43
PUBLISHED = f'+{PUBLISHED_GAIN} ("Not So Speculative Decoding", Vicuna-7B)'
WORDS = {  # variant -> its name in sentences
    "medusa": "independent heads",
    "layers_2": "two blocks",
    "layers_4": "four blocks",
    "width_quarter": "a quarter of the width",
    "width_four_times": "four times the width",
    **{f"offset_{layers}": f"states {counted(layers, 'layer')} below the last" for layers in (1, 2, 4, 6)},
    "embeddings": "embeddings for states",
    "attention": "attention over the drafted tokens",
    "gru": "a GRU",
    "prefix": "attention over the prefix",
    "output_own": "own output layers",
    "output_tied": "the target's output layer",
}


def load_ablation(path: Path | str = RESULT) -> list[Measured]:
    """Return the entries of a result file, by variant, structure and depth. UsageError as of `load_figures`."""
    with load_figures(path, "test_heads_ablation", "ablations", "ablations of heads") as entries:
        for entry in entries:
            prompt_counts(entry)[["asked_1", "hits_1"]]
        return entries


def ablation_sections(path: Path | str = RESULT) -> tuple[Section, ...]:
    """Return all sections; where there is no result yet, one that says what makes it."""
    try:
        entries = load_ablation(path)
    except UsageError as error:
        return (Section("Ablations", (str(error),)),)
    return grounding_section(entries), variants_section(entries), count_section(entries)


def prompt_counts(measured: Measured) -> pd.DataFrame:
    """Return by prompt the tokens and rounds and, where heads were judged, the tokens asked of each and its hits."""
    counts = measured["by_prompt"]
    columns = {"tokens": counts["tokens"], "rounds": counts["rounds"]}
    for name in ("asked", "hits"):
        columns |= {f"{name}_{head}": values for head, values in enumerate(zip(*counts.get(name, ()), strict=True), 1)}
    return pd.DataFrame(columns, index=counts["prompts"]).astype(float)


def deepest(entries: Sequence[Measured], variant: str, structure: str) -> Measured | None:
    """Return the entry of a variant with the most heads in use; None where it was not measured."""
    mine = [entry for entry in entries if entry["variant"] == variant and entry["structure"] == structure]
    return max(mine, key=lambda entry: int(entry["depth"]), default=None)


def text_of(measured: Measured) -> tuple[str, int]:
    """Return the hash ("" where nobody recorded it) and the tokens of the text that heads were trained on."""
    training = measured["training"]
    return str(training.get("text", "")), int(training["tokens"])


def plain_beside(entries: Sequence[Measured], measured: Measured) -> Measured | None:
    """Return the plain grounded heads that were trained on the same text and fill the same structure."""
    same = [entry for entry in entries if text_of(entry) == text_of(measured)]
    return deepest(same, GROUNDED, measured["structure"])


def on_one_text(entries: Sequence[Measured], *variants: str) -> list[Measured]:
    """Return the entries of the text on which most of these variants were trained, of several the latest: those of
    different texts are never set against each other.
    """

    def rank(mine: list[Measured]) -> tuple[int, int, str]:
        named = {entry["variant"] for entry in mine} & set(variants)
        return len(named), len(mine), max(str(entry.get("date", "")) for entry in mine)

    by_text: dict[tuple[str, int], list[Measured]] = {}
    for entry in entries:
        by_text.setdefault(text_of(entry), []).append(entry)
    return max(by_text.values(), key=rank, default=[])


def both(first: Measured, second: Measured) -> pd.DataFrame:
    """Return counts of two entries on the prompts that both have, the second's in `_over`. UsageError without any."""
    table = paired(prompt_counts(first), prompt_counts(second))
    if table.empty:
        names = f"{first['variant']} and {second['variant']}"
        raise UsageError(f"Ablations {names} have no prompt in common: `{COMMAND}` makes both.")
    return table


def tokens_per_round(measured: Measured) -> Interval:
    """Return the tokens per round of one entry."""
    return rate(prompt_counts(measured))


def difference(first: Measured, second: Measured, prompts: Sequence[str] | None = None) -> Interval:
    """Return tokens per round of the first less the second's, paired: on the `prompts` that both have, None for all."""
    table = both(first, second)
    return rate_difference(table if prompts is None else table[table.index.isin(prompts)])


@dataclass(frozen=True)
class Steepness:
    """The accuracies of two sets of heads, which fall with the position that a head predicts."""

    # a line for each head k: `first`, `second` and `difference`, Intervals of the share of the target's own tokens that
    # were its first choice, given the true tokens before
    heads: pd.DataFrame
    first: Interval  # accuracy of the last head over that of the first head, in the first set: 1 does not fall at all
    second: Interval  # the same in the second set
    difference: Interval  # the difference between these two, paired


def steepness(first: Measured, second: Measured) -> Steepness:
    """Compare two entries with as many heads, on the same prompts."""
    table, last = both(first, second), min(int(entry["heads"]["count"]) for entry in (first, second))

    def compared(value: Callable[[Columns, str], np.ndarray], within: Range) -> dict[str, Interval]:
        def values(sums: Columns) -> dict[str, np.ndarray]:
            sides = {"first": value(sums, ""), "second": value(sums, "_over")}
            return sides | {"difference": sides["first"] - sides["second"]}

        return bootstrap(table, values, ranges={"first": within, "second": within, "difference": ANY})

    def accuracy(head: int, sums: Columns, end: str) -> np.ndarray:
        return sums[f"hits_{head}{end}"] / sums[f"asked_{head}{end}"]

    lines = [{"head": head, **compared(partial(accuracy, head), SHARE)} for head in range(1, last + 1)]
    falls = compared(lambda sums, end: accuracy(last, sums, end) / accuracy(1, sums, end), POSITIVE)
    return Steepness(pd.DataFrame(lines), **falls)


def grounding_section(entries: Sequence[Measured]) -> Section:
    """Say how many tokens per round grounded heads have beyond independent ones, how accuracy falls, and why."""
    title = "Grounded against independent heads"
    entries = on_one_text(entries, GROUNDED, INDEPENDENT)
    grounded, independent = (deepest(entries, variant, TREE) for variant in (GROUNDED, INDEPENDENT))
    if grounded is None or independent is None:
        pair = ((GROUNDED, grounded), (INDEPENDENT, independent))
        return _missing(title, *(name for name, entry in pair if not entry))
    gain = difference(grounded, independent)
    verdict = f"Grounded heads are {'better' if gain.low > 0 else 'worse'}"
    if not gain.side:
        verdict = f"Whether grounded heads are better cannot be told from these prompts; the paper found {PUBLISHED}."
    elif gain.low <= PUBLISHED_GAIN <= gain.high:
        verdict += f"; what the paper found lies within the interval: {PUBLISHED}."
    else:
        verdict += f", by {'more' if gain.low > PUBLISHED_GAIN else 'less'} than the paper found, {PUBLISHED}."
    falls = steepness(grounded, independent)
    steeper = {
        1: "Accuracy falls less steeply with position for grounded heads",
        0: "Whether accuracy falls less steeply for grounded heads cannot be told from these prompts",
        -1: "Accuracy falls more steeply with position for grounded heads",
    }[falls.difference.side]
    prompts = counted(gain.prompts, "prompt")
    text = [
        f"On the same tree of {grounded['nodes']} nodes and {prompts} grounded heads yield "
        f"{tokens_per_round(grounded):.2f} tokens per round and independent ones "
        f"{tokens_per_round(independent):.2f}: {gain:+.2f}. {verdict}",
        f"{steeper}: the last of grounded heads keeps {falls.first:.0%} of the accuracy of the first, the last of "
        f"independent ones {falls.second:.0%}.",
    ]
    counts = grounded["by_prompt"]
    unlooped = [name for name, loops in zip(counts["prompts"], counts["repetitive"], strict=True) if not loops]
    if 0 < len(unlooped) < len(counts["prompts"]):
        kept = difference(grounded, independent, prompts=unlooped)
        text.append(f"On the {counted(kept.prompts, 'prompt')} whose text does not fall into repetition: {kept:+.2f}.")
    chain, other = (deepest(entries, variant, CHAIN) for variant in (GROUNDED, INDEPENDENT))
    if chain is not None and other is not None:
        text.append(
            f"In a chain of {chain['depth']}, where first choices alone count, grounded heads yield "
            f"{tokens_per_round(chain):.2f} tokens per round, {difference(chain, other):+.2f} beyond independent ones."
        )
    blind = deepest(entries, "embeddings", TREE)
    if blind is not None:  # says where the gain comes from
        without, whole = (tokens_per_round(entry).estimate - 1 for entry in (blind, grounded))
        alone = difference(blind, independent)
        lesson = {
            1: "which is more than independent heads have: at this scale the tokens themselves say more about what "
            "follows than the target's state does",
            0: "which cannot be told from what independent heads have: at this scale the tokens themselves say about "
            "as much as the target's state does",
            -1: "which is less than independent heads have: at this scale too the target's state says more about what "
            "follows than the tokens themselves do",
        }[alone.side]
        text.append(
            "A likely reason for the difference to the paper: a state of the pocket target, of 8 layers and 320 "
            "dimensions, holds less about the tokens behind the next one than a state of a 7B model, so that reading "
            "them helps more, and its text is less predictable. Given embeddings in place of states, grounded heads "
            f"keep {without / whole:.0%} of their tokens beyond the first of each round, {lesson} ({alone:+.2f})."
        )
    setting, budget = _setting(grounded), _budget(grounded)
    text.append(f"{setting}; {budget}; intervals are 95% prompt-bootstrap intervals, paired by prompt.")
    figure = accuracy_by_head(
        {"grounded": list(falls.heads["first"]), "independent": list(falls.heads["second"])},
        title=f"Top-1 accuracy by head, along the target's own text\n{setting}",
        caption=f"{prompts}, given the true tokens before; bars: 95% prompt-bootstrap intervals. {budget}.",
        ylabel="top-1 accuracy",
    )
    columns = {"head": "head", "grounded": "first:.0%", "independent": "second:.0%", "difference": "difference:+.3f"}
    shown = listed(falls.heads, columns)
    caption = "Top-1 accuracy by head along the target's own text, given the true tokens before"
    return Section(title, tuple(text), ((caption, shown),), (("heads_by_position", figure),))


def _missing(title: str, *variants: str) -> Section:
    """Return what stands in the place of a section that lacks entries."""
    return Section(title, (f"The ablations lack {' and '.join(variants)}: `{COMMAND}` measures them.",))


def variants_section(entries: Sequence[Measured]) -> Section:
    """Set each variant against the plain grounded heads: tokens per round, and what a draft costs."""
    title = "What matters in grounded heads"
    variants: dict[str, Measured] = {}
    plains: dict[str, Measured] = {}
    for name, words in WORDS.items():
        for entry in sorted(entries, key=lambda one: str(one.get("date", ""))):  # of several texts the latest counts
            plain = plain_beside(entries, entry) if (entry["variant"], entry["structure"]) == (name, TREE) else None
            if plain is not None and name != INDEPENDENT:
                variants[words], plains[words] = entry, plain
    if not variants:
        return _missing(title, GROUNDED, "its variants")
    gains = {words: difference(entry, plains[words]) for words, entry in variants.items()}
    apart = [
        (label, "; ".join(f"{words}, {gain:+.2f}" for words, gain in gains.items() if gain.side == side))
        for label, side in (("More tokens per round than plain grounded heads", 1), ("Fewer", -1))
    ]
    level = ", ".join(words for words, gain in gains.items() if gain.low <= 0 <= gain.high)
    parts = [f"{label}: {named}." for label, named in (*apart, ("Not told apart", level)) if named]
    order = sorted(gains, key=lambda words: -gains[words].estimate)
    plain = plains[order[0]]
    with style.styled():
        figure, axes = style.new_figure(
            f"Variants of grounded heads, on one tree\n{_setting(plain)}",
            f"{counted(gains[order[0]].prompts, 'prompt')}; 95% prompt-bootstrap intervals, paired. Filled: apart from "
            f"0. {_budget(plain)}.",
            height=2.2 + 0.36 * len(gains),
        )
        ranked = [gains[words] for words in order]
        pictures.dots(axes, order, ranked, [gain.side != 0 for gain in ranked], start=0)
        axes.set_xlabel("tokens per round beyond grounded heads")
    texts = list(dict.fromkeys(text_of(plain) for plain in plains.values()))
    places = {f"{entry['decoding']['cpu']}, {entry['decoding']['threads']} threads" for entry in entries}
    lines = []
    for place, trained in enumerate(texts, 1):
        number = f", text {place}" if len(texts) > 1 else ""
        mine = [words for words in order if text_of(plains[words]) == trained]
        lines.append(_line(f"plain{number}", plains[mine[0]], ""))
        lines += [_line(f"{words}{number}", variants[words], f"{gains[words]:+.2f}") for words in mine]
    caption = (
        "Variants: held-out accuracy of the first head and of the last, tokens per round, and draft time over t(1) (on "
        f"{'; '.join(sorted(places))}, in separate runs)"
    )
    text = [
        " ".join(parts),
        f"{len(gains)} variants are set against one: about one in twenty 95% intervals leaves out 0 by chance. All "
        "were trained alike and briefly, so that a variant that needs more text is at a disadvantage.",
    ]
    if len(texts) > 1:
        text.append(f"There were {len(texts)} training texts; each variant is set against plain heads of its own text.")
    return Section(title, tuple(text), ((caption, pd.DataFrame(lines)),), (("heads_variants", figure),))


def _line(name: str, measured: Measured, beyond: str) -> dict[str, Any]:
    accuracies = measured["heldout"]["top1"]
    return {
        "variant": name,
        "parameters": int(measured["training"]["parameters"]),
        "trained, s": round(float(measured["training"]["seconds"])),
        "head 1": accuracies[0],
        f"head {len(accuracies)}": accuracies[-1],
        "tokens per round": f"{tokens_per_round(measured):.2f}",
        "beyond plain": beyond,
        "draft over t(1)": measured["cost"]["cost/g"],
    }


def count_section(entries: Sequence[Measured]) -> Section:
    """Say how tokens per round grow with the number of heads in use."""
    title = "How many heads"
    trees = [entry for entry in entries if entry["variant"] == GROUNDED and entry["structure"] == TREE]
    used = on_one_text(trees, GROUNDED)  # the text with most numbers of heads
    used.sort(key=lambda entry: int(entry["depth"]))
    if len(used) < 2:
        return _missing(title, f"fewer heads than {used[0]['depth'] if used else 'all'}")
    depths = [int(entry["depth"]) for entry in used]
    rates = [tokens_per_round(entry) for entry in used]
    steps = [difference(later, entry) for entry, later in pairwise(used)]
    adds = [str(depth) for depth, step in zip(depths[1:], steps, strict=True) if step.low > 0]
    answer = "No head after the first adds tokens that can be told from none"
    if adds:
        answer = f"Of the heads after the first, {', '.join(adds)} {'adds' if len(adds) == 1 else 'add'} tokens"
    steps_in_words = ", ".join(f"head {depth} {step:+.2f}" for depth, step in zip(depths[1:], steps, strict=True))
    with style.styled():
        figure, axes = style.new_figure(
            f"Tokens per round over the heads in use\n{_setting(used[-1])}",
            f"Grounded heads, the best tree of at most {max(entry['nodes'] for entry in used)} nodes for each depth; "
            f"{counted(rates[0].prompts, 'prompt')}; bars: 95% prompt-bootstrap intervals. {_budget(used[-1])}.",
        )
        pictures.line(axes, depths, rates, style.look(0), "grounded heads")
        axes.set(xlabel="heads in use, and depth of the tree", ylabel="tokens per round", xticks=depths)
    shown = {
        "heads in use": depths,
        "nodes": [entry["nodes"] for entry in used],
        "tokens per round": [f"{rate:.2f}" for rate in rates],
        "beyond one head fewer": ["", *(f"{step:+.2f}" for step in steps)],
        "draft over t(1)": [entry["cost"]["cost/g"] for entry in used],
    }
    text = (f"{answer}: {steps_in_words}.", "A head that a tree has no level for is not computed.")
    caption = "Of five heads trained together, the first 1 to 5 in use"
    return Section(title, text, ((caption, pd.DataFrame(shown)),), (("heads_count", figure),))


def panels_section(path: Path | str = RESULT) -> Section:
    """Draw held-out accuracy by head of every variant, with one choice and with five, and say which of their heads are
    right more often than the plain grounded ones; where there is no result yet, say what makes it.
    """
    try:
        entries = load_ablation(path)
    except UsageError as error:
        return Section(PANELS, (str(error),))
    plain = deepest(entries, GROUNDED, TREE)
    variants = {words: entry for name, words in WORDS.items() if (entry := deepest(entries, name, TREE))}
    if plain is None or not variants:
        return Section(PANELS, (f"The ablations lack {GROUNDED} or its variants: `{COMMAND}` measures them.",))
    beyond = {words: list(steepness(entry, plain).heads["difference"]) for words, entry in variants.items()}
    prompts = counted(len(plain["by_prompt"]["prompts"]), "prompt")
    told = []
    for label, side in (("Right more often", 1), ("Less often", -1)):
        named = [
            f"{words} (head{'s' * (len(heads) > 1)} {', '.join(heads)})"
            for words, differences in beyond.items()
            if (heads := [str(head) for head, difference in enumerate(differences, 1) if difference.side == side])
        ]
        told += [f"{label}: {'; '.join(named)}."] if named else []
    level = [words for words, differences in beyond.items() if not any(difference.side for difference in differences)]
    told += [f"Not told apart at any head: {', '.join(level)}."] if level else []
    text = (
        f"Top-1 accuracy along the target's own text of {prompts}, against plain grounded heads. {' '.join(told)}",
        f"{sum(map(len, beyond.values()))} heads are set against one each: about one in twenty 95% intervals leaves "
        "out 0 by chance. The panels are of held-out text, which the target did not write, without intervals.",
    )
    lines = []
    for words, measured in {"plain": plain, **variants}.items():
        line: dict[str, Any] = {"variant": words, "trained, tokens": int(measured["training"]["tokens"])}
        pairs = zip(measured["heldout"]["top1"], measured["heldout"]["top5"], strict=True)
        line |= {f"head {head}": f"{one:.3f} / {five:.3f}" for head, (one, five) in enumerate(pairs, 1)}
        if words in beyond:  # plain heads have nothing to be set against
            own = beyond[words]
            line |= {"own text, head 1": f"{own[0]:+.3f}", "own text, last head": f"{own[-1]:+.3f}"}
        lines.append(line)
    table = pd.DataFrame(lines).fillna("")
    caption = "Top-1 / top-5 accuracy on held-out text by head; top-1 beyond plain grounded heads along the own text"
    figure = _panels(
        variants,
        plain,
        title=f"Accuracy by head on held-out text\n{plain['decoding']['model']}, "
        f"{plain['training']['tokens']:,} tokens of training",
        caption="Shares of held-out text, given the true tokens before; no intervals. Filled: the right token is the "
        "first choice; open: it is among five. Grey: plain grounded heads.",
    )
    return Section(PANELS, text, ((caption, table),), (("heads_accuracy_panels", figure),))


@style.in_style
def _panels(variants: Mapping[str, Measured], plain: Measured, *, title: str, caption: str) -> Figure:
    """Draw a panel for each variant over the number of the head, all on one scale."""
    rows = -(-len(variants) // PANELS_ABREAST)
    figure, grid = style.new_panels(title, caption, 1.3 + 1.75 * rows, rows, PANELS_ABREAST, sharex=True, sharey=True)
    panels = list(grid.flat)
    for axes, (words, measured) in zip(panels, variants.items(), strict=False):
        axes.set_title(style.wrapped(words, 20), fontsize=10)
        for entry, colour, marker, dash in (plain, style.GREY, "s", style.DOTTED), (measured, style.BLUE, "o", "-"):
            for top, face in (("top1", colour), ("top5", "white")):
                values = entry["heldout"][top]
                axes.plot(range(1, len(values) + 1), values, color=colour, marker=marker, linestyle=dash, linewidth=1.6,
                          markersize=4.5, markerfacecolor=face)  # fmt: skip
    pictures.percent_axis(panels[0])  # once all is drawn: it ends the scaling of the shared axis
    heads = range(1, max(len(entry["heldout"]["top1"]) for entry in (plain, *variants.values())) + 1)
    for place, axes in enumerate(panels):
        axes.tick_params(labelsize=9)
        axes.set_xticks(list(heads))
        if place >= len(variants):
            axes.set_visible(False)
        elif place + PANELS_ABREAST >= len(variants):  # the lowest panel of its column
            axes.set_xlabel("head", fontsize=10)
            axes.tick_params(labelbottom=True)
    return figure


def _setting(measured: Measured) -> str:
    decoding = measured["decoding"]
    return f"{decoding['model']} ({decoding['dtype']}), {decoding['prompts']}, {decoding['cpu']}"


def _budget(measured: Measured) -> str:
    return f"{measured['heads']['count']} heads, {measured['training']['tokens']:,} tokens of training"

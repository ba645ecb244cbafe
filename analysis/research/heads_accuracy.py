"""First choices of grounded heads against five choices of independent ones, on the held-out texts.

Reads `results/heads_accuracy.json`, which holds counts of every text: both kinds of heads are judged at the same
positions, so that texts are resampled for both at once.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from specdec.errors import UsageError

from ..comparisons import listed
from ..intervals import SHARE, Columns, Range, bootstrap
from ..sections import Section, counted
from .committed import BENCHMARK, RESULTS, Measured, load_figures
from .heads_training import KINDS, accuracy_by_head

RESULT = RESULTS / "heads_accuracy.json"
COMMAND = BENCHMARK.format("test_heads_accuracy")
INDEPENDENT, GROUNDED = KINDS
TOPS = ("top1", "top5")
TITLE = "One choice of grounded heads against five of independent ones"
_COLUMNS = {"head": "head", "grounded, top-1": "grounded_top1:.3f", "independent, top-5": "independent_top5:.3f",
            "grounded top-1 less independent top-5": "lead:+.3f", "independent, top-1": "independent_top1:.3f",
            "grounded, top-5": "grounded_top5:.3f"}  # fmt: skip


def load_accuracy(path: Path | str = RESULT) -> dict[str, Measured]:
    """Return what a result file holds for each of `KINDS`: by text and head the positions (asked) and the hits (top1,
    top5). UsageError as of `load_figures`.
    """

    def read(entries: list[Measured]) -> dict[str, Measured]:
        by_kind = {entry["heads"]: entry for entry in entries}
        both_kinds(by_kind)
        return by_kind

    return load_figures(path, COMMAND, "accuracies", "accuracies of heads", read)


def both_kinds(by_kind: Mapping[str, Measured]) -> pd.DataFrame:
    """Return by text the positions and hits of both kinds: columns asked_K, top1_K and top5_K for each head K, suffixed
    `_medusa` and `_grounded`. Both have the same positions.
    """
    parts = []
    for kind in KINDS:
        entry = by_kind[kind]
        columns = {
            f"{name}_{head}_{kind}": values
            for name in ("asked", *TOPS)
            for head, values in enumerate(zip(*entry[name], strict=True), 1)
        }
        parts.append(pd.DataFrame(columns, index=entry["texts"]))
    table = parts[0].join(parts[1], how="inner").astype(float)
    heads = head_count(by_kind)
    same = all((table[f"asked_{k}_{INDEPENDENT}"] == table[f"asked_{k}_{GROUNDED}"]).all() for k in heads)
    if not same or table.empty:
        raise ValueError("the two kinds of heads were not judged at the same positions")
    return table


def head_count(by_kind: Mapping[str, Measured]) -> range:
    """Return the numbers of the heads that both kinds have, from 1."""
    return range(1, min(len(by_kind[kind]["asked"][0]) for kind in KINDS) + 1)


def accuracies(by_kind: Mapping[str, Measured]) -> pd.DataFrame:
    """Return a line for each head, in Intervals over texts.

    Columns: head; independent_top1, independent_top5, grounded_top1, grounded_top5: shares of the positions at which
    the right token was among the most likely 1 or 5, given the true tokens before; lead: grounded_top1 less
    independent_top5, at the same positions.
    """
    table = both_kinds(by_kind)

    def values(head: int, sums: Columns) -> Mapping[str, np.ndarray]:
        shares = {
            f"{word}_{top}": sums[f"{top}_{head}_{kind}"] / sums[f"asked_{head}_{kind}"]
            for kind, word in KINDS.items()
            for top in TOPS
        }
        return shares | {"lead": shares["grounded_top1"] - shares["independent_top5"]}

    ranges = dict.fromkeys((f"{word}_{top}" for word in KINDS.values() for top in TOPS), SHARE)
    ranges["lead"] = Range(-1.0, 1.0)
    return pd.DataFrame(
        {"head": head, **bootstrap(table, partial(values, head), ranges=ranges)} for head in head_count(by_kind)
    )


def accuracy_section(path: Path | str = RESULT) -> Section:
    """Answer whether the last grounded head is right with its first choice more often than the last independent head
    with five, as "Not So Speculative Decoding" says of head 4; where there is no result yet, say what makes it.
    """
    try:
        by_kind = load_accuracy(path)
    except UsageError as error:
        return Section(TITLE, (str(error),))
    table = accuracies(by_kind)
    entry = by_kind[GROUNDED]
    texts = counted(len(entry["texts"]), "text")
    setting = (
        f"{texts} ({entry['text']}), {int(sum(asked[0] for asked in entry['asked'])):,} positions of head 1, in pieces "
        f"of {entry['piece_tokens']} tokens, given the true tokens before"
    )
    figure = accuracy_by_head(
        {
            f"{kind}, top-{top}": list(table[f"{kind}_top{top}"])
            for kind in ("grounded", "independent")
            for top in (5, 1)
        },
        title=f"{TITLE}\npocket ({entry['dtype']}), heads of {entry['trained_tokens']:,} tokens of training",
        caption=f"{setting}. Bars: 95% text-bootstrap intervals.",
    )
    shown = listed(table, _COLUMNS)
    text = (verdict(table), f"On {setting}; intervals are 95% text-bootstrap intervals, both kinds on the same texts.")
    caption = "Accuracy by head on held-out text, given the true tokens before"
    return Section(TITLE, text, ((caption, shown),), (("one_choice_against_five", figure),))


def verdict(table: pd.DataFrame) -> str:
    """Answer the paper's claim for the last head, and say for which other heads it holds.

    table: what `accuracies` returns.
    """
    last = table.iloc[-1]
    lead, head = last["lead"], last["head"]
    said = f'As "Not So Speculative Decoding" says of head {head}, '
    pair = f"than the right token is among the five first choices of independent head {head}"
    answers = {
        1: f"{said}the first choice of grounded head {head} is right more often {pair}",
        0: f"Whether the first choice of grounded head {head} is right more often {pair}, as the paper says, cannot be "
        "told from these texts",
        -1: f"Against what the paper says, the first choice of grounded head {head} is right less often {pair}",
    }
    holds = [str(line["head"]) for line in table.iloc[:-1].to_dict("records") if line["lead"].side > 0]
    others = {
        0: "It holds for no earlier head",
        len(table) - 1: "It holds for all earlier heads too",
    }.get(len(holds), f"Of the earlier heads it holds for {', '.join(holds)}")
    return (
        f"{answers[lead.side]}: {last['grounded_top1']:.3f} against {last['independent_top5']:.3f}, a difference of "
        f"{lead:+.3f}. {others}."
    )

"""Accuracy of heads: over their training, from the history that a training leaves (`specdec.training.loop`), and first
choices of grounded heads against five choices of independent ones, on the held-out texts.

The second reads `results/heads_accuracy.json`, which holds counts of every text: both kinds of heads are judged at the
same positions, so that texts are resampled for both at once.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specdec.errors import UsageError

from ..comparisons import listed
from ..figures import pictures, style
from ..intervals import SHARE, Columns, Interval, Range, bootstrap
from ..sections import Section, counted
from .committed import RESULTS, Measured, load_figures

SHIPPED = "the heads that come with specdec"
TRAIN = "python -m specdec.train +heads=NAME"
FLAT_END = (
    "The learning rate falls to 0, so that a curve is flat at its end does not say that more text would bring nothing."
)
KINDS = {"medusa": "independent", "grounded": "grounded"}  # of heads that are set side by side
RESULT = RESULTS / "heads_accuracy.json"
TOPS = ("top1", "top5")
TITLE = "One choice of grounded heads against five of independent ones"
_COLUMNS = {"head": "head", "grounded, top-1": "grounded_top1:.3f", "independent, top-5": "independent_top5:.3f",
            "grounded top-1 less independent top-5": "lead:+.3f", "independent, top-1": "independent_top1:.3f",
            "grounded, top-5": "grounded_top5:.3f"}  # fmt: skip


def shipped_histories() -> dict[str, pd.DataFrame]:
    """Return the histories of the heads that come with specdec, by name, as `load_history` reads them."""
    folder = Path(str(files("specdec") / "pocket" / "heads"))
    return {name: load_history(folder / f"history_{name}.csv") for name in KINDS}


def load_history(path: Path | str) -> pd.DataFrame:
    """Return the steps of a history at which held-out text was scored.

    Columns: step, tokens, target and head_1, head_2, ...: top-1 accuracies; and top5_target, top5_head_1, ...: shares
    of the positions at which the right token was among the five most likely. UsageError if there is no such file, it is
    no history of heads, or it holds no score.
    """
    try:
        table = pd.read_csv(path)
        scored = table[table["heldout_head_1_top1"].notna()]
        names = {"heldout_target_top1": "target"}
        while f"heldout_head_{len(names)}_top1" in table:
            names[f"heldout_head_{len(names)}_top1"] = f"head_{len(names)}"
        names |= {f"{name.removesuffix('1')}5": f"top5_{column}" for name, column in names.items()}
        kept = scored[["step", "tokens", *names]].rename(columns=names)
    except FileNotFoundError:
        raise UsageError(f"The history {path} does not exist: `{TRAIN}` writes one.") from None
    except (KeyError, ValueError, OSError):
        raise UsageError(f"{path} is no history of heads: give the history.csv that `{TRAIN}` wrote.") from None
    if scored.empty:
        raise UsageError(f"The history {path} ends before held-out text was scored: let the training go on.")
    return kept.reset_index(drop=True)


def training_section(histories: Mapping[str, pd.DataFrame], title: str = SHIPPED) -> Section:
    """Say how the accuracy of each head, with one choice and with five, grows over training, how it falls from the
    first head to the last, and from when on one choice of the last grounded head beats five of the independent one.
    The histories, of as many heads each, are by name what `load_history` returns.
    """
    table = final_accuracies(histories)
    ends = {KINDS.get(name, name): line for name, line in table.to_dict("index").items()}
    answer = "; ".join(
        f"{kind} heads end at {line['head_1']:.3f} for head 1 and {line['head_1'] * line['kept']:.3f} for the last, "
        f"which keeps {line['kept']:.0%} of it"
        for kind, line in ends.items()
    )
    texts = [f"Of held-out tokens, {answer}."]
    if table["kept"].nunique() > 1:
        texts[0] += (
            f" Accuracy falls least steeply with position for {max(ends, key=lambda kind: ends[kind]['kept'])} heads. "
            "These are shares of held-out text, without intervals; the next part has them."
        )
    if set(KINDS) <= set(histories):
        independent, grounded = (histories[kind] for kind in KINDS)
        head = len(_heads(grounded))
        if head == len(_heads(independent)):
            pair = f"one choice of grounded head {head} is right more often than five of independent head {head}"
            since = overtakes(grounded, independent)
            when = "At no time up to the end" if since is None else f"From {since:,} tokens of training on,"
            texts.append(f"{when} {pair}.")
    columns = ["heads", "trained, tokens", "head", "top-1", "top-5", "top-1 over that of head 1", "target's own top-1"]
    by_head = []
    for kind, line in ends.items():
        for number, column in enumerate(_heads(table), 1):
            shares = line[column], line[f"top5_{column}"], line[column] / line["head_1"], line["target"]
            by_head.append((kind, int(line["tokens"]), number, *(round(share, 3) for share in shares)))
    caption = "Accuracy on held-out text at the last score, given the true tokens before"
    figure = _over_training(histories, f"Top-1 and top-5 accuracy over training\n{title}")
    tables = ((caption, pd.DataFrame(by_head, columns=columns)),)
    return Section("Accuracy over training", (*texts, FLAT_END), tables, (("heads_over_training", figure),))


def final_accuracies(histories: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the last line of each history by name, with `kept`: top-1 accuracy of the last head over the first's."""
    table = pd.DataFrame({name: history.iloc[-1] for name, history in histories.items()}).T
    heads = _heads(table)
    return table.assign(kept=table[heads[-1]] / table[heads[0]]).drop(columns="step")


def overtakes(one: pd.DataFrame, five: pd.DataFrame) -> int | None:
    """Return the tokens of training from which on, up to the end, the last head of one history is right with its first
    choice more often than that of another with five; None if it is not at the end. Both are scored at the same tokens.
    """
    last = _heads(one)[-1]
    scores = one.set_index("tokens")[last].rename("one").to_frame()
    scores = scores.join(five.set_index("tokens")[f"top5_{last}"].rename("five"), how="inner")
    behind = scores.index[scores["one"] <= scores["five"]]
    ahead = scores.index if behind.empty else scores.index[scores.index > behind[-1]]
    return None if ahead.empty else int(ahead[0])


def _heads(table: pd.DataFrame) -> list[str]:
    """Return the columns of top-1 accuracies, from the first head on."""
    return [column for column in table if column.startswith("head_")]


@style.in_style
def _over_training(histories: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Draw the accuracy of each head over training: a column of panels for each history, top-1 above top-5."""
    caption = (
        "Shares of held-out text, given the true tokens before; no intervals. Dotted: the target's own next token."
    )
    figure, panels = style.new_panels(title, caption, 7.4, 2, len(histories), sharex=True, sharey=True)
    for column, (name, history) in enumerate(histories.items()):
        panels[0][column].set_title(f"{KINDS.get(name, name)} heads", fontsize=12)
        panels[1][column].set(xlabel="million tokens")
        for axes, prefix in zip(panels[:, column], ("", "top5_"), strict=True):
            for place, head in enumerate(_heads(history)):
                colour, marker, dash, _ = style.look(place)
                axes.plot(history["tokens"] / 1e6, history[f"{prefix}{head}"], color=colour, marker=marker,
                          linestyle=dash, markersize=5, label=f"head {place + 1}")  # fmt: skip
            axes.plot(history["tokens"] / 1e6, history[f"{prefix}target"], color=style.BLACK, linestyle=":",
                      linewidth=1.6)  # fmt: skip
    pictures.percent_axis(panels[0][0])  # once all is drawn: it ends the scaling of the shared axis
    for axes, words in zip(panels[:, 0], ("top-1 accuracy", "top-5 accuracy"), strict=True):
        axes.set_ylabel(words)
    panels[0][0].legend(loc="upper left", ncols=2, fontsize=9, bbox_to_anchor=(0.0, 1.0))
    return figure


@style.in_style
def accuracy_by_head(
    lines: Mapping[str, Sequence[Interval]], *, title: str, caption: str, ylabel: str = "accuracy"
) -> Figure:
    """Draw accuracy over the number of the head, a line with intervals for each name."""
    figure, axes = style.new_figure(title, caption)
    heads = range(1, max(map(len, lines.values())) + 1)
    for place, (name, intervals) in enumerate(lines.items()):
        pictures.line(axes, heads, intervals, style.look(place), name)
    axes.set(xlabel="head k, which predicts token k + 1 after the last evaluated", ylabel=ylabel, xticks=heads)
    pictures.percent_axis(axes)
    style.legend_above(axes, 2)
    return figure


def load_accuracy(path: Path | str = RESULT) -> dict[str, Measured]:
    """Return by kind, text and head the positions (asked) and hits (top1, top5). UsageError as of `load_figures`."""
    with load_figures(path, "test_heads_accuracy", "accuracies", "accuracies of heads") as entries:
        by_kind = {entry["heads"]: entry for entry in entries}
        counts_by_head(by_kind)
    return by_kind


def counts_by_head(by_kind: Mapping[str, Measured]) -> list[pd.DataFrame]:
    """Return for each head a line by text: the positions (asked), and the hits of both kinds (grounded_top1, ...).
    ValueError if the two kinds were not judged at the same positions.
    """
    first, second = (by_kind[kind] for kind in KINDS)
    if any(first[name] != second[name] for name in ("texts", "asked")):
        raise ValueError("the two kinds of heads were not judged at the same positions")
    counts = {"asked": first["asked"]}
    counts |= {f"{word}_{top}": by_kind[kind][top] for kind, word in KINDS.items() for top in TOPS}
    by_text = {name: pd.DataFrame(rows, index=first["texts"], dtype=float) for name, rows in counts.items()}
    return [pd.DataFrame({name: rows[head] for name, rows in by_text.items()}) for head in by_text["asked"]]


def accuracies(by_kind: Mapping[str, Measured]) -> pd.DataFrame:
    """Return a line for each head, in Intervals over texts.

    Columns: head; independent_top1, independent_top5, grounded_top1, grounded_top5: shares of the positions at which
    the right token was among the most likely 1 or 5, given the true tokens before; lead: grounded_top1 less
    independent_top5, at the same positions.
    """
    names = [f"{word}_{top}" for word in KINDS.values() for top in TOPS]

    def values(sums: Columns) -> Mapping[str, np.ndarray]:
        shares = {name: sums[name] / sums["asked"] for name in names}
        return shares | {"lead": shares["grounded_top1"] - shares["independent_top5"]}

    ranges = dict.fromkeys(names, SHARE) | {"lead": Range(-1.0, 1.0)}
    tables = enumerate(counts_by_head(by_kind), 1)
    return pd.DataFrame([{"head": head, **bootstrap(table, values, ranges=ranges)} for head, table in tables])


def accuracy_section(path: Path | str = RESULT) -> Section:
    """Answer whether the last grounded head is right with its first choice more often than the last independent head
    with five, as "Not So Speculative Decoding" says of head 4; where there is no result yet, say what makes it.
    """
    try:
        by_kind = load_accuracy(path)
    except UsageError as error:
        return Section(TITLE, (str(error),))
    table = accuracies(by_kind)
    entry = by_kind["grounded"]
    texts = counted(len(entry["texts"]), "text")
    setting = (
        f"{texts} ({entry['text']}), {int(sum(asked[0] for asked in entry['asked'])):,} positions of head 1, in pieces "
        f"of {entry['piece_tokens']} tokens, given the true tokens before"
    )
    shown_tops = [(kind, top) for kind in ("grounded", "independent") for top in (5, 1)]
    figure = accuracy_by_head(
        {f"{kind}, top-{top}": list(table[f"{kind}_top{top}"]) for kind, top in shown_tops},
        title=f"{TITLE}\npocket ({entry['dtype']}), heads of {entry['trained_tokens']:,} tokens of training",
        caption=f"{setting}. Bars: 95% text-bootstrap intervals.",
    )
    shown = listed(table, _COLUMNS)
    text = (verdict(table), f"On {setting}; intervals are 95% text-bootstrap intervals, both kinds on the same texts.")
    caption = "Accuracy by head on held-out text, given the true tokens before"
    return Section(TITLE, text, ((caption, shown),), (("one_choice_against_five", figure),))


def verdict(table: pd.DataFrame) -> str:
    """Answer the paper's claim for the last head of `accuracies`, and say for which other heads it holds."""
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
    others = f"Of the earlier heads it holds for {', '.join(holds)}" if holds else "It holds for no earlier head"
    others = "It holds for all earlier heads too" if len(holds) == len(table) - 1 else others
    return (
        f"{answers[lead.side]}: {last['grounded_top1']:.3f} against {last['independent_top5']:.3f}, a difference of "
        f"{lead:+.3f}. {others}."
    )

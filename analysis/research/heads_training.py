"""Accuracy of heads over their training, from the history that a training leaves (`specdec.training.loop`)."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from specdec.errors import UsageError

from ..figures import pictures, style
from ..intervals import Interval
from ..sections import Section

SHIPPED = "the heads that come with specdec"
FLAT_END = (
    "The learning rate falls to 0, so that a curve is flat at its end does not say that more text would bring nothing."
)
KINDS = {"medusa": "independent", "grounded": "grounded"}  # of heads that are set side by side


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
        raise UsageError(
            f"The history {path} does not exist: `python -m specdec.train +heads=NAME` writes one."
        ) from None
    except (KeyError, ValueError, OSError):
        raise UsageError(
            f"{path} is no history of heads: give the history.csv that `python -m specdec.train +heads=NAME` wrote."
        ) from None
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
    words = ""
    if table["kept"].nunique() > 1:
        words = (
            f" Accuracy falls least steeply with position for {max(ends, key=lambda kind: ends[kind]['kept'])} heads. "
            "These are shares of held-out text, without intervals; the next part has them."
        )
    texts = [f"Of held-out tokens, {answer}.{words}"]
    if set(KINDS) <= set(histories):
        independent, grounded = (histories[kind] for kind in KINDS)
        head = len(_heads(grounded))
        if head == len(_heads(independent)):
            pair = f"one choice of grounded head {head} is right more often than five of independent head {head}"
            since = overtakes(grounded, independent)
            when = "At no time up to the end" if since is None else f"From {since:,} tokens of training on,"
            texts.append(f"{when} {pair}.")
    by_head = [
        {
            "heads": KINDS.get(name, name),
            "trained, tokens": int(line["tokens"]),
            "head": number,
            "top-1": round(line[head], 3),
            "top-5": round(line[f"top5_{head}"], 3),
            "top-1 over that of head 1": round(line[head] / line["head_1"], 3),
            "target's own top-1": round(line["target"], 3),
        }
        for name, line in table.to_dict("index").items()
        for number, head in enumerate(_heads(table), 1)
    ]
    caption = "Accuracy on held-out text at the last score, given the true tokens before"
    figure = _over_training(histories, f"Top-1 and top-5 accuracy over training\n{title}")
    return Section(
        "Accuracy over training",
        (*texts, FLAT_END),
        ((caption, pd.DataFrame(by_head)),),
        (("heads_over_training", figure),),
    )


def final_accuracies(histories: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a line for each name: tokens, target, head_1, ..., top5_head_1, ..., and `kept`, the top-1 accuracy of the
    last head over that of the first.
    """
    table = pd.DataFrame({name: history.iloc[-1] for name, history in histories.items()}).T
    heads = _heads(table)
    return table.assign(kept=table[heads[-1]] / table[heads[0]]).drop(columns="step")


def overtakes(one: pd.DataFrame, five: pd.DataFrame) -> int | None:
    """Return the tokens of training from which on the last head of one history is right with its first choice more
    often than the last head of another with five choices, up to the end; None where it is not at the end. Both are
    scored at the same tokens.
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
    axes.set(xlabel="head k, which predicts token k + 1 after the last evaluated", ylabel=ylabel)
    axes.set_xticks(heads)
    pictures.percent_axis(axes)
    style.legend_above(axes, 2)
    return figure

"""Accuracy of heads over their training, from the history that a training leaves (`specdec.training.resumable`)."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from specdec.errors import UsageError

from ..figures import pictures, style
from ..findings import Section

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

    Columns: step, tokens, target and head_1, head_2, ...: top-1 accuracies.

    Raises:
        UsageError: there is no such file, it is no history of heads, or it holds no score.
    """
    try:
        table = pd.read_csv(path)
        scored = table[table["heldout_head_1_top1"].notna()]
        names = {"heldout_target_top1": "target"}
        while f"heldout_head_{len(names)}_top1" in table:
            names[f"heldout_head_{len(names)}_top1"] = f"head_{len(names)}"
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
    """Say how the top-1 accuracy of each head grows over training, and how it falls from the first head to the last.

    Args:
        histories: what `load_history` returns, by name, with as many heads each.
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
    named = table.rename(columns=lambda name: name.replace("_", " ")).rename(columns={"kept": "last over first"})
    shown = named.assign(tokens=named["tokens"].astype(int)).round(3).rename_axis("heads").reset_index()
    return Section(
        "Accuracy over training",
        (f"Of held-out tokens, {answer}.{words}", FLAT_END),
        tables=(("Top-1 accuracy on held-out text at the last score, given the true tokens before", shown),),
        figures=(("heads_over_training", _over_training(histories, f"Top-1 accuracy over training\n{title}")),),
    )


def final_accuracies(histories: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a line for each name: tokens, target, head_1, ..., and `kept`, the last head's over the first's."""
    table = pd.DataFrame({name: history.iloc[-1] for name, history in histories.items()}).T
    heads = [column for column in table if column.startswith("head_")]
    return table.assign(kept=table[heads[-1]] / table[heads[0]]).drop(columns="step")


@style.in_style
def _over_training(histories: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Draw top-1 accuracy of each head over the tokens of training, a panel for each history."""
    caption = (
        "Shares of held-out text, given the true tokens before; no intervals. Dotted: the target's own next token."
    )
    figure, panels = style.new_panels(title, caption, 4.4, 1, len(histories), sharey=True)
    for axes, (name, history) in zip(panels[0], histories.items(), strict=True):
        axes.set_title(f"{KINDS.get(name, name)} heads", fontsize=12)
        for head, column in enumerate(column for column in history if column.startswith("head_")):
            colour, marker, dash, _ = style.look(head)
            axes.plot(history["tokens"] / 1e6, history[column], color=colour, marker=marker, linestyle=dash,
                      markersize=5, label=f"head {head + 1}")  # fmt: skip
        axes.plot(history["tokens"] / 1e6, history["target"], color=style.BLACK, linestyle=":", linewidth=1.6)
        axes.set(xlabel="million tokens")
        pictures.percent_axis(axes)
    panels[0][0].set_ylabel("top-1 accuracy")
    panels[0][-1].legend(loc="upper right", ncols=2, fontsize=9, bbox_to_anchor=(1.0, 0.92))
    return figure

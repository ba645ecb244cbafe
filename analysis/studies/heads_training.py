"""Accuracy of heads over their training, from the history that a training leaves (`specdec.training.resumable`)."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pandas as pd

from specdec.errors import UsageError

from ..sections import Section
from . import heads_plots

SHIPPED = "the heads that come with specdec"
FLAT_END = (
    "The learning rate falls to 0, so that a curve is flat at its end does not say that more text would bring nothing."
)
KINDS = {"medusa": "independent", "grounded": "grounded"}  # of those that are set side by side


def shipped_histories() -> dict[str, pd.DataFrame]:
    """`load_history` of the heads that come with specdec, by name."""
    folder = Path(str(files("specdec") / "pocket" / "heads"))
    return {name: load_history(folder / f"history_{name}.csv") for name in KINDS}


def load_history(path: Path | str) -> pd.DataFrame:
    """The steps of a history at which held-out text was scored.

    Columns: step, tokens, target and head_1, head_2, ...: top-1 accuracies.

    Raises:
        UsageError: no such file, or no history of heads, or one without a score.
    """
    try:
        table = pd.read_csv(path)
        scored = table[table["heldout_head_1_top1"].notna()]
        heads = sorted(int(name.split("_")[2]) for name in table if _is_top1(name))
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
    columns = {f"heldout_head_{head}_top1": f"head_{head}" for head in heads}
    kept = scored[["step", "tokens", "heldout_target_top1", *columns]]
    return kept.rename(columns={"heldout_target_top1": "target", **columns}).reset_index(drop=True)


def _is_top1(name: str) -> bool:
    return name.startswith("heldout_head_") and name.endswith("_top1")


def training_section(histories: Mapping[str, pd.DataFrame], title: str = SHIPPED) -> Section:
    """Top-1 accuracy of each head over training, and how it falls from the first head to the last at the end.

    Args:
        histories: of `load_history`, by name, with as many heads each.
    """
    table = final_accuracies(histories)
    kept = {name: values["kept"] for name, values in table.iterrows()}
    answer = "; ".join(
        f"{KINDS.get(name, name)} heads end at {_first(table, name):.3f} for head 1 and {_last(table, name):.3f} for "
        f"the last, which keeps {share:.0%} of it"
        for name, share in kept.items()
    )
    steeper = sorted(kept, key=lambda name: kept[name])
    words = ""
    if len(kept) > 1 and kept[steeper[0]] < kept[steeper[-1]]:
        words = (
            f" Accuracy falls least steeply with position for {KINDS.get(steeper[-1], steeper[-1])} heads. These are "
            "shares of held-out text, without intervals; the next part has them."
        )
    figure = heads_plots.over_training(histories, KINDS, title=f"Top-1 accuracy over training\n{title}")
    return Section(
        "Accuracy over training",
        (f"Of held-out tokens, {answer}.{words}", FLAT_END),
        tables=(("Top-1 accuracy on held-out text at the last score, given the true tokens before", _shown(table)),),
        figures=(("heads_over_training", figure),),
    )


def final_accuracies(histories: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each name: tokens, target, head_1, ..., and `kept`, the last head's accuracy over the first's."""
    table = pd.DataFrame({name: history.iloc[-1] for name, history in histories.items()}).T
    heads = [column for column in table if column.startswith("head_")]
    return table.assign(kept=table[heads[-1]] / table[heads[0]]).drop(columns="step")


def _first(table: pd.DataFrame, name: str) -> float:
    return float(table.loc[name, "head_1"])


def _last(table: pd.DataFrame, name: str) -> float:
    return _first(table, name) * float(table.loc[name, "kept"])


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    named = table.rename(columns=lambda name: name.replace("_", " ")).rename(columns={"kept": "last over first"})
    return named.assign(tokens=named["tokens"].astype(int)).round(3).rename_axis("heads").reset_index()

"""Live runs of chain, rows and tree side by side: what each accepts, and what takes it away (THEORY 8)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specdec.config import BASELINE
from specdec.errors import UsageError

from ..figures import style
from ..read.runs import Run
from ..rounds import drafted, prompt_sums, shared_work
from ..sections import Section
from ..studies.replayed import Sums, bracket
from ..studies.replayed import prompt_sums as sums_by_shape
from .run_account import account_of

CHAIN = "chain"
COMMAND = "python -m specdec.run +experiment=chain_rows_tree"
_PARTS = {"verify": "verification", "draft": "drafting", "rest": "accepting, committing and the loop"}
_COLOURS = {"verify": style.SKY, "draft": style.YELLOW, "rest": style.LIGHT}
_HATCHES = {"verify": "", "draft": "//", "rest": ".."}


@dataclass(frozen=True)
class Sides:
    """The runs, the chain first, over the prompts that all have done.

    Attributes:
        names: of shapes, with their size.
        sums: over prompts, of these shapes in order.
    """

    runs: tuple[Run, ...]
    names: tuple[str, ...]
    sums: Sums

    @property
    def tokens(self) -> np.ndarray:
        """Tokens per call, [1 + B, C]."""
        return self.sums.values["tokens"] / self.sums.values["rounds"]

    def part(self, name: str) -> np.ndarray:
        """What part of a round takes, in plain steps of the same run, [1 + B, C]: runs need not have been made in the
        same minute.
        """
        values = self.sums.values
        plain = values["plain_s"] / values["plain_tokens"]
        return values[f"{name}_s"] / values["rounds"] / plain

    @property
    def round(self) -> np.ndarray:
        return self.part("verify") + self.part("draft") + self.part("rest")

    @property
    def speedup(self) -> np.ndarray:
        return self.tokens / self.round


def sides(runs: Sequence[Run]) -> Sides:
    """UsageError unless there is a chain, another shape, and a prompt that all have done."""
    ordered = sorted(runs, key=lambda run: run.params.get("structure.name") != CHAIN)
    found = [run.params.get("structure.name", "unknown") for run in ordered]
    if len(set(found)) < len(found) or found[:1] != [CHAIN] or len(found) < 2:
        raise UsageError(
            f"A chain and other shapes are to be compared, a run of each, and not {', '.join(found) or 'nothing'}: "
            f"`{COMMAND}` makes them."
        )
    tables = [_table(run) for run in ordered]
    common = sorted(set.intersection(*(set(table.index) for table in tables)))
    if not common:
        raise UsageError(f"The runs of {', '.join(found)} have no prompt in common: `{COMMAND}` makes them anew.")
    # Numbered, so that sums keep their order.
    parts = [table.loc[common].assign(shape=place).reset_index() for place, table in enumerate(tables)]
    run = ordered[0]
    replicates, seed = int(run.params["measurement.bootstrap"]), int(run.params["seed"])
    sums = sums_by_shape(pd.concat(parts), ["shape"], list(tables[0].columns), replicates, seed)
    return Sides(tuple(ordered), tuple(_name(run) for run in ordered), sums)


def _table(run: Run) -> pd.DataFrame:
    """Sums by prompt of the run's primary arm and of its baseline."""
    rounds = shared_work(run.rounds())
    baseline = prompt_sums(rounds[rounds["method"] == BASELINE])
    gamma = drafted(rounds)["gamma"].max() if run.primary_gamma is None else run.primary_gamma
    arm = prompt_sums(drafted(rounds[rounds["gamma"] == gamma]))
    rest = arm["round_s"] - arm["draft_s"] - arm["verify_s"]
    plain = baseline.rename(columns={"round_s": "plain_s", "tokens": "plain_tokens"})[["plain_s", "plain_tokens"]]
    return arm[["tokens", "rounds", "nodes", "draft_s", "verify_s"]].assign(rest_s=rest).join(plain)


def _name(run: Run) -> str:
    params = run.params
    name = params["structure.name"]
    if name == "rows":
        return f"rows {params['structure.k']} x {params['structure.w']}"
    return f"{name} of {params['structure.gamma'] if name == CHAIN else params['structure.nodes']}"


def shape_section(runs: Sequence[Run]) -> Section:
    """The accounts of a chain, rows and a tree side by side, and which part of a round eats what they gain.

    UsageError as `sides`, or if a run lacks what an account needs.
    """
    found = sides(runs)
    answer = " ".join(_sentence(found, place) for place in range(1, len(found.runs)))
    return Section(
        "Chain, rows and tree, decoded live",
        (
            answer,
            f"{found.sums.prompts:,} prompts; differences are paired, intervals are 95% prompt-bootstrap intervals. "
            "Times of a round are in plain steps of the same run.",
        ),
        tables=(
            ("A round of each, in plain steps, and what it yields", _round_table(found)),
            ("Factors from theory to the wall clock; their product is the speedup", _factor_table(found)),
        ),
        figures=(("chain_rows_tree", figure(found)),),
    )


def _sentence(found: Sides, place: int) -> str:
    """What a shape accepts beyond the chain, and where it goes."""
    gain = found.tokens[:, [place]] / found.tokens[:, [0]] - 1
    net = found.speedup[:, [place]] / found.speedup[:, [0]] - 1
    longer = {name: (found.part(name)[0, place] - found.part(name)[0, 0]) / found.round[0, 0] for name in _PARTS}
    more = found.round[0, place] / found.round[0, 0] - 1
    listed = ", ".join(f"{_PARTS[name]} {value:+.1%}" for name, value in longer.items())
    largest = max(longer, key=longer.__getitem__)
    rows = found.names[place].startswith("rows")
    said = (
        f"{'Rows' if rows else 'The tree'}{found.names[place][4:]} {'yield' if rows else 'yields'} "
        f"{_percent(found, gain)} tokens per call against the {found.names[0]}, in rounds that take {more:+.1%} time "
        f"({listed} of the chain's round): {_percent(found, net)} tokens per second"
    )
    low, high = (float(end[0]) for end in found.sums.interval(net))
    if longer[largest] > 0 and gain[0, 0] > 0:
        if low <= 0 <= high:
            said += "; within chance, longer rounds eat what was gained"
        elif net[0, 0] < 0:
            said += "; longer rounds eat more than what was gained"
        else:
            said += f"; longer rounds eat {np.log1p(more) / np.log1p(gain[0, 0]):.0%} of what was gained"
        said += f", {_PARTS[largest]} most"
    return said + "."


def _percent(found: Sides, values: np.ndarray) -> str:
    """A relative difference with its interval."""
    low, high = (float(end[0]) for end in found.sums.interval(values))
    interval = f" [{low:+.1%}, {high:+.1%}]" if np.isfinite(low) and np.isfinite(high) else ""
    return f"{values[0, 0]:+.1%}{interval}"


def _round_table(found: Sides) -> pd.DataFrame:
    values = found.sums.values
    rows = []
    for place, name in enumerate(found.names):
        row: dict[str, object] = {"shape": name}
        row["nodes verified"] = f"{values['nodes'][0, place] / values['rounds'][0, place]:.1f}"
        row["tokens per call"] = _bounded(found, found.tokens, place)
        row |= {part: f"{found.part(part)[0, place]:.3f}" for part in _PARTS}
        row["round"] = f"{found.round[0, place]:.3f}"
        row["speedup"] = _bounded(found, found.speedup, place)
        rows.append(row)
    return pd.DataFrame(rows)


def _bounded(found: Sides, values: np.ndarray, place: int) -> str:
    low, high = found.sums.interval(values[:, [place]])
    return f"{values[0, place]:.2f}{bracket(low[0], high[0])}"


def _factor_table(found: Sides) -> pd.DataFrame:
    """A row per factor, a column per shape."""
    accounts = [account_of(run) for run in found.runs]
    names = dict.fromkeys(name for account in accounts for name in account.factors)
    rows = [
        {"factor": name}
        | {
            shape: f"{account.factors[name]:.3f}" if name in account.factors else "–"
            for shape, account in zip(found.names, accounts, strict=True)
        }
        for name in names
    ]
    speedups = {shape: f"{account.speedup:.3f}" for shape, account in zip(found.names, accounts, strict=True)}
    return pd.DataFrame([*rows, {"factor": "speedup", **speedups}])


@style.in_style
def figure(found: Sides) -> Figure:
    """Time per token of each shape by part of the round, in plain steps: 1 is plain decoding."""
    drawn, axes = style.new_figure(
        f"Where the time of a token goes\n{found.runs[0].setting}",
        f"{found.sums.prompts:,} prompts, decoded live. A round's parts over the tokens that it yields; left of 1 is "
        "faster than plain decoding.",
        height=4.0,
    )
    left = np.zeros(len(found.names))
    places = np.arange(len(found.names))[::-1]
    for name, label in _PARTS.items():
        widths = found.part(name)[0] / found.tokens[0]
        axes.barh(places, widths, left=left, height=0.55, color=_COLOURS[name], hatch=_HATCHES[name],
                  edgecolor=style.BLACK, linewidth=0.8, label=label)  # fmt: skip
        left += widths
    for place, end, tokens, speedup in zip(places, left, found.tokens[0], found.speedup[0], strict=True):
        axes.annotate(f"{tokens:.2f} tokens per call\nspeedup {speedup:.2f}", (end, place), xytext=(6, 0),
                      textcoords="offset points", va="center", fontsize=10)  # fmt: skip
    axes.axvline(1, color=style.GREY, linewidth=1.6, linestyle=(0, (1, 1.5)))
    axes.set_yticks(places, list(found.names))
    axes.set(xlabel="time per token, in plain steps", xlim=(0, max(1.05, float(left.max()) * 1.45)))
    axes.grid(axis="y", visible=False)
    style.legend_above(axes, 2)
    return drawn

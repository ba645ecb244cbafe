"""Live runs of chain, rows and tree side by side: what each accepts, and which part of a round takes it away."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specdec.errors import UsageError

from ..figures import style
from ..intervals import RELATIVE, Columns, Interval, Range, bootstrap
from ..read.runs import Run
from ..rounds import prompt_sums
from ..sections import Section
from .gap_account import cost_values
from .run_account import account_sums

CHAIN = "chain"
COMMAND = "python -m specdec.run +experiment=chain_rows_tree"
_PARTS = {  # of a round: what each is, its colour and its hatch
    "verify": ("verification", style.SKY, ""),
    "draft": ("drafting", style.YELLOW, "//"),
    "rest": ("accepting, committing and the loop", style.LIGHT, "--"),
}
_RANGES = {"tokens": Range(low=1.0), "gain": RELATIVE, "net": RELATIVE}


Shapes = dict[str, dict[str, Interval]]  # the values of each shape, by its name with its size, the chain first


def compare_shapes(runs: Sequence[Run]) -> tuple[list[Run], Shapes]:
    """Return the runs, the chain first, and of each shape over the prompts that all have done: `tokens` per call,
    `nodes` per round, the `round` and its parts (`verify`, `draft`, `rest`) in plain steps of the same run, `speedup`;
    and its tokens per call (`gain`) and speedup (`net`) over the chain's, less 1. UsageError unless there is a chain,
    another shape, and a shared prompt.
    """
    ordered = sorted(runs, key=lambda run: run.params.get("structure.name") != CHAIN)
    kinds = [run.params.get("structure.name", "unknown") for run in ordered]
    if len(set(kinds)) < len(kinds) or kinds[:1] != [CHAIN] or len(kinds) < 2:
        raise UsageError(
            f"A chain and other shapes are to be compared, a run of each, and not {', '.join(kinds) or 'nothing'}: "
            f"`{COMMAND}` makes them."
        )
    tables = []
    for run in ordered:
        shared = run.arms().shared()
        arms, baseline = shared.by_gamma(), prompt_sums(shared.plain())[["round_s", "tokens"]]
        arm = prompt_sums(arms[max(arms) if run.primary_gamma is None else run.primary_gamma])
        tables.append(arm.join(baseline.add_prefix("baseline_")))
    pairs = [table.join(tables[0].add_prefix("chain_"), how="inner") for table in tables]
    common = sorted(set.intersection(*(set(pair.index) for pair in pairs)))
    if not common:
        raise UsageError(f"The runs of {', '.join(kinds)} have no prompt in common: `{COMMAND}` makes them anew.")
    values = (bootstrap(pair.loc[common], _values, ordered[0].replicates, ranges=_RANGES) for pair in pairs)
    return ordered, dict(zip(map(_name, ordered), values, strict=True))


def _values(sums: Columns) -> dict[str, np.ndarray]:
    """Return the values of a shape from its sums and, as `chain_`, those of the chain. Times are in plain steps of the
    same run: runs need not have been made in the same minute.
    """

    def of_round(own: Columns) -> dict[str, np.ndarray]:
        costs = cost_values(own, own["baseline_round_s"] / own["baseline_tokens"])
        parts = {"verify": costs["v"], "draft": costs["g"], "rest": costs["o"]}
        tokens, time = own["tokens"] / own["rounds"], costs["v"] + costs["g"] + costs["o"]
        nodes = own["nodes"] / own["rounds"]
        return {"tokens": tokens, "nodes": nodes, **parts, "round": time, "speedup": tokens / time}

    values = of_round(sums)
    chain = of_round({name.removeprefix("chain_"): sums[name] for name in sums if name.startswith("chain_")})
    return values | {name: values[of] / chain[of] - 1 for name, of in (("gain", "tokens"), ("net", "speedup"))}


def _name(run: Run) -> str:
    params = run.params
    name = params["structure.name"]
    if name == "rows":
        return f"rows {params['structure.k']} x {params['structure.w']}"
    if name == "expansion":
        return f"expansion {params['structure.widths']}"
    return f"{name} of {params['structure.gamma'] if name == CHAIN else params['structure.nodes']}"


def shape_section(runs: Sequence[Run]) -> Section:
    """Say what each shape accepts beyond the chain and what takes it away, with the accounts side by side.
    UsageError as of `compare_shapes` and `account_sums`.
    """
    ordered, shapes = compare_shapes(runs)
    chain, *others = shapes
    answer = " ".join(_sentence(chain, shapes[chain], name, shapes[name]) for name in others)
    rounds = [
        {
            "shape": name,
            "nodes verified": f"{values['nodes'].estimate:.1f}",
            "tokens per call": f"{values['tokens']:.2f}",
            **{part: f"{values[part].estimate:.3f}" for part in (*_PARTS, "round")},
            "speedup": f"{values['speedup']:.2f}",
        }
        for name, values in shapes.items()
    ]
    accounts = {name: account_sums(run).account() for name, run in zip(shapes, ordered, strict=True)}
    # A shape may lack a factor, but the speedup stands last.
    factors = [*dict.fromkeys(name for account in accounts.values() for name in account.factors), "speedup"]
    columns = {
        shape: [f"{account.intervals[name].estimate:.3f}" if name in account.intervals else "–" for name in factors]
        for shape, account in accounts.items()
    }
    by_factor = pd.DataFrame({"factor": factors, **columns})
    prompts = shapes[chain]["tokens"].prompts
    setting = (
        f"{prompts:,} prompts; differences are paired, intervals are 95% prompt-bootstrap intervals. Times of a round "
        "are in plain steps of the same run."
    )
    tables = (
        ("A round of each, in plain steps, and what it yields", pd.DataFrame(rounds)),
        ("Factors from the capped geometric to the wall clock; their product is the speedup", by_factor),
    )
    figures = (("chain_rows_tree", figure(shapes, prompts, ordered[0].setting)),)
    return Section("Chain, rows and tree, decoded live", (answer, setting), tables, figures)


def _sentence(chain_name: str, chain: Mapping[str, Interval], name: str, values: Mapping[str, Interval]) -> str:
    """Say what a shape accepts beyond the chain, and which part of its rounds takes that away."""
    gain, net, chain_round = values["gain"], values["net"], chain["round"].estimate
    longer = {name: (values[name].estimate - chain[name].estimate) / chain_round for name in _PARTS}
    more = values["round"].estimate / chain_round - 1
    listed = ", ".join(f"{_PARTS[name][0]} {value:+z.1%}" for name, value in longer.items())
    largest = max(longer, key=longer.__getitem__)
    subject = f"{name.capitalize()} yield" if name.startswith("rows") else f"The {name} yields"
    said = (
        f"{subject} {gain:+.1%} tokens per call against the {chain_name}, in rounds that take {more:+.1%} time "
        f"({listed} of the chain's round): {net:+.1%} tokens per second"
    )
    if longer[largest] > 0 and gain.estimate > 0:
        if net.contains(0.0, slack=0.0):
            said += "; within chance, longer rounds eat what was gained"
        elif net.estimate < 0:
            said += "; longer rounds eat more than what was gained"
        else:
            said += f"; longer rounds eat {np.log1p(more) / np.log1p(gain.estimate):.0%} of what was gained"
        said += f", {_PARTS[largest][0]} most"
    return said + "."


@style.in_style
def figure(shapes: Shapes, prompts: int, setting: str) -> Figure:
    """Draw the time per token of each shape by part of the round, in plain steps: 1 is plain decoding."""
    drawn, axes = style.new_figure(
        f"Where the time of a token goes\n{setting}",
        f"{prompts:,} prompts, decoded live. A round's parts over the tokens that it yields; left of 1 is faster than "
        "plain decoding.",
        height=4.0,
    )
    estimates = pd.DataFrame(shapes).map(lambda value: value.estimate).astype(float)  # of each value (index) by shape
    left, places = np.zeros(len(shapes)), np.arange(len(shapes))[::-1]
    for name, (label, colour, hatch) in _PARTS.items():
        widths = (estimates.loc[name] / estimates.loc["tokens"]).to_numpy()
        axes.barh(places, widths, left=left, height=0.55, color=colour, hatch=hatch,
                  edgecolor=style.BLACK, linewidth=0.8, label=label)  # fmt: skip
        left += widths
    for place, end, tokens, speedup in zip(places, left, *estimates.loc[["tokens", "speedup"]].values, strict=True):
        axes.annotate(f"{tokens:.2f} tokens per call\nspeedup {speedup:.2f}", (end, place), xytext=(6, 0),
                      textcoords="offset points", va="center", fontsize=10)  # fmt: skip
    axes.axvline(1, color=style.GREY, linewidth=1.6, linestyle=(0, (1, 1.5)))
    axes.set_yticks(places, list(shapes))
    axes.set(xlabel="time per token, in plain steps", xlim=(0, max(1.05, float(left.max()) * 1.45)))
    axes.grid(axis="y", visible=False)
    style.legend_above(axes, 2)
    return drawn

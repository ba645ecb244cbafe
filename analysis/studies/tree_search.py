"""Study `tree_search`: which tree a drafter should fill, how well that was predicted, and whether a larger tree, a
chain or a dynamic tree would have done as well.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..comparisons import compare, curve, curves_of, interval, intervals, metrics_of, printed
from ..figures import pictures, style
from ..findings import About, Findings, Section, Tables, counted, register

PLAIN, CHOSEN = "plain", "chosen"
QUANTITIES = {"tokens_per_round": "tokens", "speedup": "speedup"}  # name in MLflow -> column
_ORDER = (PLAIN, CHOSEN, "tree", "chain", "dynamic")  # of a table's lines


@register("tree_search")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study but `host_times`."""
    cells, prompts = tree_search(tables["arms"], tables["live"], about.replicates, about.seed)
    accuracy = rank_accuracy(tables["accuracy"], about.replicates, about.seed)
    sections = (
        _choice(cells, counted(prompts, "prompt"), tables, about),
        _accuracy(accuracy, tables["accuracy"], about),
    )
    predicted = {what: f"predicted_{column}" for what, column in QUANTITIES.items()}
    chosen, sized = cells[cells["shape"] == CHOSEN], cells[~cells["shape"].isin([PLAIN, CHOSEN])]
    metrics = metrics_of(chosen, "tree_search/{shape}.{what}", QUANTITIES)
    metrics |= metrics_of(sized, "tree_search/{shape}.{what}.{budget}", QUANTITIES)
    metrics |= metrics_of(chosen, "tree_search/{shape}.{what}.predicted", predicted, bounds=False)
    metrics |= metrics_of(sized, "tree_search/{shape}.{what}.{budget}.predicted", predicted, bounds=False)
    metrics |= metrics_of(chosen, "tree_search/chosen.{what}", {"nodes": "nodes", "depth": "depth"}, bounds=False)
    name = "tree_search/accuracy.depth_{level}.choice_{choice}"
    metrics |= metrics_of(accuracy.assign(choice=accuracy["rank"] + 1), name, {"": "share"}, bounds=False)
    curves = curves_of(sized, "curve/tree_search/{what}.{shape}", ["shape"], "budget", QUANTITIES)
    curves |= curves_of(sized, "curve/tree_search/predicted.{what}.{shape}", ["shape"], "budget", predicted)
    curves["curve/tree_search/accuracy"] = curve(accuracy[accuracy["rank"] == 0], "level", "share")
    return Findings(sections, metrics, curves)


# Numbers --------------------------------------------------------------------------------------------


def tree_search(arms: pd.DataFrame, live: pd.DataFrame, replicates: int, seed: int) -> tuple[pd.DataFrame, int]:
    """Return a line for each arm, plain decoding among them, and the number of prompts.

    Columns: those of `arms`, with predicted_tokens and predicted_speedup; verified (mean draft nodes of a round);
    tokens (per round) and speedup (plain seconds per token over the arm's), and tokens_lead and speedup_lead, their
    paired differences to the chosen tree, or to plain decoding where that was chosen, all with _low and _high.
    """
    compared = compare(live, ["arm"], ["tokens", "rounds", "nodes", "seconds"], replicates, seed)
    arms = arms.set_index("arm").loc[compared.cells["arm"]].reset_index()
    arms = arms.rename(columns={"tokens": "predicted_tokens", "seconds": "predicted_s"})
    plain_s = float(arms.loc[arms["shape"] == PLAIN, "predicted_s"].iloc[0])
    own = CHOSEN if CHOSEN in set(arms["shape"]) else PLAIN
    per_token = compared.ratio("seconds", "tokens")
    speedup = compared.beside(per_token, arm=PLAIN) / per_token
    values = {"tokens": compared.ratio("tokens", "rounds"), "speedup": speedup}
    leads = {f"{name}_lead": each - compared.beside(each, arm=own) for name, each in values.items()}
    cells = arms.assign(
        predicted_speedup=arms["predicted_tokens"] * plain_s / arms["predicted_s"],
        verified=compared.ratio("nodes", "rounds")[0],
    )
    return cells.join(compared.table({**values, **leads}).drop(columns="arm")), compared.prompts


def rank_accuracy(accuracy: pd.DataFrame, replicates: int, seed: int) -> pd.DataFrame:
    """Return a line for each level and rank: level, rank, share, share_low, share_high, tested, hits."""
    compared = compare(accuracy, ["level", "rank"], ["tested", "hits"], replicates, seed)
    counts = {name: compared.values[name][0].astype(int) for name in ("tested", "hits")}
    return compared.table({"share": compared.ratio("hits", "tested")}).assign(**counts)


# The choice -----------------------------------------------------------------------------------------


def _choice(cells: pd.DataFrame, prompts: str, tables: Tables, about: About) -> Section:
    live = tables["live"]
    decoded = int(live.loc[live["arm"] == PLAIN, "tokens"].sum())
    differing = int((~live["identical"]).sum())
    same = (
        f"{differing} of {len(live)} texts depart from plain decoding's, by rounding: see target.dtype."
        if differing
        else f"All {len(live)} texts are those of plain decoding."
    )
    text = (
        _answer(cells),
        _rivals(cells),
        _prediction(cells),
        _cost(tables["block_times"], tables["draft_times"]),
        f"Decoded live: {prompts} of {about.prompts} that the trees were not built on, {decoded:,} tokens in each "
        f"structure; intervals are 95% prompt-bootstrap intervals. {same}",
        *about.caveats(tables["skipped"]),
    )
    figure = _over_nodes(
        cells,
        title=f"Tree budget against tokens per round and speed\n{about.title}",
        caption=f"Live greedy decoding of {prompts} of {about.prompts} that the trees were not built on, interleaved "
        "with plain decoding (the line at 1); bars: 95% prompt-bootstrap intervals. Dotted: predicted from the other "
        "prompts' accuracy by rank and depth, and measured calls and drafts.",
    )
    ordered = cells.assign(place=cells["shape"].map(_ORDER.index)).sort_values(["place", "budget"])
    leads = zip(ordered["shape"], printed(ordered, "speedup_lead", "+.2f"), strict=True)
    shown = pd.DataFrame(
        {
            "structure": ordered["arm"],
            "nodes": ordered["nodes"],
            "depth": ordered["depth"],
            "nodes verified": printed(ordered, "verified", ".1f"),
            "tokens per round": printed(ordered, "tokens", ".2f"),
            "predicted": printed(ordered, "predicted_tokens", ".2f"),
            "speedup": printed(ordered, "speedup", ".2f"),
            "predicted speedup": printed(ordered, "predicted_speedup", ".2f"),
            "speedup over the chosen": ["" if shape == CHOSEN else lead for shape, lead in leads],
        }
    )
    caption = "Predicted beforehand, and measured; differences to the chosen tree are paired"
    return Section("Which tree to run", text, ((caption, shown),), (("tree_budget", figure),))


def _answer(cells: pd.DataFrame) -> str:
    chosen = cells[cells["shape"] == CHOSEN]
    if chosen.empty:
        best = cells.loc[cells["predicted_speedup"].idxmax()]
        said = "No tree was predicted to pay: plain decoding has more tokens per second than any."
        if best["shape"] != PLAIN:
            said += f" The best prediction is that of {best['arm']}, {best['predicted_speedup']:.2f}."
        return said
    tree = chosen.iloc[0]
    return (
        f"The tree with most predicted tokens per second has {counted(int(tree['nodes']), 'node')} and depth "
        f"{tree['depth']}: {interval(tree, 'tokens'):.2f} tokens per round and a speedup of "
        f"{interval(tree, 'speedup'):.2f}. To run it: structure=tree structure.file=trees/chosen.yaml "
        f"structure.nodes={tree['nodes']} structure.depth={tree['depth']}."
    )


def _rivals(cells: pd.DataFrame) -> str:
    """Set the fastest of each other kind, and the largest tree, against what was chosen."""

    def speed(cell: pd.Series) -> str:
        return (
            f"of {cell['budget']}, {interval(cell, 'speedup'):.2f}, a difference of "
            f"{interval(cell, 'speedup_lead'):+.2f} (paired)"
        )

    others = cells[~cells["shape"].isin([PLAIN, CHOSEN])].groupby("shape", sort=True)
    said = [f"the fastest {shape}, {speed(part.loc[part['speedup'].idxmax()])}" for shape, part in others]
    trees = cells[cells["shape"] == "tree"]
    largest = trees.loc[trees["budget"].idxmax()]
    said.append(
        f"the largest tree, {speed(largest)}, although it has {interval(largest, 'tokens'):.2f} tokens per round"
    )
    return f"Speedup of others: {'; '.join(said)}. The fastest of several is flattered by having been picked."


def _prediction(cells: pd.DataFrame) -> str:
    known = cells[cells["shape"].isin(["chain", "tree", CHOSEN])]
    error = {name: (known[f"predicted_{name}"] / known[name] - 1).abs().median() for name in ("tokens", "speedup")}
    said = (
        f"Predictions of these {len(known)} chains and trees were off by {error['tokens']:.1%} for tokens per round "
        f"and by {error['speedup']:.1%} for speedup, in the median"
    )
    if np.isfinite(known["tokens_low"]).all():
        inside = known["predicted_tokens"].between(known["tokens_low"], known["tokens_high"]).sum()
        said += f"; {inside} of those for tokens per round lie within the measured interval"
    return (
        f"{said}. They assume that acceptance depends on rank and depth alone, as it was on the other half of the "
        "prompts in the rounds of a tree of full width."
    )


def _cost(times: pd.DataFrame, drafts: pd.DataFrame) -> str:
    """Say the two prices that the choice weighs against tokens."""
    longest = times[times["context"] == times["context"].max()]
    calls = longest.groupby("rows_evaluated")["seconds"].median().dropna()
    tokens = int(calls.index.max())
    by_size = drafts[drafts["shape"] == "tree"].groupby(["nodes", "depth"])["seconds"].median()
    ends = [by_size.idxmin(), by_size.idxmax()]
    said = " and ".join(f"{by_size[size] * 1e3:.2f} ms for {size[0]} nodes of depth {size[1]}" for size in ends)
    return (
        f"A call on {tokens} tokens takes {calls[tokens] / calls[1]:.2f} of a plain call of {calls[1] * 1e3:.2f} ms "
        f"behind {longest['context'].iloc[0]:,} cached tokens; the draft of a tree takes {said}."
    )


@style.in_style
def _over_nodes(cells: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Draw tokens per round and speedup over draft nodes: measured lines with intervals, and predictions of trees."""
    figure, panels = style.new_panels(title, caption, 6.8, rows=2, sharex=True)
    upper, lower = panels[:, 0]
    trees = cells[cells["shape"] == "tree"].sort_values("budget")
    chosen = cells[cells["shape"] == CHOSEN]
    for axes, name, label in ((upper, "tokens", "tokens per round"), (lower, "speedup", "speedup")):
        pictures.level(axes, 1.0)
        pictures.structure_lines(axes, cells, name)
        axes.plot(trees["budget"], trees[f"predicted_{name}"], color=style.STRUCTURES["tree"].colour, linewidth=1.4,
                  linestyle=":", label="tree, predicted")  # fmt: skip
        axes.plot(chosen["budget"], chosen[name], linestyle="", marker="*", markersize=15, color=style.PURPLE,
                  label="chosen tree")  # fmt: skip
        axes.set_ylabel(label)
    pictures.log_axis(lower, sorted(set(trees["budget"])), "draft nodes that the structure asks for")
    style.legend_above(upper, 3)
    return figure


# Accuracy -------------------------------------------------------------------------------------------


def _accuracy(accuracy: pd.DataFrame, counts: pd.DataFrame, about: About) -> Section:
    seen = accuracy[accuracy["tested"] > 0]
    first = seen[seen["rank"] == 0].set_index("level")["share"]
    levels = list(dict.fromkeys([first.index.min(), first.index.max()])) if len(first) else []
    covered = seen.groupby("level")["hits"].sum() / seen.groupby("level")["tested"].first()

    def by_depth(shares: pd.Series) -> str:
        return " and ".join(f"{shares[level]:.1%} at depth {level}" for level in levels)

    text = (
        f"The first choice is the target's next token in {by_depth(first) or 'no draft'}; one of "
        f"{int(accuracy['rank'].max()) + 1} choices is in {by_depth(covered)}.",
        "The rounds that count at a depth are those whose tokens above it were right, whatever their rank: this is "
        "what is left to go wrong there. Trees are built from these shares.",
    )
    prompts = counted(counts["prompt"].nunique(), "prompt")
    with style.styled():
        figure, axes = style.new_figure(
            f"Accuracy of the drafter's choices by depth\n{about.title}",
            f"{prompts} of {about.prompts}, the half that trees are built on; bars: 95% prompt-bootstrap intervals.",
        )
        for rank, part in seen[seen["rank"] < 4].groupby("rank"):
            across = (part["level"] + 0.03 * rank).tolist()
            pictures.line(axes, across, intervals(part, "share"), style.look(rank), f"choice {rank + 1}")
        axes.set(xlabel="depth in the draft", ylabel="share that is the target's next token")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        pictures.percent_axis(axes)
        style.legend_above(axes, 4)
    lines = []
    for level, part in seen.groupby("level"):
        shares = zip(part["rank"], printed(part, "share", ".3f"), strict=True)
        line = {"depth": level, "drafts": int(part["tested"].iloc[0])}
        lines.append(line | {f"choice {rank + 1}": share for rank, share in shares})
    return Section(
        "Accuracy by rank and depth",
        text,
        tables=(("Share of drafts whose choice of each rank was right", pd.DataFrame(lines)),),
        figures=(("rank_accuracy", figure),),
    )

"""Study `tree_search`: which tree a drafter should fill, how well that was predicted, and whether a larger tree, a
chain or a dynamic tree would have done as well.
"""

import numpy as np
import pandas as pd

from ..comparisons import compare, curve, curves_of, interval, listed, metrics_of, printed
from ..figures import pictures, style
from ..intervals import ANY, SHARE, per_round
from ..sections import About, Findings, Section, Tables, counted, register

PLAIN, CHOSEN = "plain", "chosen"
QUANTITIES = {"tokens_per_round": "tokens", "speedup": "speedup"}  # name in MLflow -> column
_ORDER = (PLAIN, CHOSEN, "tree", "chain", "dynamic")  # of a table's lines
_COLUMNS = {"structure": "arm", "nodes": "nodes", "depth": "depth", "nodes verified": "verified:.1f",
            "tokens per round": "tokens:.2f", "predicted": "predicted_tokens:.2f", "speedup": "speedup:.2f",
            "predicted speedup": "predicted_speedup:.2f", "speedup over the chosen": "speedup_lead:+.2f"}  # fmt: skip


@register("tree_search")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study but `host_times`."""
    cells, prompts = tree_search(tables["arms"], tables["live"], about.replicates, about.seed)
    accuracy = rank_accuracy(tables["accuracy"], about.replicates, about.seed)
    choice = _choice(cells, counted(prompts, "prompt"), tables, about)
    sections = choice, _accuracy(accuracy, tables["accuracy"], about)
    predicted = {what: f"predicted_{column}" for what, column in QUANTITIES.items()}
    chosen, sized = cells[cells["shape"] == CHOSEN], cells[~cells["shape"].isin([PLAIN, CHOSEN])]
    metrics: dict[str, float] = {}
    for end, quantities in (("", QUANTITIES), (".predicted", predicted)):
        metrics |= metrics_of(chosen, "tree_search/{shape}.{what}" + end, quantities, bounds=not end)
        metrics |= metrics_of(sized, "tree_search/{shape}.{what}.{budget}" + end, quantities, bounds=not end)
    metrics |= metrics_of(chosen, "tree_search/chosen.{what}", {"nodes": "nodes", "depth": "depth"}, bounds=False)
    name = "tree_search/accuracy.depth_{level}.choice_{choice}"
    metrics |= metrics_of(accuracy.assign(choice=accuracy["rank"] + 1), name, {"": "share"}, bounds=False)
    curves = curves_of(sized, "curve/tree_search/{what}.{shape}", ["shape"], "budget", QUANTITIES)
    curves |= curves_of(sized, "curve/tree_search/predicted.{what}.{shape}", ["shape"], "budget", predicted)
    curves["curve/tree_search/accuracy"] = curve(accuracy[accuracy["rank"] == 0], "level", "share")
    return Findings(sections, metrics, curves)


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
    predicted = arms["predicted_tokens"] * plain_s / arms["predicted_s"]
    cells = arms.assign(predicted_speedup=predicted, verified=compared.ratio("nodes", "rounds")[0])
    possible = [per_round(depth) for depth in arms["depth"]]
    table = compared.table({**values, **leads}, {"tokens": possible, **dict.fromkeys(leads, ANY)})
    return cells.join(table.drop(columns="arm")), compared.prompts


def rank_accuracy(accuracy: pd.DataFrame, replicates: int, seed: int) -> pd.DataFrame:
    """Return a line for each level and rank: level, rank, share, share_low, share_high, tested, hits."""
    compared = compare(accuracy, ["level", "rank"], ["tested", "hits"], replicates, seed)
    counts = {name: compared.values[name][0].astype(int) for name in ("tested", "hits")}
    return compared.table({"share": compared.ratio("hits", "tested")}, {"share": SHARE}).assign(**counts)


def _choice(cells: pd.DataFrame, prompts: str, tables: Tables, about: About) -> Section:
    live, chosen, trees = tables["live"], cells[cells["shape"] == CHOSEN], cells[cells["shape"] == "tree"]
    if len(chosen):
        tree = chosen.iloc[0]
        answer = (
            f"The tree with most predicted tokens per second has {counted(int(tree['nodes']), 'node')} and depth "
            f"{tree['depth']}: {interval(tree, 'tokens'):.2f} tokens per round and a speedup of "
            f"{interval(tree, 'speedup'):.2f}. To run it: structure=tree structure.file=trees/chosen.yaml "
            f"structure.nodes={tree['nodes']} structure.depth={tree['depth']}."
        )
    else:
        answer = "No tree was predicted to pay: plain decoding has more tokens per second than any."
        best = cells.loc[cells["predicted_speedup"].idxmax()]
        if best["shape"] != PLAIN:
            answer += f" The best prediction is that of {best['arm']}, {best['predicted_speedup']:.2f}."

    def speed(cell: pd.Series) -> str:
        lead = f"a difference of {interval(cell, 'speedup_lead'):+.2f} (paired)"
        return f"of {cell['budget']}, {interval(cell, 'speedup'):.2f}, {lead}"

    # The fastest of each other kind, and the largest tree, against what was chosen.
    others = cells[~cells["shape"].isin([PLAIN, CHOSEN])].groupby("shape", sort=True)
    largest = trees.loc[trees["budget"].idxmax()]
    rivals = "; ".join(f"the fastest {shape}, {speed(part.loc[part['speedup'].idxmax()])}" for shape, part in others)
    known = cells[cells["shape"].isin(["chain", "tree", CHOSEN])]
    off = {name: (known[f"predicted_{name}"] / known[name] - 1).abs().median() for name in ("tokens", "speedup")}
    inside = ""
    if np.isfinite(known["tokens_low"]).all():
        within = known["predicted_tokens"].between(known["tokens_low"], known["tokens_high"]).sum()
        inside = f"; {within} of those for tokens per round lie within the measured interval"
    decoded, differing = int(live.loc[live["arm"] == PLAIN, "tokens"].sum()), int((~live["identical"]).sum())
    same = f"All {len(live)} texts are those of plain decoding."
    if differing:
        same = f"{differing} of {len(live)} texts depart from plain decoding's, by rounding: see target.dtype."
    text = (
        answer,
        f"Speedup of others: {rivals}; the largest tree, {speed(largest)}, although it has "
        f"{interval(largest, 'tokens'):.2f} tokens per round. The fastest of several is flattered by having been "
        "picked.",
        f"Predictions of these {len(known)} chains and trees were off by {off['tokens']:.1%} for tokens per round and "
        f"by {off['speedup']:.1%} for speedup, in the median{inside}. They assume that acceptance depends on rank and "
        "depth alone, as it was on the other half of the prompts in the rounds of a tree of full width.",
        _prices(tables["block_times"], tables["draft_times"]),
        f"Decoded live: {prompts} of {about.prompts} that the trees were not built on, {decoded:,} tokens in each "
        f"structure; intervals are 95% prompt-bootstrap intervals. {same}",
        *about.caveats(tables["skipped"]),
    )
    dotted = style.STRUCTURES["tree"]._replace(marker="", dash=":")
    star = style.Look(style.PURPLE, "*", "none")
    bare = cells.drop(columns=["tokens_low", "speedup_low"])
    panels = []
    for name, label in (("tokens", "tokens per round"), ("speedup", "speedup")):
        lines = pictures.structure_lines(cells, name)
        lines["tree, predicted"] = pictures.over(trees.sort_values("budget"), "budget", f"predicted_{name}", dotted)
        lines["chosen tree"] = pictures.over(bare[bare["shape"] == CHOSEN], "budget", name, star)
        panels.append(pictures.Panel(label, lines, level=(1.0, "")))
    figure = pictures.chart(
        *panels,
        title=f"Tree budget against tokens per round and speed\n{about.title}",
        caption=f"Live greedy decoding of {prompts} of {about.prompts} that the trees were not built on, interleaved "
        "with plain decoding (the line at 1); bars: 95% prompt-bootstrap intervals. Dotted: predicted from the other "
        "prompts' accuracy by rank and depth, and measured calls and drafts.",
        xlabel="draft nodes that the structure asks for",
        ticks=sorted(set(trees["budget"])),
        height=6.8,
    )
    ordered = cells.assign(place=cells["shape"].map(_ORDER.index)).sort_values(["place", "budget"])
    caption = "Predicted beforehand, and measured; differences to the chosen tree are paired"
    return Section("Which tree to run", text, ((caption, listed(ordered, _COLUMNS)),), (("tree_budget", figure),))


def _prices(times: pd.DataFrame, drafts: pd.DataFrame) -> str:
    """Say the two prices that the choice weighs against tokens: of a call on many tokens, and of a draft."""
    longest = times[times["context"] == times["context"].max()]
    calls = longest.groupby("rows_evaluated")["seconds"].median().dropna()
    most = int(calls.index.max())
    by_size = drafts[drafts["shape"] == "tree"].groupby(["nodes", "depth"])["seconds"].median()
    ends = [by_size.idxmin(), by_size.idxmax()]
    drafted = " and ".join(f"{by_size[size] * 1e3:.2f} ms for {size[0]} nodes of depth {size[1]}" for size in ends)
    return (
        f"A call on {most} tokens takes {calls[most] / calls[1]:.2f} of a plain call of {calls[1] * 1e3:.2f} ms behind "
        f"{longest['context'].iloc[0]:,} cached tokens; the draft of a tree takes {drafted}."
    )


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
    drawn = {}
    for rank, part in seen[seen["rank"] < 4].groupby("rank"):
        beside = part.assign(level=part["level"] + 0.03 * rank)
        drawn[f"choice {rank + 1}"] = pictures.over(beside, "level", "share", style.look(int(rank)))
    figure = pictures.chart(
        pictures.Panel("share that is the target's next token", drawn),
        title=f"Accuracy of the drafter's choices by depth\n{about.title}",
        caption=f"{counted(counts['prompt'].nunique(), 'prompt')} of {about.prompts}, the half that trees are built "
        "on; bars: 95% prompt-bootstrap intervals.",
        xlabel="depth in the draft",
        columns=4,
    )
    pictures.percent_axis(figure.axes[0])
    figure.axes[0].set_xticks(seen["level"].unique())
    lines = []
    for level, part in seen.groupby("level"):
        shares = zip(part["rank"], printed(part, "share", ".3f"), strict=True)
        line = {"depth": level, "drafts": int(part["tested"].iloc[0])}
        lines.append(line | {f"choice {rank + 1}": share for rank, share in shares})
    table = ("Share of drafts whose choice of each rank was right", pd.DataFrame(lines))
    return Section("Accuracy by rank and depth", text, (table,), (("rank_accuracy", figure),))

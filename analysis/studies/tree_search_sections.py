"""What study `tree_search` says: which tree a drafter should fill, how well that was predicted, and whether a larger
tree, a chain or a dynamic tree would have done as well.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..figures.plots import counted
from ..findings import About, Findings
from ..sections import Section
from .replayed import bracket, caveats
from .tree_search import CHOSEN, PLAIN, TreeSearch, rank_accuracy, tree_search
from .tree_search_plots import over_depth, over_nodes


def findings(tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """From all tables of the study but `host_times`."""
    found = tree_search(tables["arms"], tables["live"], about.replicates, about.seed)
    accuracy = rank_accuracy(tables["accuracy"], about.replicates, about.seed)
    cells = found.cells
    sections = (_choice(found, cells, tables, about), _accuracy(accuracy, tables["accuracy"], about))
    return Findings(sections, _metrics(cells, accuracy), _curves(cells, accuracy))


def _metrics(cells: pd.DataFrame, accuracy: pd.DataFrame) -> dict[str, float]:
    """`tree_search.<shape>.<what>.<budget>`, of the chosen tree without a budget, and what it consists of."""
    metrics: dict[str, float] = {}
    for row in cells[cells["shape"] != PLAIN].to_dict("records"):
        name, end = f"tree_search.{row['shape']}", "" if row["shape"] == CHOSEN else f".{row['budget']}"
        for what in ("tokens", "speedup"):
            shown = "tokens_per_round" if what == "tokens" else what
            metrics |= {
                f"{name}.{shown}{end}": row[what],
                f"{name}.{shown}{end}.ci_low": row[f"{what}_low"],
                f"{name}.{shown}{end}.ci_high": row[f"{what}_high"],
                f"{name}.{shown}{end}.predicted": row[f"predicted_{what}"],
            }
        if row["shape"] == CHOSEN:
            metrics |= {f"{name}.nodes": row["nodes"], f"{name}.depth": row["depth"]}
    for row in accuracy.to_dict("records"):
        metrics[f"tree_search.accuracy.depth_{row['level']}.choice_{row['rank'] + 1}"] = row["share"]
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}


def _curves(cells: pd.DataFrame, accuracy: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Over draft nodes; the accuracy of first choices over depth."""
    curves: dict[str, dict[int, float]] = {}
    for shape, part in cells[~cells["shape"].isin([PLAIN, CHOSEN])].groupby("shape"):
        for name, column in (("tokens_per_round", "tokens"), ("speedup", "speedup")):
            for kind, values in (("", part[column]), ("predicted.", part[f"predicted_{column}"])):
                points = dict(zip(part["budget"].tolist(), values.tolist(), strict=True))
                curves[f"curve.tree_search.{kind}{name}.{shape}"] = {n: x for n, x in points.items() if np.isfinite(x)}
    first = accuracy[(accuracy["rank"] == 0) & (accuracy["tested"] > 0)]
    curves["curve.tree_search.accuracy"] = dict(zip(first["level"].tolist(), first["share"].tolist(), strict=True))
    return {name: points for name, points in curves.items() if points}


# The choice -----------------------------------------------------------------------------------------


def _choice(found: TreeSearch, cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame], about: About) -> Section:
    live = tables["live"]
    text = (
        _answer(cells),
        _rivals(cells),
        _prediction(cells),
        _cost(tables["block_times"], tables["draft_times"]),
        _texts(live, found.sums.prompts, about),
        *caveats(tables["skipped"], about.title, about.prompts),
    )
    figure = over_nodes(
        cells,
        title=f"Tree budget against tokens per round and speed\n{about.title}",
        caption=f"Live greedy decoding of {counted(found.sums.prompts, 'prompt')} of {about.prompts} that the trees "
        "were not built on, interleaved with plain decoding (the line at 1); bars: 95% prompt-bootstrap intervals. "
        "Dotted: predicted from the other prompts' accuracy by rank and depth, and measured calls and drafts.",
    )
    return Section(
        "Which tree to run",
        text,
        tables=(("Predicted beforehand, and measured; differences to the chosen tree are paired", _table(cells)),),
        figures=(("tree_budget", figure),),
    )


def _answer(cells: pd.DataFrame) -> str:
    chosen = cells[cells["shape"] == CHOSEN]
    if chosen.empty:
        best = cells.loc[cells["predicted_speedup"].idxmax()]
        said = "No tree was predicted to pay: plain decoding has more tokens per second than any."
        if best["shape"] != PLAIN:
            said += f" The best prediction is that of {best['arm']}, {best['predicted_speedup']:.2f}."
        return said
    row = chosen.iloc[0]
    return (
        f"The tree with most predicted tokens per second has {counted(int(row['nodes']), 'node')} and depth "
        f"{row['depth']}: {_value(row, 'tokens')} tokens per round and a speedup of {_value(row, 'speedup')}. "
        f"To run it: structure=tree structure.file=trees/chosen.yaml structure.nodes={row['nodes']} "
        f"structure.depth={row['depth']}."
    )


def _rivals(cells: pd.DataFrame) -> str:
    """The fastest of each other kind, and the largest tree, against what was chosen."""
    said = []
    for shape, part in cells[~cells["shape"].isin([PLAIN, CHOSEN])].groupby("shape", sort=True):
        row = part.loc[part["speedup"].idxmax()]
        said.append(f"the fastest {shape}, of {row['budget']}, {_value(row, 'speedup')}{_lead(row)}")
    trees = cells[cells["shape"] == "tree"]
    row = trees.loc[trees["budget"].idxmax()]
    said.append(
        f"the largest tree, of {row['budget']}, {_value(row, 'speedup')}{_lead(row)} although it has "
        f"{_value(row, 'tokens')} tokens per round"
    )
    return f"Speedup of others: {'; '.join(said)}. The fastest of several is flattered by having been picked."


def _lead(row: pd.Series) -> str:
    return f" ({row['speedup_lead']:+.2f}{bracket(row['speedup_lead_low'], row['speedup_lead_high'])} paired)"


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
        f"{said}. They take acceptance for a matter of rank and depth alone, as it was on the other half of the "
        "prompts in the rounds of a tree of full width."
    )


def _cost(times: pd.DataFrame, drafts: pd.DataFrame) -> str:
    """The two prices that the choice weighs against tokens."""
    longest = times[times["context"] == times["context"].max()]
    calls = longest.groupby("rows_evaluated")["seconds"].median().dropna()
    rows = int(calls.index.max())
    by_size = drafts[drafts["shape"] == "tree"].groupby(["nodes", "depth"])["seconds"].median()
    ends = [by_size.idxmin(), by_size.idxmax()]
    said = " and ".join(f"{by_size[size] * 1e3:.2f} ms for {size[0]} nodes of depth {size[1]}" for size in ends)
    return (
        f"A call on {rows} tokens takes {calls[rows] / calls[1]:.2f} of a plain call of {calls[1] * 1e3:.2f} ms behind "
        f"{longest['context'].iloc[0]:,} cached tokens; the draft of a tree takes {said}."
    )


def _texts(live: pd.DataFrame, prompts: int, about: About) -> str:
    plain = live[live["arm"] == PLAIN]
    differing = int((~live["identical"]).sum())
    said = (
        f"Decoded live: {counted(prompts, 'prompt')} of {about.prompts} that the trees were not built on, "
        f"{int(plain['tokens'].sum()):,} tokens in each structure; intervals are 95% prompt-bootstrap intervals. "
    )
    if differing:
        return f"{said}{differing} of {len(live)} texts depart from plain decoding's, by rounding: see target.dtype."
    return f"{said}All {len(live)} texts are those of plain decoding."


def _value(row: Mapping[str, float] | pd.Series, name: str) -> str:
    return f"{row[name]:.2f}{bracket(row[f'{name}_low'], row[f'{name}_high'])}"


def _table(cells: pd.DataFrame) -> pd.DataFrame:
    order = {name: place for place, name in enumerate((PLAIN, CHOSEN, "tree", "chain", "dynamic"))}
    rows = []
    for row in sorted(cells.to_dict("records"), key=lambda row: (order[row["shape"]], row["budget"])):
        rows.append(
            {
                "structure": row["arm"],
                "nodes": row["nodes"],
                "depth": row["depth"],
                "nodes verified": f"{row['verified']:.1f}",
                "tokens per round": _value(row, "tokens"),
                "predicted": _predicted(row, "tokens"),
                "speedup": _value(row, "speedup"),
                "predicted speedup": _predicted(row, "speedup"),
                "speedup over the chosen": ""
                if row["shape"] == CHOSEN
                else f"{row['speedup_lead']:+.2f}{bracket(row['speedup_lead_low'], row['speedup_lead_high'])}",
            }
        )
    return pd.DataFrame(rows)


def _predicted(row: Mapping[str, float], name: str) -> str:
    value = row[f"predicted_{name}"]
    return f"{value:.2f}" if np.isfinite(value) else ""


# Accuracy -------------------------------------------------------------------------------------------


def _accuracy(accuracy: pd.DataFrame, counts: pd.DataFrame, about: About) -> Section:
    seen = accuracy[accuracy["tested"] > 0]
    first = seen[seen["rank"] == 0].set_index("level")
    levels = [first.index.min(), first.index.max()] if len(first) else []
    prompts = counts["prompt"].nunique()
    said = " and ".join(f"{first['share'][level]:.1%} at depth {level}" for level in dict.fromkeys(levels))
    ranks = int(accuracy["rank"].max()) + 1
    any_rank = seen.groupby("level")[["hits", "tested"]].agg({"hits": "sum", "tested": "first"})
    covered = any_rank["hits"] / any_rank["tested"]
    text = (
        f"The first choice is the target's next token in {said or 'no draft'}; one of {ranks} choices is in "
        + " and ".join(f"{covered[level]:.1%} at depth {level}" for level in dict.fromkeys(levels))
        + ".",
        "Counted at a depth are rounds whose tokens above it were right, of whatever rank: what is left to go wrong "
        "there. Trees are built from these shares.",
    )
    figure = over_depth(
        accuracy,
        title=f"Accuracy of the drafter's choices by depth\n{about.title}",
        caption=f"{counted(prompts, 'prompt')} of {about.prompts}, the half that trees are built on; "
        "bars: 95% prompt-bootstrap intervals.",
    )
    return Section(
        "Accuracy by rank and depth",
        text,
        tables=(("Share of drafts whose choice of each rank was right", _shares(seen)),),
        figures=(("rank_accuracy", figure),),
    )


def _shares(seen: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for level, part in seen.groupby("level"):
        shares = {
            f"choice {row['rank'] + 1}": f"{row['share']:.3f}{bracket(row['low'], row['high'], 3)}"
            for row in part.sort_values("rank").to_dict("records")
        }
        rows.append({"depth": level, "drafts": int(part["tested"].iloc[0]), **shares})
    return pd.DataFrame(rows)

"""Study `equal_budget`: which of chain, rows and tree earns most from the same number of draft nodes, in tokens per
call and on the clock.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..comparisons import ReplayedSpeedups, curves_of, interval, listed, metrics_of
from ..cost.round_seconds import repeats_of, stream_seconds
from ..figures import pictures
from ..intervals import ANY, too_few
from ..sections import About, Findings, Section, Tables, counted, register

KEYS = ["drafter", "shape", "budget"]  # the tables call a structure's name its shape
REFERENCE = "chain"
QUANTITIES = {"tokens_per_call": "tokens", "speedup": "speedup"}  # name in MLflow -> column
_NAMES = {"chain": "the chain", "rows": "rows", "tree": "the tree"}
_COLUMNS = {"budget": "budget", "structure": "shape", "chosen": "chosen", "nodes verified": "nodes:.1f",
            "tokens per call": "tokens:.2f", "over the chain": "tokens_lead:+.2f"}  # fmt: skip


@register("equal_budget")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study but `accuracy`."""
    found = budgets(tables, about.replicates, about.seed)
    sections: list[Section] = []
    for drafter, cells in found.cells.groupby("drafter", sort=True):
        sections.append(_tokens(str(drafter), cells, found, tables["skipped"], about))
        sections.append(_speed(str(drafter), cells, found, tables["block_times"], about))
    name = "budget/{drafter}.{shape}.{what}.{budget}"
    metrics = metrics_of(found.cells, name, QUANTITIES | {"nodes_verified": "nodes"}, bounds=False)
    metrics |= metrics_of(found.cells[found.cells["shape"] != REFERENCE], name, {"lead": "tokens_lead"})
    curves = curves_of(found.cells, "curve/budget/{what}.{drafter}.{shape}", ["drafter", "shape"], "budget", QUANTITIES)
    return Findings(tuple(sections), metrics, curves)


def budgets(tables: Tables, replicates: int, seed: int) -> ReplayedSpeedups:
    """Compute tokens per call and speedup by drafter, structure and budget from the study's tables, of every text with
    the candidate that the other half chose.

    Cells have also: tokens_lead and speedup_lead, their paired differences to the chain, with _low and _high; price
    (what a draft node adds to a call, in plain calls: (t(1 + n) / t(1) - 1) / n); break_even, the price at which calls
    alone would take away all that the accepted tokens give, (tokens - 1) / n; and chosen, the variants that were
    judged, such as "4 x 4", or "4 x 4, 2 x 8" where the halves disagree.
    """
    block_times, host_times, choices = tables["block_times"], tables["host_times"], tables["choices"]
    judged = choices.assign(half=1 - choices["half"])[[*KEYS, "half", "variant", "made_on"]]
    texts = tables["replay"].merge(judged, on=[*KEYS, "half", "variant", "made_on"], how="inner").assign(w=1)
    parts = []
    plain = host_times[host_times["shape"] == "plain"]
    for (drafter, shape), part in texts.groupby(["drafter", "shape"]):
        own = host_times[(host_times["drafter"] == drafter) & (host_times["shape"] == shape)]
        seconds, baseline = stream_seconds(part, repeats_of(block_times, pd.concat([plain, own])))
        parts.append(part.assign(seconds=seconds.mean(axis=0), plain_s=baseline.mean(axis=0)))
    found = ReplayedSpeedups(pd.concat(parts, ignore_index=True), KEYS, "budget", replicates, seed)
    beside, cells = found.compared.beside, found.cells
    leads = {f"{name}_lead": values - beside(values, shape=REFERENCE) for name, values in found.statistics.items()}
    bounded = found.compared.table(leads, dict.fromkeys(leads, ANY)).drop(columns=KEYS)
    cells[[f"{name}{end}" for name in leads for end in ("", "_low", "_high")]] = bounded
    nodes, none = cells["nodes"].to_numpy(), np.zeros(len(cells))
    context, calls = np.full(len(cells), float(found.texts["context"].mean())), repeats_of(block_times, plain)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = calls.call(none, nodes, none, context) / calls.call(none, none, none, context)
        cells["price"], cells["break_even"] = (longer - 1) / nodes, (cells["tokens"] - 1) / nodes
    variants = found.texts.sort_values("half", ascending=False, kind="stable").groupby(KEYS)["variant"]
    cells["chosen"] = variants.agg(lambda names: ", ".join(dict.fromkeys(names))).to_numpy()
    return found


def _against_chain(cells: pd.DataFrame, name: str, prompts: int) -> str:
    """Say, for each other structure, at how many budgets it beats the chain beyond chance, and by how much."""
    said, lead = [], f"{name}_lead"
    for shape, part in cells[cells["shape"] != REFERENCE].groupby("shape", sort=True):
        better, worse = part[part[f"{lead}_low"] > 0], int((part[f"{lead}_high"] < 0).sum())
        beats, loses = ("beats", "loses") if shape == "tree" else ("beat", "lose")
        claim = f"{_NAMES[str(shape)]} {beats} the chain"
        words = f"{claim} beyond chance at {len(better)} of {counted(len(part), 'budget')}"
        if 0 < len(better) < len(part):
            words += f" ({', '.join(str(n) for n in better['budget'])} nodes)"
        if worse:
            words += f" and {loses} to it at {worse}"
        if few := too_few(prompts):
            words = f"whether {claim} cannot be said, {few}"
        ends = part.sort_values(lead).iloc[[0, -1]].drop_duplicates("budget").to_dict("records")
        differences = [f"{interval(each, lead):+.2f} at {each['budget']} nodes" for each in ends]
        said.append(f"{words}; the difference goes from {' to '.join(differences)}")
    return "; ".join(said)


def _best(cells: pd.DataFrame, name: str) -> tuple[pd.Series, pd.Series]:
    """Return the best of all, and the best chain."""
    chains = cells[cells["shape"] == REFERENCE]
    return cells.loc[cells[name].idxmax()], chains.loc[chains[name].idxmax()]


def _tokens(drafter: str, cells: pd.DataFrame, found: ReplayedSpeedups, skipped: pd.DataFrame, about: About) -> Section:
    largest = cells[cells["budget"] == cells["budget"].max()].set_index("shape")["nodes"]
    verified = ", ".join(f"{_NAMES[str(shape)]} {value:.1f}" for shape, value in largest.items())
    best, own = _best(cells, "tokens")
    most = f"Most tokens per call: {interval(best, 'tokens'):.2f} by {_NAMES[best['shape']]} of {best['budget']} nodes"
    if best["shape"] != REFERENCE:
        most += f"; the best chain, of {own['budget']}, has {interval(own, 'tokens'):.2f}"
        others = cells[(cells["shape"] != REFERENCE) & (cells["nodes"] <= own["nodes"])]
        if len(others):  # chains end where their n-gram does
            equal = others.loc[others["tokens"].idxmax()]
            most += (
                f" with {own['nodes']:.1f} nodes verified in the mean round. Of structures that verify no more, "
                f"{_NAMES[equal['shape']]} of {equal['budget']} ({equal['nodes']:.1f}) has most: "
                f"{interval(equal, 'tokens'):.2f}, a difference of "
                f"{found.lead('tokens', equal[KEYS], own[KEYS]):+.2f} (paired)"
            )
    text = (
        f"At the same number of draft nodes, {drafter}: {_against_chain(cells, 'tokens', found.compared.prompts)}.",
        f"{most}.",
        f"Fewer nodes are verified than the budget of {cells['budget'].max()}: {verified} in the mean round. Rows that "
        "begin alike share nodes, n-grams that run into the end of the text are short, and nothing is offered beyond "
        "a text's end.",
        "The shape of rows and the tree are chosen by the prompts of one half and judged on the other, both ways "
        "round, so that taking the best of many flatters neither; a tree is the best one "
        "(notebooks/guide/theory.md 3.2) for the accuracy of each rank on the half that chose it.",
        *about.origin(found.texts, skipped),
    )
    return _section("tokens", "Tokens per call", text, _COLUMNS, drafter, cells, about)


def _speed(drafter: str, cells: pd.DataFrame, found: ReplayedSpeedups, times: pd.DataFrame, about: About) -> Section:
    kind = "simulated speedup" if about.simulated else "predicted speedup"
    (best, own), (longest, _) = _best(cells, "speedup"), _best(cells, "tokens")
    fastest = (
        f"On the clock {_NAMES[best['shape']]} of {best['budget']} nodes {'are' if best['shape'] == 'rows' else 'is'} "
        f"fastest with {drafter}: a {kind} of {interval(best, 'speedup'):.2f}"
    )
    if best["shape"] != REFERENCE:
        lead = found.lead("speedup", best[KEYS], own[KEYS])
        fastest += f", {lead:+.2f} (paired) over the fastest chain, of {own['budget']} nodes"
        fastest += ", which is within chance" if lead.known and lead.low <= 0 else ""
    if longest.name != best.name:
        fastest += (
            f"; the most tokens per call, {longest['tokens']:.2f} by {_NAMES[longest['shape']]} of "
            f"{longest['budget']}, make {longest['speedup']:.2f}"
        )
    # A verified token's cost against what it may cost, where the gain is largest and at the largest budget.
    largest = cells[cells["budget"] == cells["budget"].max()]
    priced = cells.loc[list(dict.fromkeys([cells["speedup"].idxmax(), largest["speedup"].idxmin()]))]
    prices = [
        f"{each['price']:.3f} of a plain call in {_NAMES[each['shape']]} of {each['budget']}, which breaks even at "
        f"{each['break_even']:.3f}"
        for each in priced.to_dict("records")
    ]
    how = "All seconds, of calls, drafts and commits alike, come from a cost model: nothing was timed."
    if not about.simulated:
        contexts = ", ".join(f"{context:,}" for context in sorted(times["context"].unique()))
        calls = int(times.groupby(["w", "context"])["call"].nunique().max())
        how = (
            f"Seconds of a call: t(n) of packed calls on chains behind {contexts} cached tokens, medians of "
            f"{counted(calls, 'call')}; of drafts and commits: medians of a short live run of every structure and "
            "budget. Everything between is on straight lines."
        )
    text = (
        f"{fastest}.",
        f"At the same number of draft nodes: {_against_chain(cells, 'speedup', found.compared.prompts)}.",
        f"A draft node costs {'; '.join(prices)}. Above its break-even price a draft costs more calls than it saves.",
        how,
    )
    columns = {"budget": "budget", "structure": "shape", kind: "speedup:.2f", "over the chain": "speedup_lead:+.2f",
               "price": "price:.3f", "break-even": "break_even:.3f"}  # fmt: skip
    return _section("speedup", kind.capitalize(), text, columns, drafter, cells, about)


def _section(
    name: str, label: str, text: tuple[str, ...], columns: Mapping[str, str], drafter: str, cells: pd.DataFrame,
    about: About,
) -> Section:  # fmt: skip
    """Write one drafter's section: column `name` over draft nodes, and its paired differences to the chain."""
    others, exact = cells[cells["shape"] != REFERENCE], name == "tokens"
    rounds = "greedy texts replayed, exact for these" if exact else f"rounds by replay, seconds {about.source}"
    bars = "bars: 95% prompt-bootstrap intervals" if cells[f"{name}_low"].notna().any() else "no intervals"
    figure = pictures.chart(
        pictures.Panel(label.lower(), pictures.structure_lines(cells, name), (1.0, "plain decoding"), share=3),
        pictures.Panel("over the chain", pictures.structure_lines(others, f"{name}_lead"), (0.0, ""), share=2),
        title=f"{label} at equal budgets, drafter {drafter}\n{about.title}",
        caption=f"Prompts of {about.prompts}, {rounds}; {bars}. Below: paired differences, surer than the intervals "
        "above suggest.",
        xlabel="draft nodes that the structure asks for",
        ticks=sorted(set(cells["budget"])),
        height=6.4,
    )
    shown = listed(cells.sort_values(["budget", "shape"]), columns)
    caption = f"{label} of each structure, with the paired difference to the chain"
    if "price" in columns:
        caption += (
            "; price of a draft node in plain calls, and the price at which calls alone would take all that the "
            "accepted tokens give"
        )
    stem = "tokens_per_call" if exact else name
    title = f"{label} of chain, rows and tree: {drafter}"
    return Section(title, text, ((caption, shown),), ((f"{stem}_{drafter}", figure),))

"""Study `equal_budget`: which of chain, rows and tree earns most from the same number of draft nodes, in tokens per
call and on the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import StrategyComparison, compare, curves_of, interval, metrics_of, printed
from ..cost.block_seconds import BlockSeconds, repeats_of, stream_seconds
from ..figures import pictures, style
from ..findings import About, Findings, Section, Tables, counted, register
from ..intervals import Interval

KEYS = ["drafter", "shape", "budget"]  # the tables call a structure's name its shape
REFERENCE = "chain"
QUANTITIES = {"tokens_per_call": "tokens", "speedup": "speedup"}  # name in MLflow -> column
_NAMES = {"chain": "the chain", "rows": "rows", "tree": "the tree"}


@register("equal_budget")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study but `accuracy`."""
    found = budgets(tables, about.replicates, about.seed)
    sections = [
        section
        for drafter, cells in found.cells.groupby("drafter", sort=True)
        for section in (
            _tokens(str(drafter), cells, found, tables["skipped"], about),
            _speed(str(drafter), cells, found, tables["block_times"], about),
        )
    ]
    name = "budget/{drafter}.{shape}.{what}.{budget}"
    metrics = metrics_of(found.cells, name, QUANTITIES | {"nodes_verified": "verified"}, bounds=False)
    metrics |= metrics_of(found.cells[found.cells["shape"] != REFERENCE], name, {"lead": "tokens_lead"})
    curves = curves_of(found.cells, "curve/budget/{what}.{drafter}.{shape}", ["drafter", "shape"], "budget", QUANTITIES)
    return Findings(tuple(sections), metrics, curves)


# Numbers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BudgetNumbers:
    """Tokens per call and speedup by drafter, structure and budget.

    Attributes:
        texts: a line for each drafter, structure, budget and stream, of the candidate that the other half chose; as the
            replay, with predicted `seconds` and `plain_s`.
        compared: sums over prompts.
        calls: seconds of packed calls.
    """

    texts: pd.DataFrame
    compared: StrategyComparison
    calls: BlockSeconds

    @cached_property
    def statistics(self) -> Mapping[str, np.ndarray]:
        """Tokens per call and speedup, [1 + B, C] each."""
        ratio = self.compared.ratio
        return {"tokens": ratio("tokens", "rounds"), "speedup": ratio("plain_s", "seconds")}

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A line for each drafter, structure and budget: those; verified (mean draft nodes of a round); tokens and
        speedup, and tokens_lead and speedup_lead, their paired differences to the chain, all with _low and _high; price
        (what a draft node adds to a call, in plain calls: (t(1 + n) / t(1) - 1) / n); break_even, the price at which
        calls alone would take away all that the accepted tokens give, (tokens - 1) / n; and chosen, the variants that
        were judged, such as "4 x 4", or "4 x 4, 2 x 8" where the halves disagree.
        """
        compared, beside = self.compared, self.compared.beside
        leads = {f"{name}_lead": each - beside(each, shape=REFERENCE) for name, each in self.statistics.items()}
        nodes = compared.ratio("nodes", "rounds")[0]
        context = np.full(len(nodes), float(self.texts["context"].mean()))
        none = np.zeros(len(nodes))
        longer = self.calls.call(none, nodes, none, context) / self.calls.call(none, none, none, context)
        variants = self.texts.sort_values("half", ascending=False, kind="stable").groupby(KEYS)["variant"]
        with np.errstate(divide="ignore", invalid="ignore"):
            return compared.table({**self.statistics, **leads}).assign(
                verified=nodes,
                price=(longer - 1) / nodes,
                break_even=(self.statistics["tokens"][0] - 1) / nodes,
                chosen=variants.agg(lambda names: ", ".join(dict.fromkeys(names))).to_numpy(),
            )

    def lead(self, name: str, first: pd.Series, second: pd.Series) -> Interval:
        """Return how much one line of `cells` has beyond another, paired."""
        values = self.statistics[name]
        return self.compared.interval(values[:, first.name] - values[:, second.name])


def budgets(tables: Tables, replicates: int, seed: int) -> BudgetNumbers:
    """Compute the numbers from the study's tables: every text with the candidate that the other half chose."""
    block_times, host_times, choices = tables["block_times"], tables["host_times"], tables["choices"]
    judged = choices.assign(half=1 - choices["half"])[[*KEYS, "half", "variant", "made_on"]]
    texts = tables["replay"].merge(judged, on=[*KEYS, "half", "variant", "made_on"], how="inner").assign(w=1)
    parts = []
    plain = host_times[host_times["shape"] == "plain"]
    for (drafter, shape), part in texts.groupby(["drafter", "shape"]):
        own = host_times[(host_times["drafter"] == drafter) & (host_times["shape"] == shape)]
        seconds, baseline = stream_seconds(part, repeats_of(block_times, pd.concat([plain, own])))
        parts.append(part.assign(seconds=seconds.mean(axis=0), plain_s=baseline.mean(axis=0)))
    timed = pd.concat(parts, ignore_index=True)
    compared = compare(timed, KEYS, ["tokens", "rounds", "nodes", "seconds", "plain_s"], replicates, seed)
    return BudgetNumbers(timed, compared, repeats_of(block_times, plain)[0])


# Tokens per call ------------------------------------------------------------------------------------


def _tokens(drafter: str, cells: pd.DataFrame, found: BudgetNumbers, skipped: pd.DataFrame, about: About) -> Section:
    largest = cells[cells["budget"] == cells["budget"].max()].set_index("shape")["verified"]
    listed = ", ".join(f"{_NAMES[str(shape)]} {value:.1f}" for shape, value in largest.items())
    text = (
        f"At the same number of draft nodes, {drafter}: {'; '.join(_against_chain(cells, 'tokens'))}.",
        _most(cells, found),
        f"Fewer nodes are verified than the budget of {cells['budget'].max()}: {listed} in the mean round. Rows that "
        "begin alike share nodes, n-grams that run into the end of the text are short, and nothing is offered beyond "
        "a text's end.",
        "The shape of rows and the tree are chosen by the prompts of one half and judged on the other, both ways "
        "round, so that taking the best of many flatters neither; a tree is the best one "
        "(notebooks/guide/theory.md 3.2) for the accuracy of each rank on the half that chose it.",
        *about.origin(found.texts, skipped),
    )
    caption = (
        f"{counted(found.compared.prompts, 'prompt')} of {about.prompts}, greedy texts replayed, exact for these; "
        f"{_bars(cells, 'tokens')}. Below: paired differences, surer than the intervals above suggest."
    )
    title = f"Tokens per call at equal budgets, drafter {drafter}\n{about.title}"
    figure = _over_budget(cells, "tokens", label="tokens per call", title=title, caption=caption)
    ordered = cells.sort_values(["budget", "shape"])
    shown = pd.DataFrame(
        {
            "budget": ordered["budget"],
            "structure": ordered["shape"],
            "chosen": ordered["chosen"],
            "nodes verified": printed(ordered, "verified", ".1f"),
            "tokens per call": printed(ordered, "tokens", ".2f"),
            "over the chain": _leads(ordered, "tokens"),
        }
    )
    return Section(
        f"Tokens per call of chain, rows and tree: {drafter}",
        text,
        tables=(("Tokens per call, with the paired difference to the chain", shown),),
        figures=((f"tokens_per_call_{drafter}", figure),),
    )


def _leads(cells: pd.DataFrame, name: str) -> list[str]:
    """Return differences to the chain as text, empty for the chain itself."""
    leads = zip(cells["shape"], printed(cells, f"{name}_lead", "+.2f"), strict=True)
    return ["" if shape == REFERENCE else lead for shape, lead in leads]


def _bars(cells: pd.DataFrame, name: str) -> str:
    known = cells[f"{name}_low"].notna().any()
    return "bars: 95% prompt-bootstrap intervals" if known else "no intervals from one prompt"


def _against_chain(cells: pd.DataFrame, name: str) -> list[str]:
    """Say, for each other structure, at how many budgets it beats the chain beyond chance, and by how much."""
    said, lead = [], f"{name}_lead"
    for shape, part in cells[cells["shape"] != REFERENCE].groupby("shape", sort=True):
        better, worse = part[part[f"{lead}_low"] > 0], int((part[f"{lead}_high"] < 0).sum())
        beats, loses = ("beats", "loses") if shape == "tree" else ("beat", "lose")
        words = (
            f"{_NAMES[str(shape)]} {beats} the chain beyond chance at {len(better)} of {counted(len(part), 'budget')}"
        )
        if 0 < len(better) < len(part):
            words += f" ({', '.join(str(n) for n in better['budget'])} nodes)"
        if worse:
            words += f" and {loses} to it at {worse}"
        ends = part.sort_values(lead).iloc[[0, -1]].drop_duplicates("budget").to_dict("records")
        listed = [f"{interval(each, lead):+.2f} at {each['budget']} nodes" for each in ends]
        said.append(f"{words}; the difference goes from {' to '.join(listed)}")
    return said


def _best(cells: pd.DataFrame, name: str) -> pd.Series:
    return cells.loc[cells[name].idxmax()]


def _most(cells: pd.DataFrame, found: BudgetNumbers) -> str:
    """Name the best of all; and, since chains end where their n-gram does, the best that verifies no more than they."""
    best, own = _best(cells, "tokens"), _best(cells[cells["shape"] == REFERENCE], "tokens")
    sentence = (
        f"Most tokens per call: {interval(best, 'tokens'):.2f} by {_NAMES[best['shape']]} of {best['budget']} nodes"
    )
    if best["shape"] == REFERENCE:
        return sentence + "."
    sentence += f"; the best chain, of {own['budget']}, has {interval(own, 'tokens'):.2f}"
    others = cells[(cells["shape"] != REFERENCE) & (cells["verified"] <= own["verified"])]
    if others.empty:
        return sentence + "."
    equal = _best(others, "tokens")
    return (
        f"{sentence} with {own['verified']:.1f} nodes verified in the mean round. Of structures that verify no more, "
        f"{_NAMES[equal['shape']]} of {equal['budget']} ({equal['verified']:.1f}) has most: "
        f"{interval(equal, 'tokens'):.2f}, a difference of {found.lead('tokens', equal, own):+.2f} (paired)."
    )


# The clock ------------------------------------------------------------------------------------------


def _speed(drafter: str, cells: pd.DataFrame, found: BudgetNumbers, times: pd.DataFrame, about: About) -> Section:
    kind = "simulated speedup" if about.simulated else "predicted speedup"
    # A verified token's cost against what it may cost, where the gain is largest and at the largest budget.
    largest = cells[cells["budget"] == cells["budget"].max()]
    priced = cells.loc[[cells["speedup"].idxmax(), largest["speedup"].idxmin()]].drop_duplicates(["shape", "budget"])
    listed = [
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
        _fastest(drafter, cells, found, kind),
        f"At the same number of draft nodes: {'; '.join(_against_chain(cells, 'speedup'))}.",
        f"A draft node costs {'; '.join(listed)}. Above its break-even price a draft costs more calls than it saves.",
        how,
    )
    caption = (
        f"{counted(found.compared.prompts, 'prompt')} of {about.prompts}. Rounds by replay, seconds "
        f"{about.source}; {_bars(cells, 'speedup')}."
    )
    title = f"{kind.capitalize()} at equal budgets, drafter {drafter}\n{about.title}"
    figure = _over_budget(cells, "speedup", label=kind, title=title, caption=caption)
    ordered = cells.sort_values(["budget", "shape"])
    shown = pd.DataFrame(
        {
            "budget": ordered["budget"],
            "structure": ordered["shape"],
            kind: printed(ordered, "speedup", ".2f"),
            "over the chain": _leads(ordered, "speedup"),
            "price": printed(ordered, "price", ".3f"),
            "break-even": printed(ordered, "break_even", ".3f"),
        }
    )
    caption = (
        f"{kind.capitalize()}, with the paired difference to the chain; price of a draft node in plain calls, and the "
        "price at which calls alone would take all that the accepted tokens give"
    )
    title = f"{kind.capitalize()} of chain, rows and tree: {drafter}"
    return Section(title, text, ((caption, shown),), ((f"speedup_{drafter}", figure),))


def _fastest(drafter: str, cells: pd.DataFrame, found: BudgetNumbers, kind: str) -> str:
    """Give the answer: the fastest of all, and its lead over the fastest chain."""
    best, own = _best(cells, "speedup"), _best(cells[cells["shape"] == REFERENCE], "speedup")
    longest = _best(cells, "tokens")
    said = (
        f"On the clock {_NAMES[best['shape']]} of {best['budget']} nodes {'are' if best['shape'] == 'rows' else 'is'} "
        f"fastest with {drafter}: a {kind} of {interval(best, 'speedup'):.2f}"
    )
    if best["shape"] != REFERENCE:
        lead = found.lead("speedup", best, own)
        said += f", {lead:+.2f} (paired) over the fastest chain, of {own['budget']} nodes"
        said += ", which is within chance" if lead.known and lead.low <= 0 else ""
    if (longest["shape"], longest["budget"]) != (best["shape"], best["budget"]):
        said += (
            f"; the most tokens per call, {longest['tokens']:.2f} by {_NAMES[longest['shape']]} of "
            f"{longest['budget']}, make {longest['speedup']:.2f}"
        )
    return said + "."


@style.in_style
def _over_budget(cells: pd.DataFrame, name: str, *, label: str, title: str, caption: str) -> Figure:
    """Draw a line for each structure over the number of draft nodes, and below it the paired differences to the chain.

    Args:
        cells: lines of `BudgetNumbers.cells`, of one drafter.
        name: "tokens" or "speedup".
    """
    figure, panels = style.new_panels(title, caption, 6.4, rows=2, sharex=True, height_ratios=[3, 2])
    values, leads = panels[:, 0]
    pictures.structure_lines(values, cells, name)
    pictures.structure_lines(leads, cells[cells["shape"] != REFERENCE], f"{name}_lead")
    pictures.level(values, 1.0, "plain decoding")
    pictures.level(leads, 0.0)
    pictures.log_axis(leads, sorted(set(cells["budget"])), "draft nodes that the structure asks for")
    leads.set_ylabel("over the chain")
    values.set_ylabel(label)
    style.legend_above(values, 3)
    return figure

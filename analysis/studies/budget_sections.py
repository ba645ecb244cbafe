"""What study `equal_budget` says: which of chain, rows and tree earns most from the same number of draft nodes, in
tokens per call and on the clock.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..figures.plots import counted
from ..findings import About, Findings
from ..sections import Section
from .budget import REFERENCE, Budgets, budgets
from .budget_plots import over_budget
from .replayed import bracket, origin

_NAMES = {"chain": "the chain", "rows": "rows", "tree": "the tree"}


def findings(tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """From all tables of the study but `accuracy`."""
    found = budgets(
        tables["replay"],
        tables["choices"],
        tables["block_times"],
        tables["host_times"],
        about.replicates,
        about.seed,
    )
    sections: list[Section] = []
    for drafter, cells in found.cells.groupby("drafter", sort=True):
        sections.append(_tokens(str(drafter), cells, found, tables, about))
        sections.append(_speed(str(drafter), cells, found, tables["block_times"], about))
    return Findings(tuple(sections), _metrics(found.cells), _curves(found.cells))


def _metrics(cells: pd.DataFrame) -> dict[str, float]:
    """`budget.<drafter>.<shape>.<what>.<budget>`, the lead with its interval."""
    metrics: dict[str, float] = {}
    for row in cells.to_dict("records"):
        name = f"budget.{row['drafter']}.{row['shape']}"
        n = row["budget"]
        metrics |= {
            f"{name}.tokens_per_call.{n}": row["tokens"],
            f"{name}.speedup.{n}": row["speedup"],
            f"{name}.nodes_verified.{n}": row["verified"],
        }
        if row["shape"] != REFERENCE:
            metrics |= {
                f"{name}.lead.{n}": row["tokens_lead"],
                f"{name}.lead.{n}.ci_low": row["tokens_lead_low"],
                f"{name}.lead.{n}.ci_high": row["tokens_lead_high"],
            }
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}


def _curves(cells: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Over budgets."""
    curves: dict[str, dict[int, float]] = {}
    for (drafter, shape), part in cells.groupby(["drafter", "shape"]):
        for name, column in (("tokens_per_call", "tokens"), ("speedup", "speedup")):
            points = part.dropna(subset=column)
            curves[f"curve.budget.{name}.{drafter}.{shape}"] = dict(
                zip(points["budget"].tolist(), points[column].tolist(), strict=True)
            )
    return curves


# Tokens per call ------------------------------------------------------------------------------------


def _tokens(
    drafter: str, cells: pd.DataFrame, found: Budgets, tables: Mapping[str, pd.DataFrame], about: About
) -> Section:
    text = (
        f"At the same number of draft nodes, {drafter}: {'; '.join(_against_chain(cells, 'tokens'))}.",
        _most(cells, found),
        _merged(cells),
        "The shape of rows and the tree are chosen by the prompts of one half and judged on the other, both ways "
        "round, so that taking the best of many flatters neither; a tree is the best one (THEORY 3) for the accuracy "
        "of each rank on the half that chose it.",
        *origin(found.rows, tables["skipped"], about.title, about.prompts),
    )
    prompts = found.sums.prompts
    figure = over_budget(
        cells,
        "tokens",
        label="tokens per call",
        title=f"Tokens per call at equal budgets, drafter {drafter}\n{about.title}",
        caption=f"{counted(prompts, 'prompt')} of {about.prompts}, greedy texts replayed, exact for these; "
        f"{_bars(cells, 'tokens')}. Below: paired differences, surer than the intervals above suggest.",
    )
    return Section(
        f"Tokens per call of chain, rows and tree: {drafter}",
        text,
        tables=(("Tokens per call, with the paired difference to the chain", _tokens_table(cells, found)),),
        figures=((f"tokens_per_call_{drafter}", figure),),
    )


def _bars(cells: pd.DataFrame, name: str) -> str:
    known = np.isfinite(cells[f"{name}_low"]).any()
    return "bars: 95% prompt-bootstrap intervals" if known else "no intervals from one prompt"


def _against_chain(cells: pd.DataFrame, name: str) -> list[str]:
    """For each other shape, at how many budgets it beats the chain beyond chance, and by how much."""
    said = []
    for shape, part in cells[cells["shape"] != REFERENCE].groupby("shape", sort=True):
        better = int((part[f"{name}_lead_low"] > 0).sum())
        worse = int((part[f"{name}_lead_high"] < 0).sum())
        verbs = "beats" if shape == "tree" else "beat", "loses" if shape == "tree" else "lose"
        words = f"{_NAMES[str(shape)]} {verbs[0]} the chain beyond chance at {better} of {counted(len(part), 'budget')}"
        if 0 < better < len(part):
            words += f" ({', '.join(str(n) for n in part.loc[part[f'{name}_lead_low'] > 0, 'budget'])} nodes)"
        if worse:
            words += f" and {verbs[1]} to it at {worse}"
        ends = part.sort_values(f"{name}_lead").iloc[[0, -1]]
        listed = [_lead(row, name) for _, row in ends.drop_duplicates("budget").iterrows()]
        said.append(f"{words}; the difference goes from {' to '.join(listed)}")
    return said


def _lead(row: pd.Series, name: str) -> str:
    interval = bracket(row[f"{name}_lead_low"], row[f"{name}_lead_high"])
    return f"{row[f'{name}_lead']:+.2f}{interval} at {row['budget']} nodes"


def _most(cells: pd.DataFrame, found: Budgets) -> str:
    """The best of all; and, since chains end where their n-gram does, the best that verifies no more than they do."""
    best = cells.loc[cells["tokens"].idxmax()]
    chain = cells[cells["shape"] == REFERENCE]
    own = chain.loc[chain["tokens"].idxmax()]
    sentence = f"Most tokens per call: {_value(best, 'tokens')} by {_NAMES[best['shape']]} of {best['budget']} nodes"
    if best["shape"] == REFERENCE:
        return sentence + "."
    sentence += f"; the best chain, of {own['budget']}, has {_value(own, 'tokens')}"
    others = cells[(cells["shape"] != REFERENCE) & (cells["verified"] <= own["verified"])]
    if others.empty:
        return sentence + "."
    equal = others.loc[others["tokens"].idxmax()]
    difference = found.tokens[:, [equal.name]] - found.tokens[:, [own.name]]
    low, high = (float(end[0]) for end in found.sums.interval(difference))
    return (
        f"{sentence} with {own['verified']:.1f} nodes verified in the mean round. Of shapes that verify no more, "
        f"{_NAMES[equal['shape']]} of {equal['budget']} ({equal['verified']:.1f}) has most: {_value(equal, 'tokens')}, "
        f"a difference of {difference[0, 0]:+.2f}{bracket(low, high)} (paired)."
    )


def _merged(cells: pd.DataFrame) -> str:
    """How much of the budget is verified."""
    largest = cells[cells["budget"] == cells["budget"].max()].set_index("shape")["verified"]
    listed = ", ".join(f"{_NAMES[str(shape)]} {value:.1f}" for shape, value in largest.items())
    return (
        f"Verified are fewer nodes than the budget of {cells['budget'].max()}: {listed} in the mean round. Rows that "
        "begin alike share nodes, n-grams that run into the end of the text are short, and nothing is offered beyond "
        "a text's end."
    )


def _value(row: pd.Series, name: str) -> str:
    return f"{row[name]:.2f}{bracket(row[f'{name}_low'], row[f'{name}_high'])}"


def _tokens_table(cells: pd.DataFrame, found: Budgets) -> pd.DataFrame:
    chosen = found.shapes().set_index(["drafter", "shape", "budget"])["variant"]
    rows = []
    for row in cells.sort_values(["budget", "shape"]).to_dict("records"):
        rows.append(
            {
                "budget": row["budget"],
                "shape": row["shape"],
                "chosen": chosen[row["drafter"], row["shape"], row["budget"]],
                "nodes verified": f"{row['verified']:.1f}",
                "tokens per call": _value(pd.Series(row), "tokens"),
                "over the chain": _over(row, "tokens"),
            }
        )
    return pd.DataFrame(rows)


def _over(row: Mapping[str, float], name: str) -> str:
    if row["shape"] == REFERENCE:
        return ""
    return f"{row[f'{name}_lead']:+.2f}{bracket(row[f'{name}_lead_low'], row[f'{name}_lead_high'])}"


# The clock ------------------------------------------------------------------------------------------


def _speed(drafter: str, cells: pd.DataFrame, found: Budgets, times: pd.DataFrame, about: About) -> Section:
    kind = "simulated speedup" if about.simulated else "predicted speedup"
    text = (
        _fastest(drafter, cells, found, kind),
        f"At the same number of draft nodes: {'; '.join(_against_chain(cells, 'speedup'))}.",
        _price(cells),
        _how(times, about),
    )
    figure = over_budget(
        cells,
        "speedup",
        label=kind,
        title=f"{kind.capitalize()} at equal budgets, drafter {drafter}\n{about.title}",
        caption=f"{counted(found.sums.prompts, 'prompt')} of {about.prompts}. Rounds by replay, seconds "
        + ("simulated by a cost model" if about.simulated else "from measured calls, drafts and commits")
        + f"; {_bars(cells, 'speedup')}.",
    )
    return Section(
        f"{kind.capitalize()} of chain, rows and tree: {drafter}",
        text,
        tables=(
            (
                f"{kind.capitalize()}, with the paired difference to the chain; price of a draft node in plain calls, "
                "and the one at which calls alone would take all that the accepted tokens give",
                _speed_table(cells, kind),
            ),
        ),
        figures=((f"speedup_{drafter}", figure),),
    )


def _fastest(drafter: str, cells: pd.DataFrame, found: Budgets, kind: str) -> str:
    """The answer: the fastest of all, and its lead over the fastest chain."""
    best = cells.loc[cells["speedup"].idxmax()]
    chain = cells[cells["shape"] == REFERENCE]
    own = chain.loc[chain["speedup"].idxmax()]
    longest = cells.loc[cells["tokens"].idxmax()]
    said = (
        f"On the clock {_NAMES[best['shape']]} of {best['budget']} nodes is fastest with {drafter}: a {kind} of "
        f"{_value(best, 'speedup')}"
    )
    if best["shape"] == "rows":
        said = said.replace(" is fastest", " are fastest")
    if best["shape"] != REFERENCE:
        difference = found.speedup[:, [best.name]] - found.speedup[:, [own.name]]
        low, high = (float(end[0]) for end in found.sums.interval(difference))
        said += (
            f", {difference[0, 0]:+.2f}{bracket(low, high)} (paired) over the fastest chain, of {own['budget']} nodes"
        )
        if np.isfinite(low):
            said += "" if low > 0 else ", which is within chance"
    if (longest["shape"], longest["budget"]) != (best["shape"], best["budget"]):
        said += (
            f"; the most tokens per call, {longest['tokens']:.2f} by {_NAMES[longest['shape']]} of "
            f"{longest['budget']}, make {longest['speedup']:.2f}"
        )
    return said + "."


def _price(cells: pd.DataFrame) -> str:
    """What a verified token costs against what it may cost, where the gain is largest and at the largest budget."""
    best = cells.loc[cells["speedup"].idxmax()]
    largest = cells[cells["budget"] == cells["budget"].max()]
    worst = largest.loc[largest["speedup"].idxmin()]
    listed = [
        f"{row['price']:.3f} of a plain call in {_NAMES[row['shape']]} of {row['budget']}, which breaks even at "
        f"{row['break_even']:.3f}"
        for _, row in pd.DataFrame([best, worst]).drop_duplicates(["shape", "budget"]).iterrows()
    ]
    return f"A draft node costs {'; '.join(listed)}. Above its break-even price a draft costs more calls than it saves."


def _how(times: pd.DataFrame, about: About) -> str:
    contexts = ", ".join(f"{context:,}" for context in sorted(times["context"].unique()))
    if about.simulated:
        return "All seconds are a cost model's, of calls, drafts and commits alike: nothing was timed."
    calls = int(times.groupby(["w", "context"])["call"].nunique().max())
    return (
        f"Seconds of a call: t(n) of packed calls on chains behind {contexts} cached tokens, medians of "
        f"{counted(calls, 'call')}; of drafts and commits: medians of a short live run in every shape and budget. "
        "Everything between is on straight lines."
    )


def _speed_table(cells: pd.DataFrame, kind: str) -> pd.DataFrame:
    rows = []
    for row in cells.sort_values(["budget", "shape"]).to_dict("records"):
        rows.append(
            {
                "budget": row["budget"],
                "shape": row["shape"],
                kind: _value(pd.Series(row), "speedup"),
                "over the chain": _over(row, "speedup"),
                "price": f"{row['price']:.3f}",
                "break-even": f"{row['break_even']:.3f}",
            }
        )
    return pd.DataFrame(rows)

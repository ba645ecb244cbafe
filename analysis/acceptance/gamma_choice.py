"""Says which gamma each model would have chosen before serving, and what that choice was worth."""

import pandas as pd

from ..comparisons import best_in_words
from ..figures import run_figures
from ..read.runs import Run
from ..rounds import drafted
from ..sections import Section

NAMES = {  # no replay among them: it reads the very texts that were measured
    "capped_geometric": "capped geometric",
    "position": "by position, fitted to the other prompts",
    "predicted": "advice, before the run",
}


def gamma_choice(run: Run) -> Section:
    """Set measured speedup by gamma beside what was foretold: by the capped geometric with the alpha of the target's
    own text, by acceptance at each position on prompts that it was not fitted to, and by advice.
    """
    measured, texts = run.points("speedup"), drafted(run.arms().texts)
    lines = {name: values for name, values in run.lines("speedup").items() if name in NAMES}
    columns = {"value": "measured", "value_low": "ci_low", "value_high": "ci_high"}
    table = measured.set_index("gamma")[list(columns)].rename(columns=columns)
    for name, values in lines.items():
        table[NAMES[name]] = pd.Series(values, dtype=float)
    caption = "Speedup by gamma: measured with 95% prompt-bootstrap intervals, and foretold"
    seen = f"γ {table['measured'].idxmax()} is fastest as measured"
    if formula := lines.get("capped_geometric"):
        seen += f"; the formula would have chosen γ {max(formula, key=formula.__getitem__)}"
    figure = run_figures.curve(
        measured,
        lines,
        title=f"{seen}\n{run.title}",
        ylabel="speedup over the baseline",
        basis=run_figures.Basis(
            texts["prompt"].nunique(), int(texts["rounds"].sum()), run.metrics.get("account/alpha")
        ),
        primary_gamma=run.primary_gamma,
    )
    tables = ((caption, table.reset_index().round(3)),)
    words, unclear = choice_in_words(table), best_in_words(run.summary()["arms"])
    words += f" As measured {unclear}." if unclear else ""
    return Section(run.title, (words,), tables, (("gamma_choice", figure),)).beginning(run.refuted)


def choice_in_words(table: pd.DataFrame) -> str:
    """Name the best gamma as measured and by each other column, with the measured speedup that its choice gives.

    table: index gamma; measured, ci_low, ci_high, a column per model.
    """
    best = int(table["measured"].idxmax())
    speedup = float(table.at[best, "measured"])
    measured = f"gamma {best} is fastest as measured (speedup {speedup:.3f})"
    if speedup < 1:
        measured += ", and slower than no drafter at all"
    choices = []
    for name in table.columns.drop(["measured", "ci_low", "ci_high"]):
        foretold = table[name].dropna()
        if foretold.empty:
            continue
        chosen = int(foretold.idxmax())
        promise = f"promises {foretold[chosen]:.3f}"
        got = float(table.at[chosen, "measured"])
        if chosen == best:
            choices.append(f"{name} chooses it too ({promise})")
        else:
            choices.append(f"{name} chooses gamma {chosen} ({promise}, gives {got:.3f}, {1 - got / speedup:.1%} less)")
    advice = NAMES["predicted"]
    lacking = "" if advice in table and table[advice].notna().any() else " No advice was asked for before this run."
    return f"{'; '.join([measured, *choices])}.{lacking}"

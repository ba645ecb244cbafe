"""The textbook formula against what was measured: the one definition of the gap, for runs, replays and imports.

The formula is the capped geometric, tokens per round Omega(alpha, gamma) with alpha the mean over positions of the
text (Leviathan et al. 2023, equation 1). Its error is what it says over what was measured, less 1. Both sides are
resampled together, prompt by prompt: an interval of the measured value alone leaves out that alpha varies with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

import pandas as pd

from ..comparisons import interval
from ..findings import counted
from ..intervals import Interval, too_few
from .gap_account import Account

FORMULA_ERRORS = ("tokens_error", "speedup_error")  # intervals of an account, by gamma in `summary.json`
NEGLIGIBLE = 5e-4  # errors below would be printed as 0.0%: sure or not, they are none
CAUSES = {  # factors between the formula's tokens per round and the measured ones
    "offered": "fewer tokens offered than gamma",
    "dependence": "dependence between positions and differences between texts",
    "drift": "drift of the drafter, or chance",
}
NO_REPLAY = "dependence, drift or chance"


@dataclass(frozen=True)
class FormulaGap:
    """The formula's tokens per round at one gamma against the measured ones.

    Attributes:
        alpha_of_text: False if alpha was fitted to the same rounds, so that the level of the formula is not tested.
        omega: what the formula says.
        error: omega over measured, less 1, both resampled together.
        factors: from omega to the measured value, in the order of the account: their product is the one over the other.
        replayed: True if a replay tells dependence and drift apart.
    """

    gamma: int
    alpha: float
    alpha_of_text: bool
    omega: float
    measured: Interval
    error: Interval
    factors: Mapping[str, Interval]
    replayed: bool = True


def account_gap(account: Account) -> FormulaGap:
    """Return the part of an account that is about acceptance."""
    intervals = account.intervals
    return FormulaGap(
        account.gamma,
        account.alpha,
        account.alpha_of_text,
        account.factors["omega"],
        intervals["tokens_per_round"],
        intervals["tokens_error"],
        {name: intervals[name] for name in CAUSES if name in account.factors},
        "drift" in account.factors,
    )


def formula_verdict(gap: FormulaGap) -> str:
    """Say how far the formula is from the measured tokens per round, how sure that is, and what takes most away."""
    given = f"alpha {gap.alpha:.3f}" + ("" if gap.alpha_of_text else ", fitted to the same rounds")
    said = (
        f"{gap.measured:.3f} tokens per round at gamma {gap.gamma}; the textbook formula says {gap.omega:.3f} at "
        f"{given}, an error of {gap.error:+.1%}"
    )
    if not gap.error.known:
        return f"{said}. Without an interval no difference can be called real."
    if few := too_few(gap.error.prompts):
        return f"{said}; {few}."
    if gap.error.contains(0.0):
        return f"{said}, no more than chance."
    if abs(gap.error.estimate) < NEGLIGIBLE:
        return f"{said}: the formula is right, whatever it rests on."
    lost = {name: value for name, value in gap.factors.items() if (value.estimate < 1) == (gap.error.estimate > 0)}
    verb = "over-predicts" if gap.error.estimate > 0 else "under-predicts"
    said += f": the formula {verb}, by more than chance"
    if not lost:
        return f"{said}."
    most = max(lost, key=lambda name: abs(lost[name].estimate - 1))
    cause = NO_REPLAY if most == "dependence" and not gap.replayed else CAUSES[most]
    return f"{said}. Most of it is {cause}, a factor of {lost[most]:.3f}."


def curve_verdict(table: pd.DataFrame, quantity: str) -> str:
    """Say at which gammas the formula misses, and by how much.

    Args:
        table: gamma; error, error_low and error_high (formula over measured, less 1, resampled together).
        quantity: what was measured, such as "tokens per round".
    """
    subject = quantity if quantity.startswith("simulated") else f"measured {quantity}"
    known = table.dropna(subset=["error"])
    if known.empty:
        return f"There is no formula to set the {subject} against."
    worst = known.loc[known["error"].abs().idxmax()]
    size = f"{interval(worst, 'error'):+.1%} at gamma {worst['gamma']:g}"
    tested = known.dropna(subset=["error_low", "error_high"])
    if tested.empty:
        return f"Without intervals no difference can be called real; the formula's largest error is {size}."
    missed = tested["error"].abs() >= NEGLIGIBLE
    over, under = (tested[missed & sign] for sign in (tested["error_low"] > 0, tested["error_high"] < 0))
    mean = known["error"].mean()
    if over.empty and under.empty:
        return (
            f"The textbook formula agrees with the {subject} at {_gammas(tested, len(tested))}, as far as "
            f"prompts can tell: by {size} at most."
        )
    sides = [
        f"{verb} at {_gammas(part, len(tested))}"
        for verb, part in (("over-predicts", over), ("under-predicts", under))
        if len(part)
    ]
    average = f", {mean:+.1%} in the mean over {len(known)} gammas" if len(known) > 1 else ""
    return (
        f"Against the {subject} the textbook formula {' and '.join(sides)}, by more than chance; its error "
        f"is {size} at most{average}."
    )


def _gammas(part: pd.DataFrame, of: int) -> str:
    if len(part) == of:
        return "gamma " + f"{part['gamma'].iloc[0]:g}" if of == 1 else f"each of {counted(of, 'gamma')}"
    return f"gamma {', '.join(f'{gamma:g}' for gamma in part['gamma'])}"


def error_columns(values: Mapping[str, float], name: str) -> dict[str, float]:
    """Return error, error_low and error_high of the metric `name` with its bounds; nothing where it is missing."""
    found = Interval.from_metrics(values, name)
    if isnan(found.estimate):
        return {}
    return {"error": found.estimate, "error_low": found.low, "error_high": found.high}

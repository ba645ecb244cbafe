"""The gap account in sentences: what the capped geometric misses, whether speculation pays, and what costs most.

The capped geometric is the papers' formula, tokens per round Omega(alpha, gamma) with alpha the mean over positions of
the text (Leviathan et al. 2023, equation 1). Its error is what it says over what was measured, less 1. Both sides are
resampled together, prompt by prompt: an interval of the measured value alone leaves out that alpha varies with it.
"""

import pandas as pd

from ..comparisons import interval
from ..intervals import Interval, too_few
from ..sections import counted
from .gap_account import EXACT, Account

CAPPED_GEOMETRIC = "capped geometric: every draft token is accepted with the same chance"
FORMULA_ERRORS = ("tokens_error", "speedup_error")  # intervals of an account, by gamma in `summary.json`
NEGLIGIBLE = 5e-4  # errors below would be printed as 0.0%: sure or not, they are none
_OF_ACCEPTANCE = ("offered", "dependence", "drift")  # factors between its tokens per round and the measured
_PROMISED = ("omega", "draft")  # what the capped geometric itself counts
_NETTED = ("overhead", "baseline")  # in one for sentences: plain decoding runs the same loop


def of_drafts(account: Account, asked: str, offered: str) -> str:
    """Return what the capped geometric says of the drafts that were asked for and, if fewer were offered, of those."""
    said = f"{asked} for {counted(account.gamma, 'draft token')} a round"
    if _all_offered(account):
        return said
    return f"{said}, {offered} for the {account.value('offered_tokens'):.1f} that were offered"


def _all_offered(account: Account) -> bool:
    """Return whether rounds offered gamma tokens, up to rounding in print."""
    return f"{account.value('offered_tokens'):.1f}" == f"{account.gamma:.1f}"


def formula_verdict(account: Account) -> str:
    """Say how far the capped geometric is from the measured tokens per round, how sure that is, and what costs most."""
    names = ("tokens_per_round", "tokens_error", "offered_error")
    measured, error, offered = (account.intervals[name] for name in names)
    given = f"{account.alpha:.3f}" + ("" if account.alpha_of_text else ", fitted to the same rounds")
    errors = of_drafts(account, f"{error:+.1%}", f"{offered:+.1%}")
    said = (
        f"{measured:.3f} tokens per round at gamma {account.gamma}; the capped geometric, which accepts every draft "
        f"token with the same chance (alpha {given}), says {account.factors['omega']:.3f}, an error of {errors}"
    )
    if nothing_gained(account) and abs(error.estimate) < NEGLIGIBLE:
        return (
            f"{measured:.3f} tokens per round at gamma {account.gamma}: no draft token saved a call of the target, as "
            f"the capped geometric says of an alpha of {given}."
        )
    if not error.known:
        return f"{said}. Without an interval no difference can be called real."
    if few := too_few(error.prompts):
        return f"{said}; {few}."
    if error.contains(0.0):
        return f"{said}, no more than chance at that gamma."
    if abs(error.estimate) < NEGLIGIBLE:
        return f"{said}: it is right, whatever it rests on."
    factors = {name: account.intervals[name] for name in _OF_ACCEPTANCE if name in account.intervals}
    lost = {name: value for name, value in factors.items() if (value.estimate < 1) == (error.estimate > 0)}
    verbs = ["over-predicts" if each.estimate > 0 else "under-predicts" for each in (error, offered)]
    said += f": it {verbs[0]}, by more than chance"
    if not _all_offered(account):
        alike = "both times" if verbs[0] == verbs[1] else f"and {verbs[1]} for what was offered"
        said += "; for what was offered by no more than chance" if offered.contains(0.0) else f", {alike}"
    if not lost:
        return f"{said}."
    most = max(lost, key=lambda name: abs(lost[name].estimate - 1))
    cause = account.named(most).cause.partition(" (")[0]
    return f"{said}. Most of it is {cause}, a factor of {lost[most]:.3f}."


def curve_verdict(table: pd.DataFrame, quantity: str) -> str:
    """Say at which gammas the capped geometric misses a measured `quantity`, such as "tokens per round", and by how
    much. table: gamma; error, error_low and error_high (formula over measured, less 1, resampled together).
    """
    subject = quantity if quantity.startswith("simulated") else f"measured {quantity}"
    known = table.dropna(subset=["error"])
    if known.empty:
        return f"There is no capped geometric to set the {subject} against."
    worst = known.loc[known["error"].abs().idxmax()]
    size = f"{interval(worst, 'error'):+.1%} at gamma {worst['gamma']:g}"
    least = known.loc[known["error"].abs().idxmin()]
    smallest = f", and least {interval(least, 'error'):+.1%} at gamma {least['gamma']:g}" if len(known) > 1 else ""
    tested = known.dropna(subset=["error_low", "error_high"])
    if tested.empty:
        return f"Without intervals no difference can be called real; the capped geometric errs most by {size}."

    def where(part: pd.DataFrame) -> str:
        if len(part) == len(tested) > 1:
            return f"each of {counted(len(part), 'gamma')}"
        return f"gamma {', '.join(f'{gamma:g}' for gamma in part['gamma'])}"

    missed = tested["error"].abs() >= NEGLIGIBLE
    over, under = (tested[missed & sign] for sign in (tested["error_low"] > 0, tested["error_high"] < 0))
    if over.empty and under.empty:
        return (
            f"The capped geometric agrees with the {subject} at {where(tested)}, as far as "
            f"prompts can tell: by {size} at most{smallest}."
        )
    sides = [
        f"{verb} at {where(part)}" for verb, part in (("over-predicts", over), ("under-predicts", under)) if len(part)
    ]
    average = f", {known['error'].mean():+.1%} in the mean over {len(known)} gammas" if len(known) > 1 else ""
    return (
        f"Against the {subject} the capped geometric {' and '.join(sides)}, by more than chance; its error "
        f"is {size} at most{smallest}{average}."
    )


def nothing_gained(account: Account) -> bool:
    """Return whether every round committed one token, as plain decoding does: no factor explains anything then."""
    return account.value("tokens_per_round") <= 1 + EXACT


def cost_alone(account: Account) -> str:
    """Say in a clause what rounds took that gained nothing."""
    g, v = (f"{account.intervals[name]:.3f}" for name in ("g", "v"))
    return (
        f"no draft token saved a call of the target, and a round took {g} of a bare call to draft and {v} to verify "
        "for its one token"
    )


def unsettled(speedup: Interval, noise: float = 0.0) -> str:
    """Say in a clause why a speedup does not settle whether speculation pays; "" where it does.

    Nothing is claimed of fewer than `FEWEST` prompts, without an interval, and within the noise. speedup: measured, or
    predicted before a run; noise: `null/floor` of the run, 0 without a null control.
    """
    if few := too_few(speedup.prompts):
        return few
    if not speedup.known:
        return "its speedup has no interval"
    if speedup.contains(1.0):
        return "the interval of its speedup contains 1"
    if max(speedup.estimate, 1 / speedup.estimate) <= 1 + noise:
        return f"its speedup is within the noise of {noise:.1%} that plain decoding has against itself"
    return ""


def causes(account: Account) -> dict[str, Interval]:
    """Return the factors between the promised speedup and the measured one, whose product is the one over the other:
    offered, dependence, drift, verify and `loop`, the loop's overhead net of the baseline's own.
    """
    factors = {name: account.intervals[name] for name in account.factors if name not in (*_PROMISED, *_NETTED)}
    return factors | ({"loop": account.intervals["loop"]} if set(_NETTED) & set(account.factors) else {})


def losses(account: Account) -> tuple[str, str]:
    """Return the names of what costs most among the `causes`, "" where no factor is below 1, and of what surely does:
    the largest loss whose interval leaves out 1, or the largest of all where it has no interval.
    """
    factors = causes(account)
    largest = min(factors, key=lambda name: factors[name].estimate, default="")
    if not largest or factors[largest].estimate >= 1 - EXACT:
        return "", ""
    if not factors[largest].contains(1.0):
        return largest, largest
    sure = [name for name, value in factors.items() if value.contains(1.0) is False and value.estimate < 1]
    return largest, min(sure, key=lambda name: factors[name].estimate, default="")


def verdict(account: Account, simulated: bool = False, noise: float = 0.0, refuted: bool = False) -> str:
    """Say in one sentence whether speculation pays, how far that is from the capped geometric, and what the gap is.

    The promise counts the drafts that were paid for, so drafting is in it and not in the gap. What the gap is made of
    are the `causes`; one whose interval contains 1 is called not significant, and a gain is named only if it is
    significant or has no interval.

    simulated: times come from a cost model; noise: see `unsettled`; refuted: outputs are not the target's own, so that
    nothing is said of whether it pays.
    """
    formula, g = account.intervals["formula"], account.intervals["g"]
    if account.doubt:
        return f"No verdict on speed: {account.doubt}; what is said of tokens holds."
    if refuted:
        outcome = "No verdict is given, because outputs are refuted"
    elif doubt := unsettled(account.intervals["speedup"], noise):
        outcome = f"Whether speculation pays is not settled, {doubt}"
    else:
        outcome = "Speculation pays" if account.speedup > 1 else "Speculation does not pay"
    subject = f"{outcome}: {'simulated ' * simulated}speedup {explained(account.intervals['speedup'])}"
    if nothing_gained(account):
        return f"{subject}; {cost_alone(account)}."
    promised = (
        f"{account.factors['omega']:.3f} tokens per round at gamma {account.gamma} and alpha {account.alpha:.3f}, and "
        f"drafts that take {g.estimate:.3f} of a bare call"
    )
    parts = [
        f"{subject}; the capped geometric promises {formula.estimate:.3f}, an error of "
        f"{account.intervals['speedup_error']:+.1%} ({promised})"
    ]
    largest, surest = losses(account)
    parts.append(f"what costs most is {_named(account, largest)}" if largest else "no factor costs anything")
    if surest not in ("", largest):
        parts.append(f"the largest significant loss is {_named(account, surest)}")
    if largest:
        parts.append(_without(account, surest) if surest else "no loss is significant")
    factors = causes(account)
    best = max(factors, key=lambda name: factors[name].estimate, default="")
    if best and factors[best].estimate > 1 + EXACT and not factors[best].contains(1.0):
        parts.append(f"what gains most is {_named(account, best, account.named(best).gaining)}")
    if account.speedup < 1 and "draft" in account.factors and formula.estimate < 1:
        free = account.speedup * (1 + g.estimate)
        either = "by the capped geometric it would not pay either"
        parts.append(f"{either}; drafts that took no time would make it {free:.3f}")
    return "; ".join(parts) + "."


def _without(account: Account, factor: str) -> str:
    """Say what the speedup would be if the factor were 1."""
    without = account.speedup / account.value(factor)
    if account.speedup > 1:
        return f"without it the speedup would be {without:.3f}"
    if without > 1:
        return f"without it speculation would pay, with {without:.3f}"
    return f"even without it speculation would not pay, with {without:.3f}"


def _named(account: Account, factor: str, words: str = "") -> str:
    """Return the factor by its cause or other words, with its interval, and a remark where that settles nothing."""
    value = account.intervals[factor]
    unsure = ", not significant because the interval contains 1" if value.contains(1.0) else ""
    return f"{words or account.named(factor).cause}, `{factor}` {value:.3f}{unsure}"


def time_split(account: Account) -> str:
    """Say what a round's time is made of, which no order of factors changes, what t(1) is, and the loop's net cost."""
    g, v, o = (f"{account.intervals[name]:.3f}" for name in ("g", "v", "o"))
    total = sum(account.time.values())
    weights = ""
    if "experts" in account.factors:
        weights = (
            f" Verifications read x = {account.intervals['x']:.3f} times the weights of a call on one token, because "
            "their tokens choose more experts: a call that only read weights would have v = x."
        )
    return (
        f"A round takes {total:.3f} times a bare call of the target, t(1) = {1e3 * account.t1_s:.4g} ms, the mean call "
        f"on one token in plain decoding of these prompts: verification v = {v}, drafting g = {g}, the rest o = {o}. "
        f"The baseline's steps have a rest of their own: net of it the loop's time is a factor of "
        f"{account.intervals['loop']:.3f} (`overhead` x `baseline`).{weights}"
    )


def explained(value: Interval) -> str:
    """Return the interval, or the estimate with the reason why enough prompts give none."""
    if value.known or too_few(value.prompts):
        return f"{value:.3f}"
    return f"{value.estimate:.3f} (no interval: undefined in too many replicates)"

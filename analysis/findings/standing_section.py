"""Sections that set a run beside the theory of Leviathan et al. (2211.17192): where it stands in their pictures, and a
few of its rounds to scale.
"""

from math import isfinite

from specdec.errors import UsageError

from ..figures import theory_figures
from ..figures.theory_figures import Standing, standing_in_words
from ..figures.timeline import stretch, timeline
from ..read.runs import Run
from ..sections import Section, counted

STANDING, TIMELINE = "Where this run stands", "A few rounds, to scale"


def standing_section(run: Run) -> Section:
    """Mark the run's alpha, c and gamma in the pictures of the paper: best gamma, speedup, operations, the oracle.
    UsageError if the run has no alpha, because nothing was ever proposed, or did not finish.
    """
    metrics, gamma = run.metrics, run.primary_gamma
    if gamma is None or "account/alpha" not in metrics or "cost/c" not in metrics:
        raise UsageError(f"{run.source} has no alpha and c to mark: nothing was proposed, or the run did not finish.")
    here = Standing(
        metrics["account/alpha"],
        gamma,
        metrics["cost/c"],
        metrics.get("cost/c_ops", 0.0),
        run.interval("speedup"),
        metrics.get("operations/measured", float("nan")),
    )
    measured, timed = here.speedup, run.curves.get("curve/speedup/measured", {})
    seen = f"Measured: {measured:.3f} at γ {gamma}" if isfinite(measured.estimate) else "Nothing was timed"
    if timed.keys() - {gamma}:
        fastest = max(timed, key=timed.__getitem__)
        other = f", and {timed[fastest]:.3f} at γ {fastest}" if fastest != gamma else ""
        seen += f"{other}, the fastest of the {len(timed)} measured"
    text = (
        *standing_in_words(here),
        f"{seen}. The capped geometric assumes that a call on γ + 1 tokens takes as long as on a single one, that a "
        "round is draft and verification alone, and that every token is equally likely to be accepted; the account "
        "says what each of these costs.",
    )
    figures = (
        ("best_gamma", theory_figures.best_gamma(here)),
        ("speedup_and_operations", theory_figures.speedup_and_operations(here)),
        ("oracle_bound", theory_figures.oracle_bound(here)),
    )
    return Section(STANDING, text, figures=figures)


def timeline_section(run: Run) -> Section:
    """Draw a few rounds of the primary gamma and of another, with the baseline above. UsageError if the run has no
    primary gamma yet. ValueError if no text was written by all.
    """
    if run.primary_gamma is None:
        raise UsageError(f"{run.source} has no primary gamma: the run did not finish.")
    shown = stretch(run.arms(), run.primary_gamma)
    ours, plain = shown.rows[f"γ = {run.primary_gamma}"], shown.rows["baseline"]
    ours_s, plain_s = float(ours["round_s"].sum()), float(plain["round_s"].sum())
    text = (
        f"In {counted(len(ours), 'round')} the primary gamma commits {counted(shown.tokens, 'token')} in "
        f"{1e3 * ours_s:.3g} ms, of which drafting takes {ours['draft_s'].sum() / ours_s:.0%}; the baseline needs "
        f"{counted(len(plain), 'call')} and {1e3 * plain_s:.3g} ms for {int(plain['committed'].sum())}.",
    )
    pace = float(ours["committed"].sum()) / ours_s / (float(plain["committed"].sum()) / plain_s)
    seen = (
        f"{counted(shown.tokens, 'token')} in {counted(len(ours), 'round')}: {pace:.2f} times the baseline's pace here"
    )
    figure = timeline(shown, title=f"{seen}\n{run.title}", simulated=run.simulated)
    return Section(TIMELINE, text, figures=(("timeline", figure),))

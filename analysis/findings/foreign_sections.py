"""Sections about imported rounds: those of our own runs wherever they fit, over what the source can give.

What the source cannot give is absent, and the section about its origin says so. Of sources that have sums over rounds
only, nothing is said of single lengths.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specdec.config import BASELINE
from specdec.errors import UsageError
from specdec.theory.capped_geometric import alpha_for, tokens_per_round

from ..acceptance.estimates import estimate_alpha, hazards, kaplan_meier_tokens, omega_error, robust_error
from ..acceptance.model_sections import model_sections
from ..account.account_sections import factor_table
from ..account.gap_account import PARTS, Account, gap_account
from ..account.run_account import foreign_intervals, foreign_sums
from ..account.verdicts import curve_verdict, formula_verdict
from ..figures import run_figures
from ..intervals import POSITIVE, Columns, Interval, bootstrap, interval_of, per_round
from ..read.facts import ImportFacts
from ..read.runs import Run
from ..sections import Section, counted

TOP = 5  # texts whose share of all tokens is looked at
INTERVALS = "With 95% prompt-bootstrap intervals"
SHARE = 0.2  # of the tokens in TOP texts, from which on it is said
FITTED = (
    "Alpha is not that of the text: it was fitted to the rounds that the capped geometric is compared with, because "
    "the source has no lengths by position. So the error above says how far the shape of its law is off, not its "
    "level, and cannot be set beside that of a replay."
)
SIDE_BY_SIDE = (
    "The capped geometric's error is what it says over what was measured, less 1, with the interval that resamples "
    "prompts on both sides at once. Data sets differ in texts, models and drafters: lines stand beside each other "
    "and are not paired."
)


@dataclass(frozen=True)
class ForeignFindings:
    """The findings of an imported data set, and its line among others."""

    facts: ImportFacts
    sections: tuple[Section, ...]
    row: Mapping[str, str]  # the line of the data set in a table of several


def foreign_findings(run: Run) -> ForeignFindings:
    """Return what the folder of an imported file says. UsageError if it and its baseline share no timed prompt."""
    facts, generations = run.imported(), run.generations()
    assert facts is not None
    plain = generations["method"] == BASELINE
    texts, baseline = generations[~plain], generations[plain]
    if facts.totals_only:
        sections, figures = _totals(facts, texts, run.replicates)
    else:
        sections, figures = _of_rounds(run, facts, texts)
    if len(baseline):
        sections.append(speed_section(facts, texts, baseline, run.replicates))
    row = {
        "data set": facts.name,
        "texts": f"{len(texts):,}",
        "tokens": f"{texts['tokens'].sum():,.0f}",
        "gamma": str(facts.gamma),
        **figures,
    }
    return ForeignFindings(facts, tuple(sections), row)


def side_by_side(data_sets: list[ForeignFindings]) -> Section:
    """Set several data sets beside each other, a line each."""
    table = pd.DataFrame([data_set.row for data_set in data_sets]).fillna("–")
    return Section("Side by side", (SIDE_BY_SIDE,), ((f"{counted(len(data_sets), 'data set')}", table),))


def _origin(facts: ImportFacts, texts: pd.DataFrame, held: str, walked: str = "") -> Section:
    size = (
        f"Foreign results, imported from `{facts.source}` as {facts.kind}: {held} of {counted(len(texts), 'text')} and "
        f"{counted(texts['prompt'].nunique(), 'prompt')} at gamma {facts.gamma}{walked}. Model, hardware and settings "
        "are those of whoever made the file; nothing here compares with runs of our own."
    )
    return Section("What the file holds, and what it does not", (size, "\n".join(f"- {note}" for note in facts.notes)))


def _of_rounds(run: Run, facts: ImportFacts, texts: pd.DataFrame) -> tuple[list[Section], dict[str, str]]:
    rounds, sums = run.arms().by_gamma()[facts.gamma], foreign_sums(run)
    walked = f"; rounds at gamma {min(sums)} to {max(sums)}" if len(sums) > 1 else ""
    origin = _origin(facts, texts, counted(len(rounds), "round"), walked)
    if not all("alpha_numerator" in table and table["alpha_denominator"].sum() > 0 for table in sums.values()):
        return [origin, Section("Acceptance", ("No draft token was ever tested, so there is no alpha.",))], {}

    def judged(table: pd.DataFrame, gamma: int, of_text: bool) -> tuple[Account, dict[str, Interval]]:
        account = gap_account(table, gamma, replicates=run.replicates, alpha_of_text=of_text)
        return account, foreign_intervals(table, gamma, run.replicates)

    of_text = facts.longest is not None
    by_gamma = {gamma: judged(table, gamma, of_text) for gamma, table in sums.items()}
    account, beside = by_gamma[facts.gamma]
    tests, fit, prediction = model_sections(run)
    curves = [_curves(by_gamma, facts.gamma, run.title)] if len(by_gamma) > 1 else []
    # One gamma is not the curve: its error elsewhere is said beside it.
    summary = [f"**{formula_verdict(account)}**", *(curves[0].text if curves else ())]
    summary += [_requests(texts, account, beside), *([] if of_text else [FITTED])]
    summary += [prediction.text[0]] if prediction.tables else []
    gap = [
        f"From the capped geometric's {account.factors['omega']:.3f} tokens per round to the measured "
        f"{account.value('tokens_per_round'):.3f} at gamma {account.gamma}, factor by factor; they multiply out "
        "exactly."
    ]
    if "depth" in account.factors:
        largest = max(PARTS, key=lambda name: abs(np.log(account.factors[name])))
        parts = (f"`{name}` {account.intervals[name]:.3f} ({part.name})" for name, part in PARTS.items())
        gap.append(
            f"The factor `dependence` of a run's account, {account.intervals['dependence']:.3f}, falls into three: "
            f"{', '.join(parts)}. The largest is `{largest}`. A live run would add `drift`, what its drafter did "
            "otherwise than here; a recording has none."
        )
    factors = ((f"From the capped geometric to the measurement at gamma {account.gamma}", factor_table(account)),)
    explained = Section("The gap, explained: acceptance", tuple(gap), factors)
    sections = [Section("Summary", tuple(summary)), origin, explained, *curves, tests, fit, prediction]
    sections.append(_rounds(rounds, account, beside, run.title))
    if texts["category"].nunique() > 1:
        names, table = texts.groupby("prompt")["category"].first(), sums[facts.gamma]
        rows = []
        for name, part in table.groupby(names.reindex(table.index), sort=True):  # each under its own alpha
            own, values = judged(part, facts.gamma, of_text=False)
            rows.append(
                {
                    "category": name or "none",
                    "prompts": len(part),
                    "rounds": int(part["rounds"].sum()),
                    "tokens per round": f"{own.intervals['tokens_per_round']:.4f}",
                    "mean over requests": f"{values['requests_mean']:.4f}",
                    "capped geometric": f"{own.value('omega'):.4f}",
                    "its error (paired)": f"{own.intervals['tokens_error']:+.1%}",
                    "alpha (MLE)": f"{values['alpha_mle']:.4f}",
                    "accepted over offered": f"{values['accepted_per_offered']:.4f}",
                }
            )
        sections.append(Section("By category", (), ((INTERVALS, pd.DataFrame(rows)),)))
    row = {
        "tokens per round": f"{account.intervals['tokens_per_round']:.3f}",
        "capped geometric": f"{account.factors['omega']:.3f}" + ("" if of_text else " (alpha fitted)"),
        "its error (paired)": f"{account.intervals['tokens_error']:+.1%}",
        "mean over requests": f"{beside['requests_mean']:.3f}",
        "recommended model's worst error, held out": "–",
    }
    if prediction.tables:
        chosen = prediction.tables[0][1].iloc[0]
        row["recommended model's worst error, held out"] = f"{chosen['worst']} ({chosen['model']})"
    return sections, row


def _requests(texts: pd.DataFrame, account: Account, beside: Mapping[str, Interval]) -> str:
    """Set the mean over requests beside the pooled ratio, and warn where few texts hold most tokens."""
    tokens = np.sort(texts["tokens"].to_numpy(dtype=float))[::-1]
    said = (
        f"Pooled over all rounds it is {account.intervals['tokens_per_round']:.3f} tokens per round, in the mean over "
        f"{counted(len(texts), 'request')} {beside['requests_mean']:.3f}."
    )
    share, equal = tokens[:TOP].sum() / max(tokens.sum(), 1.0), TOP / len(tokens)
    if len(tokens) > TOP and share >= SHARE and share >= 2 * equal:
        alike = tokens.sum() ** 2 / (tokens**2).sum()
        said += (
            f" **Few texts hold most tokens**: the {TOP} longest of {len(tokens):,} hold {share:.0%} of all tokens, so "
            f"that the pooled ratio is as much theirs as that of {alike:,.0f} equal texts; the mean over requests "
            "counts each text once."
        )
    return said


def _curves(by_gamma: Mapping[int, tuple[Account, Mapping[str, Interval]]], gamma_shown: int, title: str) -> Section:
    """Show every gamma. by_gamma: its account, and the `foreign_intervals` beside it; gamma_shown: that of the page."""
    names = ("capped_geometric", "each text at its own alpha", "agreement along the text")
    lines: dict[str, dict[int, float]] = {name: {} for name in names}
    rows, points, factors = [], [], []
    for gamma, (account, beside) in by_gamma.items():
        measured, error = (account.intervals[name] for name in ("tokens_per_round", "tokens_error"))
        products = np.cumprod(list(account.factors.values()))  # omega, offered, texts, along, depth
        for line, place in zip(lines.values(), (0, 2, 3), strict=True):
            line[gamma] = float(products[place])
        points.append({"gamma": gamma} | measured.as_columns("value") | error.as_columns("error"))
        rows.append(
            {
                "gamma": f"{gamma}{'*' if gamma == gamma_shown else ''}",
                "tokens per round": f"{measured:.3f}",
                "mean over requests": f"{beside['requests_mean']:.3f}",
                "capped geometric": f"{account.factors['omega']:.3f}",
                "its error (paired)": f"{error:+.1%}",
            }
        )
        steps = {name: f"{value:.3f}" for name, value in account.factors.items()}
        factors.append({"gamma": str(gamma), **steps, "measured": f"{measured.estimate:.3f}"})
    table = pd.DataFrame(points)
    shown, _ = by_gamma[gamma_shown]
    basis = run_figures.Basis(shown.prompts, 0, shown.alpha)
    figure = run_figures.curve(table, lines, title=title, basis=basis, primary_gamma=gamma_shown)
    tables = (
        ("Every gamma (* is the one of this page), with 95% prompt-bootstrap intervals", pd.DataFrame(rows)),
        ("Factors from the capped geometric (omega) to the measurement, at every gamma", pd.DataFrame(factors)),
    )
    said = curve_verdict(table, "tokens per round")
    return Section("Curves over gamma", (said,), tables, (("curve_tokens_per_round", figure),))


def _rounds(rounds: pd.DataFrame, account: Account, values: Mapping[str, Interval], title: str) -> Section:
    gamma = account.gamma
    alpha, (error, design_effect), table = estimate_alpha(rounds), robust_error(rounds), hazards(rounds)
    by_law = float(tokens_per_round(alpha.alpha, gamma))
    drawn = "prompt bootstrap"
    rows = [
        ("tokens per round", f"{account.intervals['tokens_per_round']:.4f}", drawn),
        ("tokens per round, mean over requests", f"{values['requests_mean']:.4f}", drawn),
        ("alpha by maximum likelihood", f"{values['alpha_mle']:.4f}", drawn),
        ("alpha by maximum likelihood", f"{alpha.wilson:.4f}", "Wilson, as if all positions were independent"),
        ("cluster-robust error of alpha", f"{Interval(error):.4f}", "by prompt"),
        ("design effect", f"{Interval(design_effect):.4f}", "robust over naive variance"),
        (
            "tokens per round by the capped geometric at that alpha",
            f"{by_law:.4f} (se {omega_error(alpha, gamma):.4f})",
            "fitted to these rounds: no test of its level",
        ),
        ("tokens per round by hazards", f"{kaplan_meier_tokens(table):.4f}", "Kaplan-Meier"),
        ("accepted over offered (not alpha)", f"{values['accepted_per_offered']:.4f}", drawn),
        ("full rounds", f"{values['full']:.4f}", drawn),
    ]
    if account.alpha_of_text:
        of_text = f"{account.intervals['alpha']:.4f}"
        rows.insert(2, ("alpha of the text", of_text, f"{drawn}; behind the capped geometric"))
    estimates = pd.DataFrame(rows, columns=["figure", "value (95%)", "interval"])
    by_depth = table.reset_index().rename(columns={"acceptance": "accepted given tested"})
    words, figures = [], []
    try:
        figures.append(("accepted_lengths", run_figures.accepted_lengths(rounds, account.alpha, title=title)))
    except ValueError as problem:
        words.append(f"Accepted lengths are not shown: {problem}.")
    tables = ((f"Estimates at gamma {gamma}", estimates), ("Acceptance by depth (hazards)", by_depth))
    return Section("Rounds: what is accepted", tuple(words), tables, tuple(figures))


def _totals(facts: ImportFacts, texts: pd.DataFrame, replicates: int) -> tuple[list[Section], dict[str, str]]:
    def measured(texts: pd.DataFrame) -> Interval:
        sums = texts.groupby("prompt")[["tokens", "rounds"]].sum()
        possible = 1 <= sums["tokens"].sum() / sums["rounds"].sum() <= facts.gamma + 1  # else gamma is another one
        within = per_round(facts.gamma) if possible else POSITIVE
        return interval_of(sums, lambda s: s["tokens"] / s["rounds"], within, replicates)

    tokens, drafted = measured(texts), texts[texts["rounds"] > 0]
    of_requests = f"{float((drafted['tokens'] / drafted['rounds']).mean()):.3f}"
    alpha = alpha_for(tokens.estimate, {facts.gamma: 1.0}) if tokens.estimate >= 1 else None
    implied = (
        f"No alpha gives this at gamma {facts.gamma}: a round has 1 to {facts.gamma + 1} tokens. Give the depth of the "
        "source's drafts with --gamma."
        if alpha is None
        else f"The capped geometric gives this at alpha {alpha:.3f}, an alpha that was solved from the figure itself: "
        "that it agrees is its construction, neither a prediction nor a test."
    )
    said = f"**{tokens:.3f} tokens per round**, {of_requests} in the mean over texts."
    sections = [_origin(facts, texts, "sums"), Section("Tokens per round", (said, implied))]
    if texts["category"].nunique() > 1:
        rows = [
            {"category": name or "none", "texts": f"{len(part):,}", "tokens per round": f"{measured(part):.3f}"}
            for name, part in texts.groupby("category")
        ]
        sections.append(Section("By category", (), ((INTERVALS, pd.DataFrame(rows)),)))
    return sections, {"tokens per round": f"{tokens:.3f}", "mean over requests": of_requests}


def speed_section(facts: ImportFacts, texts: pd.DataFrame, baseline: pd.DataFrame, replicates: int) -> Section:
    """Return the speedup, prefill included, over the prompts that both files have."""
    timed = texts.reindex(columns=["prompt", "tokens", "seconds"])
    ours = timed.groupby("prompt")[["tokens", "seconds"]].sum()
    theirs = baseline.groupby("prompt")[["tokens", "seconds"]].sum().add_prefix("baseline_")
    table = ours.join(theirs, how="inner").astype(float)
    if timed["seconds"].isna().any() or table.empty or not (table[["tokens", "baseline_tokens"]].sum() > 0).all():
        raise UsageError(f"{facts.source} and its baseline have no timed prompt in common: there is no speedup.")
    if not (table[["seconds", "baseline_seconds"]] > 0).all(axis=None):
        raise UsageError(f"{facts.source} or its baseline has a prompt that took no time: there is no speedup.")

    def statistic(sums: Columns) -> dict[str, np.ndarray]:
        rate, baseline = sums["tokens"] / sums["seconds"], sums["baseline_tokens"] / sums["baseline_seconds"]
        return {"speedup": rate / baseline, "rate": rate, "baseline_rate": baseline}

    values = bootstrap(table, statistic, replicates)
    speeds = table["tokens"] / table["seconds"], table["baseline_tokens"] / table["baseline_seconds"]
    per_prompt, theirs_way = speeds[0] / speeds[1], speeds[0].mean() / speeds[1].mean()
    rows = [
        ("speedup, ratio of totals", f"{values['speedup']:.4f}"),
        ("mean of the prompts' ratios", f"{per_prompt.mean():.4f}"),
        ("median of the prompts' ratios", f"{per_prompt.median():.4f}"),
        ("ratio of the prompts' mean speeds, as Spec-Bench prints it", f"{theirs_way:.4f}"),
        ("tokens per second", f"{values['rate']:.4f}"),
        ("tokens per second of the baseline", f"{values['baseline_rate']:.4f}"),
    ]
    left = len(ours) + len(theirs) - 2 * len(table)
    words = (
        f"**Speedup {values['speedup']:.4f}**, prefill included, over {counted(len(table), 'prompt')} that both "
        f"files have{f' ({left} of one file only are left out)' if left else ''}. Without the seconds of draft, "
        "verification and the bare call nothing can say which of them the gap to the capped geometric comes from."
    )
    figures = pd.DataFrame(rows, columns=["figure", "value (95% where there is an interval)"])
    return Section("Speed", (words,), (("Averages that differ", figures),))

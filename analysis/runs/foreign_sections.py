"""Sections about imported rounds: those of our own runs wherever they fit, over what the source can give.

"Theory" is what it is on every page: the textbook formula at the alpha of the text, where lengths are by position. What
the source cannot give is absent, and the section about its origin says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from specdec.errors import UsageError
from specdec.theory.capped_geometric import tokens_per_round

from ..acceptance.estimates import estimate_alpha, hazards, kaplan_meier_tokens, omega_error, robust_error
from ..acceptance.fit_section import fit_section
from ..acceptance.iid_section import Evidence, tests_section
from ..acceptance.prediction_section import prediction_section
from ..account.foreign_account import (
    PARTS,
    SHOWN,
    ForeignAccount,
    ForeignSums,
    foreign_account,
    foreign_sums,
    foreign_values,
    shown_gamma,
)
from ..account.formula_gap import CAUSES, curve_verdict, formula_verdict
from ..arms import Arms
from ..figures import run_figures
from ..findings import Section, counted
from ..intervals import Columns, Interval, bootstrap
from ..read.foreign.imported import Imported, PositionLengths
from ..rounds import distinct_generations

REFITS = 200  # of models, for the intervals of what they predict
TOP = 5  # texts whose share of all tokens is looked at
SHARE = 0.2  # of the tokens in TOP texts, from which on it is said
NO_REPLAY = "the source has no replay besides itself"
NO_DEPTHS = "It has lengths at one gamma only: nothing predicts another one, and no alpha of the text is known."


@dataclass(frozen=True)
class ForeignFindings:
    """The findings of an imported data set, and its line among others.

    Attributes:
        gamma: the one that the page is about.
        row: the line of the data set in a table of several.
    """

    name: str
    kind: str
    gamma: int
    sections: tuple[Section, ...]
    row: Mapping[str, str]


@dataclass(frozen=True)
class _Data:
    """A data set with its sums and accounts, which all of its sections share."""

    source: Imported
    sums: ForeignSums
    accounts: Mapping[int, ForeignAccount]
    replicates: int
    seed: int

    @property
    def gamma(self) -> int:
        return self.source.gamma

    @property
    def account(self) -> ForeignAccount:
        return self.accounts[self.gamma]

    @property
    def title(self) -> str:
        return f"{self.source.name} (imported, {self.source.kind})"


def foreign_findings(
    source: Imported, baseline: pd.DataFrame | None = None, replicates: int = 2000, seed: int = 0
) -> ForeignFindings:
    """Return what a data set says; `baseline` (prompt, repeat, tokens, seconds) adds the speedup.

    Raises:
        UsageError: it and the baseline share no timed prompt.
    """
    gamma = shown_gamma(source)
    source = source if gamma == source.gamma else source.at(gamma)
    source = replace(source, rounds=_slim(source.rounds))
    sums = foreign_sums(source)
    origin = _origin(source, sums)
    row = {
        "data set": source.name,
        "texts": f"{len(source.texts):,}",
        "tokens": f"{int(source.texts['tokens'].sum()):,}",
        "gamma": str(gamma),
    }
    try:
        accounts = {each: foreign_account(sums, each, replicates, seed) for each in sums.tables}
    except ValueError as error:
        nothing = Section("Acceptance", (f"{str(error)[:1].upper()}{str(error)[1:]}.",))
        return ForeignFindings(source.name, source.kind, gamma, (origin, nothing), row)
    data = _Data(source, sums, accounts, replicates, seed)
    prediction = _prediction(data)
    sections = [_summary(data, prediction), origin, _gap(data)]
    if len(sums.tables) > 1:
        sections.append(_curves(data))
    sections += [_tests(data), _fit(data), prediction, _rounds(data)]
    if source.rounds["category"].nunique() > 1:
        sections.append(_categories(data))
    if baseline is not None:
        sections.append(speed_section(source, baseline, replicates, seed))
    gap = data.account.gap
    row |= {
        "tokens per round": f"{gap.measured:.3f}",
        "textbook formula": f"{gap.omega:.3f}" + ("" if gap.alpha_of_text else " (alpha fitted)"),
        "its error (paired)": f"{gap.error:+.1%}",
        "mean over requests": f"{data.account.values['requests_mean']:.3f}",
        "best model's worst error, held out": _best(prediction),
    }
    return ForeignFindings(source.name, source.kind, gamma, tuple(sections), row)


def foreign_sections(
    source: Imported, baseline: pd.DataFrame | None = None, replicates: int = 2000, seed: int = 0
) -> list[Section]:
    """Return the sections of `foreign_findings`."""
    return list(foreign_findings(source, baseline, replicates, seed).sections)


def _slim(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that the sections read, in half the space: a long trace has a million rounds."""
    kept = rounds.drop(columns=["context", "source", "rank", "beta"])
    small = {"int64": np.int32, "float64": np.float32}
    return kept.astype({name: small[str(kind)] for name, kind in kept.dtypes.items() if str(kind) in small})


def side_by_side(found: list[ForeignFindings]) -> Section:
    """Set several data sets beside each other, a line each."""
    table = pd.DataFrame([each.row for each in found]).fillna("–")
    words = (
        "The textbook formula's error is what it says over what was measured, less 1, with the interval that resamples "
        "prompts on both sides at once. Data sets differ in texts, models and drafters: lines stand beside each other "
        "and are not paired."
    )
    return Section("Side by side", (words,), ((f"{counted(len(found), 'data set')}", table),))


def _best(prediction: Section) -> str:
    """Return the largest error of the model that predicted best, and its name; a dash where nothing was predicted."""
    if not prediction.tables:
        return "–"
    best = prediction.tables[0][1].iloc[0]
    return f"{best['worst']} ({best['model']})"


# Contents of the file -----------------------------------------------------------------------------


def _origin(source: Imported, sums: ForeignSums) -> Section:
    gammas = sorted(sums.tables)
    walked = f"; rounds at gamma {gammas[0]} to {gammas[-1]}" if len(gammas) > 1 else ""
    size = (
        f"Foreign results, imported from `{source.source}` as {source.kind}: {counted(len(source.rounds), 'round')} of "
        f"{counted(len(source.texts), 'text')} and {counted(source.rounds['prompt'].nunique(), 'prompt')} at gamma "
        f"{source.gamma}{walked}. Model, hardware and settings are those of whoever made the file; nothing here "
        "compares with runs of our own."
    )
    notes = list(source.notes)
    if source.by_position is not None and source.by_position.longest > SHOWN:
        notes.append(
            f"Drafts reach up to {source.by_position.longest} tokens; gammas are shown up to {SHOWN}, larger ones with "
            "--gamma."
        )
    return Section("What the file holds, and what it does not", (size, "\n".join(f"- {note}" for note in notes)))


def _summary(data: _Data, prediction: Section) -> Section:
    """Say the verdict, whether few texts stand for most, and how well the best model predicts."""
    words = [f"**{formula_verdict(data.account.gap)}**", _requests(data)]
    if not data.account.gap.alpha_of_text:
        words.append(
            "Alpha is not that of the text: it was fitted to the rounds that the formula is compared with, because the "
            "source has no lengths by position. So the error above says how far the shape of the formula is off, not "
            "its level, and cannot be set beside that of a replay."
        )
    if prediction.tables:
        words.append(prediction.text[0])
    return Section("Summary", tuple(words))


def _requests(data: _Data) -> str:
    """Set the mean over requests beside the pooled ratio, and warn where few texts hold most tokens."""
    values, texts = data.account.values, data.source.texts
    tokens = np.sort(texts["tokens"].to_numpy(dtype=float))[::-1]
    said = (
        f"Pooled over all rounds it is {values['tokens_per_round']:.3f} tokens per round, in the mean over "
        f"{counted(len(texts), 'request')} {values['requests_mean']:.3f}."
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


# The gap ------------------------------------------------------------------------------------------


def _gap(data: _Data) -> Section:
    """Show the factors from the formula to the measured tokens per round, at every gamma."""
    names = {
        "omega": "the textbook formula",
        "offered": CAUSES["offered"],
        "dependence": "dependence, and differences between texts",
        **PARTS,
    }
    lines, product = [], 1.0
    for name, value in data.account.steps.items():
        product *= value.estimate
        lines.append(
            {"factor": name, "meaning": names[name], "value (95%)": f"{value:.4f}", "product": f"{product:.4f}"}
        )
    lines.append(
        {
            "factor": "tokens per round",
            "meaning": "measured",
            "value (95%)": f"{data.account.values['tokens_per_round']:.4f}",
            "product": f"{product:.4f}",
        }
    )
    tables = [(f"From the formula to the measurement at gamma {data.gamma}", pd.DataFrame(lines))]
    words = [
        f"From the textbook formula's {data.account.gap.omega:.3f} tokens per round to the measured "
        f"{data.account.gap.measured.estimate:.3f} at gamma {data.gamma}, factor by factor; they multiply out exactly."
    ]
    if "depth" in data.account.values:
        parts = {name: data.account.values[name] for name in PARTS}
        largest = max(parts, key=lambda name: abs(np.log(parts[name].estimate)))
        words.append(
            f"The factor `dependence` of a run's account, {data.account.values['dependence']:.3f}, falls into three: "
            + ", ".join(f"`{name}` {value:.3f} ({PARTS[name]})" for name, value in parts.items())
            + f". The largest is `{largest}`. A live run would add `drift`, what its drafter did otherwise than here; "
            "a recording has none."
        )
    return Section("The gap, explained: acceptance", tuple(words), tuple(tables))


def _curves(data: _Data) -> Section:
    """Show tokens per round over gamma against the formula, and what its error is made of."""
    lines: dict[str, dict[int, float]] = {
        "capped_geometric": {},
        "each text at its own alpha": {},
        "agreement along the text": {},
    }
    rows, points, factors = [], [], []
    for gamma, account in data.accounts.items():
        values, gap = account.values, account.gap
        start = gap.omega * values["offered"].estimate
        lines["capped_geometric"][gamma] = gap.omega
        lines["each text at its own alpha"][gamma] = start * values["texts"].estimate
        lines["agreement along the text"][gamma] = start * values["texts"].estimate * values["along"].estimate
        error = {"error": gap.error.estimate, "error_low": gap.error.low, "error_high": gap.error.high}
        points.append({"gamma": gamma, "value": gap.measured.estimate, **gap.measured.bounds, **error})
        rows.append(
            {
                "gamma": f"{gamma}{'*' if gamma == data.gamma else ''}",
                "tokens per round": f"{gap.measured:.3f}",
                "mean over requests": f"{values['requests_mean']:.3f}",
                "textbook formula": f"{gap.omega:.3f}",
                "its error (paired)": f"{gap.error:+.1%}",
            }
        )
        steps = {name: f"{value.estimate:.3f}" for name, value in account.steps.items()}
        factors.append({"gamma": str(gamma), **steps, "measured": f"{gap.measured.estimate:.3f}"})
    table = pd.DataFrame(points)
    figure = run_figures.curve(
        table,
        lines,
        title=data.title,
        basis=run_figures.Basis(len(data.sums.tables[data.gamma]), 0, data.account.gap.alpha),
        primary_gamma=data.gamma,
    )
    return Section(
        "Curves over gamma",
        (curve_verdict(table, "tokens per round"),),
        (
            ("Every gamma (* is the one of this page), with 95% prompt-bootstrap intervals", pd.DataFrame(rows)),
            ("Factors from the formula (omega) to the measurement, at every gamma", pd.DataFrame(factors)),
        ),
        (("curve_tokens_per_round", figure),),
    )


# Tests and models ---------------------------------------------------------------------------------


def _distinct(source: Imported) -> pd.DataFrame:
    """Return the rounds without repeats that are copies; with lengths by position every text is one."""
    return source.rounds if source.by_position is not None else distinct_generations(source.rounds)


def _tests(data: _Data) -> Section:
    evidence = Evidence(_distinct(data.source), data.sums.tables, no_replay=NO_REPLAY, ordered=data.source.ordered)
    return _guarded(
        "Is acceptance independent and the same everywhere?",
        partial(tests_section, evidence, data.replicates, REFITS, data.seed),
    )


def _fit(data: _Data) -> Section:
    rounds = _distinct(data.source)
    make = partial(fit_section, rounds, data.gamma, data.title, data.replicates, data.seed, ordered=data.source.ordered)
    return _guarded("Which model describes the rounds?", make)


def _guarded(title: str, make: Callable[[], Section]) -> Section:
    """Return a section, or one that says why the data allow none."""
    try:
        return make()
    except ValueError as error:
        return Section(title, (f"Not available for this file: {error}.",))


def _prediction(data: _Data) -> Section:
    """Predict every gamma on texts that no model was fitted to."""
    heading = "What would each model have predicted?"
    lengths = data.source.by_position
    if lengths is None:
        return Section(heading, (NO_DEPTHS,))
    kind = data.source.kind
    makers = {(kind, gamma): partial(_walked, lengths, kind, gamma) for gamma in data.sums.tables}
    table = data.sums.tables[max(data.accounts)]
    alpha = table[["alpha_numerator", "alpha_denominator"]].set_axis(["numerator", "denominator"], axis=1)
    return prediction_section(
        Arms(makers, data.sums.texts.assign(cell="imported", method=kind)),
        alpha.rename_axis("prompt").reset_index(),
        None,
        data.title,
        data.replicates,
        data.seed,
    )


def _walked(lengths: PositionLengths, kind: str, gamma: int) -> pd.DataFrame:
    return _slim(lengths.rounds(kind, gamma))


# Rounds -------------------------------------------------------------------------------------------


def _rounds(data: _Data) -> Section:
    """Show the estimates of alpha, acceptance by depth, and accepted lengths against the formula's law."""
    rounds, gamma, values = data.source.rounds, data.gamma, data.account.values
    alpha, (error, design_effect), table = estimate_alpha(rounds), robust_error(rounds), hazards(rounds)
    rows = [
        ("tokens per round", f"{values['tokens_per_round']:.4f}", "prompt bootstrap"),
        ("tokens per round, mean over requests", f"{values['requests_mean']:.4f}", "prompt bootstrap"),
        ("alpha by maximum likelihood", f"{values['alpha_mle']:.4f}", "prompt bootstrap"),
        ("alpha by maximum likelihood", f"{alpha.wilson:.4f}", "Wilson, as if all positions were independent"),
        ("cluster-robust error of alpha", f"{Interval(error):.4f}", "by prompt"),
        ("design effect", f"{Interval(design_effect):.4f}", "robust over naive variance"),
        (
            "tokens per round by the formula at that alpha",
            f"{_omega(alpha.alpha, gamma):.4f} (se {omega_error(alpha, gamma):.4f})",
            "fitted to these rounds: no test of the formula's level",
        ),
        ("tokens per round by hazards", f"{kaplan_meier_tokens(table):.4f}", "Kaplan-Meier"),
        ("accepted over offered (not alpha)", f"{values['accepted_per_offered']:.4f}", "prompt bootstrap"),
        ("full rounds", f"{values['full']:.4f}", "prompt bootstrap"),
    ]
    if data.sums.alpha_of_text:
        rows.insert(2, ("alpha of the text", f"{values['alpha']:.4f}", "prompt bootstrap; behind the formula"))
    estimates = pd.DataFrame(rows, columns=["figure", "value (95%)", "interval"])
    by_depth = table.reset_index().rename(columns={"acceptance": "accepted given tested"})
    words, figures = [], []
    try:
        figure = run_figures.accepted_lengths(rounds, data.account.gap.alpha, gamma, title=data.title)
        figures.append(("accepted_lengths", figure))
    except ValueError as problem:
        words.append(f"Accepted lengths are not shown: {problem}.")
    tables = ((f"Estimates at gamma {gamma}", estimates), ("Acceptance by depth (hazards)", by_depth))
    return Section("Rounds: what is accepted", tuple(words), tables, tuple(figures))


def _omega(alpha: float, gamma: int) -> float:
    return float(tokens_per_round(alpha, gamma))


def _categories(data: _Data) -> Section:
    """Show acceptance by category, each under its own alpha."""
    names = data.source.texts.groupby("prompt")["category"].first()
    table = data.sums.tables[data.gamma]
    rows = []
    for name, part in table.groupby(names.reindex(table.index), sort=True):
        values = bootstrap(part, lambda sums: foreign_values(sums, data.gamma), data.replicates, data.seed)
        rows.append(
            {
                "category": name or "none",
                "prompts": len(part),
                "rounds": int(part["rounds"].sum()),
                "tokens per round": f"{values['tokens_per_round']:.4f}",
                "mean over requests": f"{values['requests_mean']:.4f}",
                "textbook formula": f"{values['omega'].estimate:.4f}",
                "its error (paired)": f"{values['error']:+.1%}",
                "alpha (MLE)": f"{values['alpha_mle']:.4f}",
                "accepted over offered": f"{values['accepted_per_offered']:.4f}",
            }
        )
    return Section("By category", (), (("With 95% prompt-bootstrap intervals", pd.DataFrame(rows)),))


# Speed --------------------------------------------------------------------------------------------


def speed_section(source: Imported, baseline: pd.DataFrame, replicates: int, seed: int) -> Section:
    """Return the speedup, prefill included, over the prompts that both files have."""
    ours = source.texts.groupby("prompt")[["tokens", "seconds"]].sum()
    theirs = baseline.groupby("prompt")[["tokens", "seconds"]].sum().add_prefix("baseline_")
    table = ours.join(theirs, how="inner").astype(float)
    if not source.has_times or table.empty or not (table[["tokens", "baseline_tokens"]].sum() > 0).all():
        raise UsageError(f"{source.source} and its baseline have no timed prompt in common: there is no speedup.")
    if not (table[["seconds", "baseline_seconds"]] > 0).all(axis=None):
        raise UsageError(f"{source.source} or its baseline has a prompt that took no time: there is no speedup.")
    values = bootstrap(table, _speedups, replicates, seed)
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
        "verification and the bare call nothing can say which of them the gap to the theory comes from."
    )
    figures = pd.DataFrame(rows, columns=["figure", "value (95% where there is an interval)"])
    return Section("Speed", (words,), (("Averages that differ", figures),))


def _speedups(sums: Columns) -> dict[str, np.ndarray]:
    rate, baseline = sums["tokens"] / sums["seconds"], sums["baseline_tokens"] / sums["baseline_seconds"]
    return {"speedup": rate / baseline, "rate": rate, "baseline_rate": baseline}

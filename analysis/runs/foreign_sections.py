"""Sections about imported rounds: acceptance, its tests and models, categories, and speed where times exist.

The estimators are those of our own runs. What the source cannot give is absent, and the first section says so.
"""

from math import isnan, nan

import numpy as np
import pandas as pd

from specdec.errors import UsageError
from specdec.theory.capped_geometric import tokens_per_round

from ..acceptance.estimates import estimate_alpha, hazards, kaplan_meier_tokens, omega_error, robust_error
from ..acceptance.iid import IidTest, depth, memory, mixing, previous_round, prompts, prompts_beta, trend
from ..acceptance.models import compare_models
from ..figures import run_figures
from ..findings import Section, counted
from ..intervals import Columns, Interval, bootstrap
from ..read.foreign.imported import Imported
from ..rounds import prompt_sums

NO_ORDER = "the source has no order of rounds"


def foreign_sections(
    source: Imported, baseline: pd.DataFrame | None = None, replicates: int = 2000, seed: int = 0
) -> list[Section]:
    """Return every section of an imported file; `baseline` (prompt, repeat, tokens, seconds) adds the speedup."""
    sections = [_origin(source), _acceptance(source, replicates, seed), _tests(source, seed), _models(source)]
    if source.rounds["category"].nunique() > 1:
        sections.append(_categories(source, replicates, seed))
    if baseline is not None:
        sections.append(_speed(source, baseline, replicates, seed))
    return sections


def _origin(source: Imported) -> Section:
    rounds = source.rounds
    texts = len(source.texts)
    size = (
        f"Foreign results, imported from `{source.source}` as {source.kind}: {counted(len(rounds), 'round')} of "
        f"{counted(texts, 'text')} and {counted(int(rounds['prompt'].nunique()), 'prompt')} at gamma {source.gamma}. "
        "Model, hardware and settings are those of whoever made the file; nothing here compares with runs of our own."
    )
    return Section("What the file holds, and what it does not", (size, "\n".join(f"- {note}" for note in source.notes)))


# Acceptance ---------------------------------------------------------------------------------------


def _acceptance(source: Imported, replicates: int, seed: int) -> Section:
    rounds, gamma = source.rounds, source.gamma
    alpha, (error, design_effect), table = estimate_alpha(rounds), robust_error(rounds), hazards(rounds)
    if alpha.tested == 0:
        return Section("Acceptance", ("No draft token was ever tested, so there is no alpha.",))
    values = bootstrap(prompt_sums(rounds), _ratios, replicates, seed)
    omega = float(tokens_per_round(alpha.alpha, gamma))
    measured = values["tokens_per_round"]
    rows = [
        ("tokens per round", f"{measured:.4f}", "prompt bootstrap"),
        ("alpha by maximum likelihood", f"{values['alpha']:.4f}", "prompt bootstrap"),
        ("alpha by maximum likelihood", f"{alpha.wilson:.4f}", "Wilson, as if all positions were independent"),
        ("cluster-robust error of alpha", f"{Interval(error):.4f}", "by prompt"),
        ("design effect", f"{Interval(design_effect):.4f}", "robust over naive variance"),
        ("tokens per round by the theory", f"{omega:.4f} (se {omega_error(alpha, gamma):.4f})", "capped geometric"),
        ("tokens per round by hazards", f"{kaplan_meier_tokens(table):.4f}", "Kaplan-Meier"),
        ("accepted over offered (not alpha)", f"{values['accepted_per_offered']:.4f}", "prompt bootstrap"),
        ("full rounds", f"{values['full']:.4f}", "prompt bootstrap"),
    ]
    estimates = pd.DataFrame(rows, columns=["figure", "value (95%)", "interval"])
    by_depth = table.reset_index().rename(columns={"acceptance": "accepted given tested"})
    words = [_verdict(measured, omega, alpha.alpha, gamma)]
    figures = []
    try:
        title = f"{source.kind}, gamma {gamma}"
        figures.append(("accepted_lengths", run_figures.accepted_lengths(rounds, alpha.alpha, gamma, title=title)))
    except ValueError as error:
        words.append(f"Accepted lengths are not shown: {error}.")
    tables = (("Estimates", estimates), ("Acceptance by depth (hazards)", by_depth))
    return Section("Acceptance", tuple(words), tables, tuple(figures))


def _ratios(sums: Columns) -> dict[str, np.ndarray]:
    return {
        "tokens_per_round": sums["tokens"] / sums["rounds"],
        "alpha": sums["accepted"] / sums["tested"],
        "accepted_per_offered": sums["accepted"] / sums["offered"],
        "full": 1 - sums["rejected"] / sums["rounds"],
    }


def _verdict(measured: Interval, omega: float, alpha: float, gamma: int) -> str:
    gap = f"{measured:.3f} tokens per round, {measured.estimate / omega - 1:+.1%} from the theory's {omega:.3f}"
    given = f"at gamma {gamma} and alpha {alpha:.3f}"
    if not measured.known:
        return f"**{gap}** {given}; one prompt has no interval, so no difference can be called real."
    verdict = "within what prompts vary by" if measured.contains(omega) else "more than prompts vary by"
    return f"**{gap}** {given}: {verdict}."


# Tests and models ---------------------------------------------------------------------------------


def _tests(source: Imported, seed: int) -> Section:
    rounds = source.rounds
    absent = IidTest(nan, nan, 0, NO_ORDER)
    tests = {
        "acceptance varies with depth": depth(rounds),
        "acceptance rises or falls with depth": trend(rounds),
        "rounds differ": mixing(rounds),
        "prompts differ": prompts(rounds),
        "prompts differ (beta)": prompts_beta(rounds),
        "neighbouring rounds are alike": memory(rounds, seed=seed) if source.ordered else absent,
        "the previous round matters": previous_round(rounds) if source.ordered else absent,
    }
    rows = [
        {"question": name, "statistic": test.statistic, "p": test.p_value, "n": test.n, "why not": test.reason}
        for name, test in tests.items()
    ]
    rejected = [name for name, test in tests.items() if test.p_value < 0.05]
    applied = sum(not isnan(test.p_value) for test in tests.values())
    found = f": {'; '.join(rejected)}" if rejected else ""
    words = (
        f"{len(rejected)} of {applied} tests reject the capped-geometric model at 5%{found}. Rounds of one prompt are "
        "dependent: where prompts differ, the tests over depths and rounds reject too, without any such effect."
    )
    return Section("Tests of the capped-geometric model", (words,), (("Tests", pd.DataFrame(rows)),))


def _models(source: Imported) -> Section:
    table = compare_models(source.rounds, source.ordered).reset_index()
    caption = f"Models on all rounds, best first (no Markov model: {NO_ORDER})"
    if source.ordered:
        caption = "Models on the rounds that follow another, best first"
    best, first = table.iloc[0], table.set_index("model").loc["capped_geometric"]
    lead = f"its AIC is {first['aic'] - best['aic']:.1f} below the capped-geometric model's"
    same = best["model"] == "capped_geometric"
    words = "No alternative fits better by AIC." if same else f"The {best['model']} model fits best: {lead}."
    table["over the best"] = table["aic"] - best["aic"]
    return Section("Which model fits", (words.replace("_", " "),), ((caption, table),))


def _categories(source: Imported, replicates: int, seed: int) -> Section:
    rows = []
    for name, part in source.rounds.groupby("category"):
        values = bootstrap(prompt_sums(part), _ratios, replicates, seed)
        rows.append(
            {
                "category": name or "none",
                "prompts": part["prompt"].nunique(),
                "rounds": len(part),
                "tokens per round": f"{values['tokens_per_round']:.4f}",
                "alpha (MLE)": f"{values['alpha']:.4f}",
                "accepted over offered": f"{values['accepted_per_offered']:.4f}",
            }
        )
    return Section("By category", (), (("With 95% prompt-bootstrap intervals", pd.DataFrame(rows)),))


# Speed --------------------------------------------------------------------------------------------


def _speed(source: Imported, baseline: pd.DataFrame, replicates: int, seed: int) -> Section:
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

"""Errors of predictions on many sources, from `results/prediction_error.json`, which a benchmark writes."""

import json
from pathlib import Path

import pandas as pd

from ..acceptance.prediction import LABELS
from ..comparisons import printed
from ..sections import Section, counted
from .committed import RESULTS

RESULT = RESULTS / "prediction_error.json"
FAMILIES = RESULTS / "prediction_families.json"
NEAR, NARROW = 0.02, 0.05  # a worst error that is small; half of the width of an interval that still says something
NAMES = {  # of models in results, of which some lack the last
    "textbook": "capped geometric",
    "markov": LABELS["markov"],
    "stretches": LABELS["stretches"],
    "ends": LABELS["stretches.ends"],
}


def prediction_results(path: Path = RESULT) -> Section:
    """Return the table of mean and worst errors over gammas, a line per source."""
    sources = pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))["figures"])
    return errors_section(sources, "Errors on many sources")


def errors_section(sources: pd.DataFrame, title: str) -> Section:
    """Return the table for lines with `kind`, `source`, `texts`, `tokens` and, by the names of `NAMES`, the mean error
    over gammas and the worst with its bounds.
    """
    shown, names = sources[["kind", "source", "texts", "tokens"]].copy(), _measured(sources)
    for name, label in names.items():
        shown[f"{label}: mean"] = sources[f"{name}_mean"].map("{:+.1%}".format)
        shown[f"{label}: worst"] = printed(sources, f"{name}_error", "+.1%")
        shown[f"{label}: at gamma"] = sources[f"{name}_gamma"]
    near = {name: sources[f"{name}_error"].abs() < NEAR for name in names}
    *others, best = names  # the last is the one that is recommended
    inside = (sources[f"{best}_error_low"] < 0) & (sources[f"{best}_error_high"] > 0)
    missed = sources[~(near[best] | inside)]
    beside = ", ".join(f"{names[name]} on {near[name].sum()}" for name in reversed(others))
    words = (
        f"Of {counted(len(sources), 'source')}, “{names[best]}” is less than 2% off at every gamma on "
        f"{near[best].sum()}; on {(~near[best] & inside).sum()} more its worst miss is not significant. Others are "
        f"less than 2% off as follows: {beside}."
    )
    any_near = pd.DataFrame(near).any(axis=1)
    if any_near.sum() > near[best].sum():
        words += f" At least one of these models is on {any_near.sum()}."
    if len(missed):
        where = ", ".join(f"{line.source} ({line.kind})" for line in missed.itertuples())
        words += f" It misses on {where}; there it is off by"
        words += f" {missed[f'{best}_error'].abs().max():.1%} at most."
    caption = (
        "Errors of tokens per round over gamma 1 to 15 (1 to 4 for heads), half of the texts predicted from the other "
        "and the reverse; the worst with 95% intervals, prompts drawn again and models fitted again."
    )
    return Section(title, (words,), ((caption, shown),))


def _measured(lines: pd.DataFrame) -> dict[str, str]:
    """Return those of `NAMES` that these results have."""
    return {name: label for name, label in NAMES.items() if f"{name}_error" in lines}


def prediction_families(path: Path = FAMILIES) -> Section:
    """Return how often predictions hold on simulated families of texts, a line per family."""
    seeds = pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))["figures"])
    shown = seeds.groupby("family", sort=False).size().rename("seeds").reset_index()
    shares = {}
    for name, label in _measured(seeds).items():
        error, low, high = (seeds[f"{name}_error{end}"] for end in ("", "_low", "_high"))
        ends = error.groupby(seeds["family"], sort=False).agg(["min", "max"]).values
        shown[f"{label}: worst errors"] = [f"{least:+.1%} to {most:+.1%}" for least, most in ends]
        inside = (low < 0) & (high > 0) & ((high - low) / 2 <= NARROW)
        shares[name] = (error.abs() < NEAR) | inside
        shown[f"{label}: hold"] = shares[name].groupby(seeds["family"], sort=False).mean().map("{:.0%}".format).values
    words = (
        f"The worst error over gamma is below {NEAR:.0%}, or not significant with an interval of at most {NARROW:.0%} "
        f"to each side, in {shares['stretches'].mean():.0%} of {len(seeds)} simulated sets for stretches of the text, "
        f"in {shares['markov'].mean():.0%} for Markov along the text and in {shares['textbook'].mean():.0%} for the "
        "capped geometric."
    )
    caption = "Least and greatest worst error over gamma by family, and the share of sets in which predictions hold."
    return Section("Errors where texts differ", (words,), ((caption, shown),))

"""Whatever a run has measured, no page of it says what cannot be, nor one thing here and another there.

Simulated runs, degenerate ones among them, are turned into everything that is made of a run: the findings, the
terminal's table and closing sentences, the run's own page and the chapter of a report, a comparison with another run,
and how to serve it. Each function marked `@check` is one list of impossibilities: it yields a sentence for whatever it
finds. To add one, write such a function.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import pandas as pd
import pytest
from fixtures.simulated_runs import SimulatedRun, write_run_folder

from specdec.advice.advice import RoundCost, judge, predict
from specdec.analysis.acceptance.model_sections import gamma_choice
from specdec.analysis.findings.compare import comparison_section
from specdec.analysis.findings.run_findings import RunFindings, run_findings
from specdec.analysis.intervals import FEWEST, POSITIVE, RELATIVE, SHARE, Interval, Range, per_round
from specdec.analysis.pages import report_chapters
from specdec.analysis.pages.html import cell
from specdec.analysis.read.runs import Run, open_folder
from specdec.analysis.sections import Section
from specdec.terminal import summary_lines

SAMPLE = (6, 9, 10, 11)  # no proposal, one prompt, one token, identical prompts
OTHERS = (24, 26, 27, *range(31, 38))  # a usual one, and each other kind
SLACK = 1e-9


@dataclass(frozen=True)
class Pages:
    """Everything that is made of a run."""

    made: SimulatedRun
    run: Run
    findings: RunFindings
    sections: tuple[Section, ...]
    lines: tuple[list[str], ...]  # of the terminal's table, headings first

    def intervals(self) -> Iterator[tuple[str, int, Interval]]:
        """Yield every stored estimate with its interval, by name, at its gamma."""
        arms = [(self.made.primary, self.findings.metrics), *((arm["gamma"], arm) for arm in self.findings.arms)]
        for gamma, metrics in arms:
            for name in metrics:
                if ".ci_" not in name and name not in ("gamma", "primary"):
                    yield name, gamma, Interval.from_metrics(metrics, name)
        for gamma in self.made.gammas:
            curves = {name: curve[gamma] for name, curve in self.findings.curves.items() if gamma in curve}
            yield from ((n, gamma, Interval.from_metrics(curves, n)) for n in curves if ".ci_" not in n)
        for gamma, account in self.findings.account["gammas"].items():
            for name, value in account["intervals"].items():
                yield f"account/{name}", int(gamma), Interval(value["estimate"], value["low"], value["high"])

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield every sentence, caption, title and cell, with the place where it stands."""
        for place, sentences in (("note", self.findings.notes), ("closing", self.findings.closing)):
            yield from ((place, sentence) for sentence in sentences)
        yield from (("terminal", cell) for line in self.lines for cell in line)
        for section in self.sections:
            for sentence in (section.title, *section.text):
                yield section.title, sentence
            for caption, table in section.tables:
                yield section.title, caption
                yield from ((f"{section.title}, {name}", cell(each)) for name in table for each in table[name])
            for _, figure in section.figures:
                yield f"{section.title}, figure", f"{figure.get_suptitle()} {figure.get_supxlabel()}"

    def columns(self) -> Iterator[tuple[str, str, int, Interval]]:
        """Yield the printed values of every table with a line for each gamma: its title, heading, gamma, value."""
        headings, *lines = self.lines
        tables = [("terminal", pd.DataFrame(lines, columns=[f"{at} {name}" for at, name in enumerate(headings)]))]
        tables += [(section.title, table) for section in self.sections for _, table in section.tables]
        for title, table in tables:
            by = next((name for name in table if re.fullmatch(r"(0 )?gamma", str(name))), None)
            for line in table.to_dict("records") if by is not None else ():
                gamma = re.match(r"\d+", str(line[by]))
                for name, each in line.items():
                    value = PRINTED.match(cell(each))
                    if gamma and value and name != by:
                        yield title, str(name), int(gamma[0]), _value(value)


NUMBER = r"([-+]?\d[\d,]*(?:\.\d+)?)%?"
PRINTED = re.compile(rf"{NUMBER}(?: \({NUMBER} to {NUMBER}\))?")


def _value(match: re.Match[str]) -> Interval:
    return Interval(*(float(part.replace(",", "")) for part in match.groups() if part is not None))


def _same(printed: Interval, stored: Interval, numbers: int = 3) -> bool:
    """Return True if estimate, low and high, or the first of these `numbers`, are equal to two digits."""
    pairs = [(printed.estimate, stored.estimate), (printed.low, stored.low), (printed.high, stored.high)]
    return all(abs(one - other) < 0.0051 for one, other in pairs[:numbers])


Check = Callable[[Pages], Iterator[str]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def range_of(name: str, gamma: int) -> Range | None:
    """Return the range of a metric, curve or factor of the account; None for what may be anything."""
    last = name.removeprefix("account/").rpartition("/")[2]
    if last in ("tokens_error", "speedup_error", "offered_error"):
        return RELATIVE
    if re.search(r"(^|/)(speedup|throughput|cost|null|loop|baseline|formula|priced|step_overhead)", name):
        return SHARE if last in ("prefill_share", "overhead_share") else POSITIVE
    if re.match(r"(tokens_per_round|acceleration_rate|compression_ratio|omega)", last):
        return per_round(gamma)
    if re.fullmatch(r"curve/(measured|capped_geometric|position|replay)", name):
        return per_round(gamma)
    if last in ("alpha", "alpha.mle", "alpha.text", "accepted_per_offered", "proposals.share", "share", "identical"):
        return SHARE
    return None


@check
def what_is_stored_is_possible(pages: Pages) -> Iterator[str]:
    for name, gamma, value in pages.intervals():
        within = range_of(name, gamma)
        known = [each for each in (value.low, value.estimate, value.high) if isfinite(each)]
        if within and not all(within.low - SLACK <= each <= within.high + SLACK for each in known):
            yield f"{name} at gamma {gamma} is {value}, outside {within}"
        if isfinite(value.low) != isfinite(value.high):
            yield f"{name} at gamma {gamma} has one bound only: {value}"
        if value.contains(value.estimate) is False:
            yield f"{name} at gamma {gamma} lies outside its own interval: {value}"


@check
def what_is_printed_is_possible(pages: Pages) -> Iterator[str]:
    for place, text in pages.texts():
        for match in PRINTED.finditer(text):
            value = _value(match)
            if value.known and not value.low <= value.estimate <= value.high:
                yield f"{place}: {match[0]} lies outside its own interval"
        if re.search(r"\b(nan|NaN|inf|None(?! of))\b", text):
            yield f"{place}: {text}"
        if re.search(r"(?<![\d.,])(?<!\+ )1 (prompts|tokens|rounds|gammas|categories|drafts|texts)\b", text):
            yield f"{place}: {text}"
        for part, whole in re.findall(r"(?<![\d.,])(\d+) of (?:the )?(\d+)\b", text):
            if int(part) > int(whole):
                yield f"{place}: {part} of {whole}"
        if re.search(r"-\d{3,}(\.\d+)?%", text):
            yield f"{place}: less than nothing, {text}"
        if re.search(r"\b(Of|of|in) [01] categor|largest in ([^,]*), .* smallest in \2,", text):
            yield f"{place}: one category is compared, {text}"
        if "gains most is verifying" in text:
            yield f"{place}: verifying more tokens gains nothing, {text}"
    for title, name, gamma, value in pages.columns():
        known = [each for each in (value.low, value.estimate, value.high) if isfinite(each)]
        if "tokens per round" in name and not all(1 <= each <= gamma + 1 for each in known):
            yield f"{title}: {name} of {value} at gamma {gamma}"
        if "speedup" in name and "over" not in name and not all(each > 0 for each in known):
            yield f"{title}: {name} of {value} at gamma {gamma}"


@check
def tokens_of_a_round_are_at_most_all_drafts_and_one(pages: Pages) -> Iterator[str]:
    most = max(pages.made.gammas) + 1
    for place, text in pages.texts():
        for match in re.finditer(rf"{PRINTED.pattern} (?:is )?tokens per (?:round|call)", text):
            value = _value(match)
            at = re.match(r"[^.;]*? at gamma (\d+)", text[match.end() :])
            limit = int(at[1]) + 1 if at else most
            if max(value.estimate, value.high if value.known else 0) > limit:
                yield f"{place}: {match[0]}, where {limit} is the most"


@check
def few_prompts_have_neither_interval_nor_verdict(pages: Pages) -> Iterator[str]:
    if pages.made.prompts >= FEWEST:
        return
    verdicts = (
        r"peculation pays(?! (here )?is not settled)(?! in simulated)|does not pay\b|is faster than|"
        r"by more than chance|slower than the baseline|\bsignificant|surely|(?<!be )told apart|Speculate:|"
        r"Leave speculation off|Do not speculate|\d\*? best|Best gamma"
    )
    for place, text in pages.texts():
        if re.search(r"\d\)? \(-?[\d.]+%? to ", text):
            yield f"{place}: an interval from {pages.made.prompts} prompts, {text}"
        if found := re.search(verdicts, text):
            yield f"{place}: the verdict {found[0]!r} on {pages.made.prompts} prompts, {text}"


@check
def the_best_is_faster_than_plain_decoding(pages: Pages) -> Iterator[str]:
    for line in pages.lines[1:]:
        if "best" in line[0] and float(line[3].split()[0]) < 1:
            yield f"terminal: {' | '.join(line)}"
    for place, text in pages.texts():
        if found := re.search(r"Best gamma of [^.;]*speedup 0\.\d+", text):
            yield f"{place}: {found[0]}"


@check
def an_estimate_has_one_interval(pages: Pages) -> Iterator[str]:
    """Wherever the speedup or tokens per round of a gamma are printed, their bounds are those in the summary."""
    known = {
        (quantity, arm["gamma"]): Interval.from_metrics(arm, quantity)
        for arm in pages.findings.arms
        for quantity in ("speedup", "tokens_per_round")
    }
    for title, name, gamma, value in pages.columns():
        quantity = re.search("(speedup|tokens per round)$", name)
        stored = known.get((quantity[0].replace(" ", "_"), gamma)) if quantity else None
        if stored and value.known and not _same(value, stored):
            yield f"{title}: {name} {value} at gamma {gamma}, which is {stored} in the summary"
    for place, text in pages.texts():
        for words, quantity in (("[Ss]peedup ", "speedup"), ("", "tokens_per_round")):
            after = "" if words else " tokens per round"
            for match in re.finditer(f"{words}{PRINTED.pattern}{after}", text):
                value = _value(match)
                alike = [stored for (name, _), stored in known.items() if name == quantity and _same(value, stored, 1)]
                if value.known and alike and not any(_same(value, stored) for stored in alike):
                    yield f"{place}: {match[0]}, which is {alike[0]} in the summary"


@check
def all_places_give_one_verdict(pages: Pages) -> Iterator[str]:
    """The notes, the closing sentences, the summary, how to serve, and what advice would say of the same figures."""
    said = " ".join([*pages.findings.notes, *pages.findings.closing])
    verdicts = {
        verdict
        for verdict, words in {
            "not settled": r"hether speculation pays[^.;]* is not settled",
            "pays": r"(?<!hether )[Ss]peculation pays",
            "does not pay": r"peculation does not pay",
        }.items()
        if re.search(words, said)
    }
    if len(verdicts) != 1:
        yield f"{len(verdicts)} verdicts, {sorted(verdicts)}"
    speedup = pages.findings.arms[list(pages.made.gammas).index(pages.made.primary)]
    value = Interval.from_metrics(speedup, "speedup")
    if "pays" in verdicts and not value.low > 1 or "does not pay" in verdicts and not value.high < 1:
        yield f"{verdicts} at a speedup of {value}"
    if abs(pages.findings.account["gammas"][pages.made.primary]["product"] - value.estimate) > SLACK:
        yield "the account does not multiply out to the speedup"
    cost = RoundCost(0.1, 1.0, 0.1, 1.0, 1.0)
    counted = Interval(value.estimate, value.low, value.high, prompts=pages.made.prompts)
    *_, advised = judge([predict(pages.made.primary, Interval(1.5), counted, cost, {1: 1.0})], "it")
    noise = pages.findings.metrics.get("null/floor", 0.0)
    if ("not settled" in advised) != ("not settled" in verdicts) and max(
        value.estimate, 1 / value.estimate
    ) > 1 + noise:
        yield f"advice says {advised!r}, the run {verdicts}"
    served = pages.findings.serving["verdict"]
    if served.startswith("Speculate") and not any(
        Interval.from_metrics(arm, "speedup").low > 1 for arm in pages.findings.arms
    ):
        yield f"to serve: {served}"


@check
def what_explains_a_run_is_said_first(pages: Pages) -> Iterator[str]:
    rounds = pages.run.rounds()
    own = rounds[(rounds["method"] != "baseline") & (rounds["gamma"] == pages.made.primary)]
    tokens = own.groupby("prompt")["committed"].sum()
    idle = bool((own["committed"] == 1).all())
    reason = "None of " if idle else "One text of " if tokens.max() > max(tokens.sum(), 4 * tokens.mean()) / 2 else ""
    reason = reason if own["offered"].any() else "No draft token was offered "
    closing = pages.findings.closing
    before = closing[: next(at for at, sentence in enumerate(closing) if "peculation" in sentence)]
    if reason and not (pages.sections[0].text[0].startswith(reason) and any(x.startswith(reason) for x in before)):
        yield f"{reason!r} comes after {pages.sections[0].text[0]!r} or {before}"
    for place, text in pages.texts() if idle else ():
        if place in ("note", "closing") and re.search(r"(gains|costs) most|promises", text):
            yield f"{place}: nothing was gained, and {text}"


# The runs -------------------------------------------------------------------------------------------


def pages_of(folder: Path, seed: int) -> Pages:
    made = write_run_folder(folder / f"run{seed}", seed)
    findings = run_findings(open_folder(made.folder))
    for name, content in (("summary.json", findings.summary), ("account.json", findings.account)):
        (made.folder / name).write_text(json.dumps(content, default=str), encoding="utf-8")
    run = open_folder(made.folder)
    (chapter,) = report_chapters.run_chapters([run])
    sections = (*findings.sections, *chapter.sections, comparison_section([run, run]), gamma_choice(run))
    return Pages(made, run, findings, sections, tuple(summary_lines(findings)))


# About a second a run: the second tier has the kinds that the first has not, `-m benchmark` five hundred runs.
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SAMPLE, id="sample"),
        pytest.param(OTHERS, id="kinds", marks=pytest.mark.slow),
        *(pytest.param(range(at, at + 22), id=f"{at}", marks=pytest.mark.benchmark) for at in range(38, 500, 22)),
    ],
)
def test_no_page_says_what_cannot_be(tmp_path, undrawn, seeds):
    found: Counter[str] = Counter()
    for seed in seeds:
        pages = pages_of(tmp_path, seed)
        found.update(f"run {seed} ({pages.made.kind}): {sentence}" for check in CHECKS for sentence in check(pages))
    assert not found

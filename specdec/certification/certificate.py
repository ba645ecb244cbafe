"""The certificate: all checks of a combination, the verdict, and what it does not say; as a table and as a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from specdec.certification.checks import Check
from specdec.text.writing import write_atomically

Outcome = Literal["certified", "not lossless", "declared lossy", "not refuted"]

LIMITS = (
    "The exact level holds for the rule, on a table of at most four tokens: the same code decides on larger ones.",
    "The statistical level speaks of these prompts and this target; a smaller bias than stated may have been missed.",
    "In 16-bit, p itself depends on the size of a call: drawn tokens are held against the p that was computed.",
    "Speed, quality of the text and agreement with another engine are no part of it.",
)


@dataclass(frozen=True)
class Declaration:
    """The claim of one part.

    Attributes:
        part, name: "verifier" or "drafter", and its registered name.
        module: of the class.
        lossless: the claim.
        standing: "proven by specdec's tests" for classes of specdec; "declared, not proven" for others, or "declared,
            passed this certificate".
    """

    part: str
    name: str
    module: str
    lossless: bool
    standing: str


@dataclass(frozen=True)
class Certificate:
    """`certificate.json`.

    Attributes:
        false_alarm: chance, at most, that a lossless combination fails by luck of the draws.
        power: shifts that would have been found in 9 cases of 10, in words.
        total_variation: of a combination that is declared lossy, the mean over the committed tokens between the law of
            an emitted token and the target's; None where it is not known.
        config, environment: resolved values; versions, code, weights, prompts.
    """

    outcome: Outcome
    sentence: str
    combination: Mapping[str, Any]
    declarations: Sequence[Declaration]
    checks: Sequence[Check]
    false_alarm: float
    power: Sequence[str]
    total_variation: float | None
    limits: Sequence[str]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomically(path, json.dumps(asdict(self), indent=1, default=str) + "\n")


def concluded(checks: Sequence[Check]) -> tuple[Outcome, str]:
    """Return the outcome and its sentence: one failure refutes, and something must have been checked."""
    failed = [check for check in checks if check.verdict == "FAILED"]
    passed = [check for check in checks if check.verdict == "passed"]
    if failed:
        first = failed[0]
        why = f" ({first.detail})" if first.detail else ""
        others = f"; {len(failed) - 1} other checks failed as well" if len(failed) > 1 else ""
        return "not lossless", f"Not lossless: {first.level} check {first.name!r} failed{why}{others}."
    levels = [level for level in ("exact", "statistical", "greedy") if any(check.level == level for check in passed)]
    return "certified", f"Certified lossless: {len(passed)} checks passed ({', '.join(levels)}), none failed."


def show(certificate: Certificate, console: Console) -> None:
    """Print the table of checks, and below it what they stand for."""
    name = ", ".join(f"{part} {value}" for part, value in certificate.combination.items())
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 130))  # a log has no narrow lines
    table = Table(box=SIMPLE_HEAD, title=f"Certificate: {name}", title_justify="left")
    for heading in ("level", "check", "compared with", "draws", "statistic", "p", "verdict"):
        number = heading in ("draws", "p")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "level")
    for check in certificate.checks:
        p_value = "" if check.p_value is None else f"{check.p_value:.2g}"
        draws = f"{check.draws:,}" if check.draws else ""
        cells = (check.level, check.name, check.compared, draws, check.statistic, p_value, check.verdict)
        table.add_row(*cells)
    if certificate.checks:
        console.print(table)
    notes = [f"{check.name}: {check.verdict}, {check.detail}." for check in certificate.checks if check.detail]
    notes += [f"{each.part} {each.name}: {each.standing}." for each in certificate.declarations]
    if any(check.p_value is not None for check in certificate.checks):
        notes.append(f"A lossless combination fails by luck in at most {certificate.false_alarm:.1%} of certificates.")
    notes += [f"Would have been found in 9 of 10 cases: {sentence}." for sentence in certificate.power]
    for sentence in (*notes, certificate.sentence):
        console.print(sentence, markup=False, highlight=False)

"""The certificate: the checks of a combination, what each compared, and the verdict; as a table and as a file."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from specdec.environment import capture
from specdec.errors import DeclaredLossy, NotLossless, SpecdecError, is_out_of_memory
from specdec.plan.plan import Plan
from specdec.plugins import is_foreign
from specdec.session.parts import Parts
from specdec.terminal import print_lines, print_links
from specdec.text.writing import write_json

logger = logging.getLogger(__name__)

Level = Literal["exact", "statistical", "greedy"]
Verdict = Literal["passed", "FAILED", "not applicable"]
Outcome = Literal["certified", "not lossless", "declared lossy", "not refuted"]


@dataclass(frozen=True)
class Check:
    """A check after it was made.

    Level "exact" enumerates or compares token by token in float64; "statistical" draws on the user's own parts;
    "greedy" compares their whole outputs, differences scored again in float32.
    """

    level: Level
    name: str
    compared: str
    draws: int  # outcomes, tokens or outputs
    statistic: str  # the number that decides, in words
    verdict: Verdict
    p_value: float | None = None  # the chance of one at least as large if lossless; None where nothing is random
    detail: str = ""  # why it failed or does not apply
    facts: Mapping[str, Any] = field(default_factory=dict)


def judged(level: Level, name: str, compared: str, draws: int, statistic: str, fault: str, **rest: Any) -> Check:
    """Return a check that was made: failed where a `fault`, a sentence, says why; passed where that is ""."""
    return Check(level, name, compared, draws, statistic, "FAILED" if fault else "passed", detail=fault, **rest)


def not_applicable(level: Level, name: str, why: str) -> Check:
    """Return the line of a check that says nothing about this combination."""
    return Check(level, name, "", 0, "", "not applicable", detail=why)


def attempted(level: Level, name: str, check: Callable[[], list[Check]]) -> list[Check]:
    """Make checks; an error within is a failure of the combination. SpecdecError: a fault that is not its own."""
    try:
        return check()
    except SpecdecError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        logger.debug("The check %r raised an error.", name, exc_info=True)
        first = (str(error).splitlines() or [""])[0]
        return [judged(level, name, "", 0, "", f"it raised {type(error).__name__}: {first}")]


@dataclass(frozen=True)
class Declaration:
    """The claim of one part, a verifier or a drafter, and in `standing` what the claim rests on."""

    part: str
    name: str
    module: str
    lossless: bool
    standing: str


def declarations(plan: Plan, outcome: Outcome) -> list[Declaration]:
    """Return the claims of a combination's verifier and drafter, as they stand after an outcome."""
    found, chosen = [], plan.chosen
    for part, values, cls, capabilities in (
        ("verifier", chosen.values.verifier, type(chosen.rule), chosen.rule.capabilities),
        ("drafter", chosen.values.drafter, chosen.drafter_class, chosen.drafter_class.capabilities),
    ):
        own = not is_foreign(cls)
        standing = "lossless, proven by specdec's tests" if own else "lossless, declared, not proven"
        if not capabilities.lossless:
            standing = "declared lossy"
        elif outcome == "not lossless":
            standing = "declared lossless; this certificate refutes the combination"
        elif not own and outcome == "certified":
            standing = "declared lossless by another package; it passed this certificate"
        found.append(Declaration(part, values["name"], cls.__module__, capabilities.lossless, standing))
    return found


@dataclass(frozen=True)
class Certificate:
    """The content of `certificate.json`."""

    outcome: Outcome
    sentence: str
    checks: Sequence[Check] = ()
    power: Sequence[str] = ()  # the shifts that would have been found in 9 cases of 10, in words
    # The mean total variation between the laws of emitted tokens and the target's, for a combination that is declared
    # lossy; None where it is not known.
    total_variation: float | None = None
    combination: Mapping[str, Any] = field(default_factory=dict)
    declarations: Sequence[Declaration] = ()
    limits: Sequence[str] = ()

    def publish(self, parts: Parts, false_alarm: float, folder: Path, **beside: Any) -> None:
        """Write `certificate.json` with the configuration and environment, of which `beside` is a part, and print its
        table and notes. Raises NotLossless, DeclaredLossy: the outcome. A lossless combination fails by luck of the
        draws with the chance `false_alarm` at most.
        """
        plan, prompts = parts.plan, parts.prompts
        environment = {
            **capture(parts.target.device, {"seed": plan.seed}),
            "model": parts.target.describe(),
            "prompts": {"name": prompts.name, "sha256": prompts.content_hash},
            **beside,
        }
        content = {**asdict(self), "false_alarm": false_alarm, "config": plan.config, "environment": environment}
        write_json(folder / "certificate.json", content)
        console = get_console()
        if not console.is_terminal:
            console = Console(file=console.file, width=max(console.width, 130))  # a log has no narrow lines
        name = ", ".join(f"{part} {value}" for part, value in self.combination.items())
        table = Table(box=SIMPLE_HEAD, title=f"Certificate: {name}", title_justify="left")
        for heading in ("level", "check", "compared with", "draws", "statistic", "p", "verdict"):
            number = heading in ("draws", "p")
            table.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "level")
        for check in self.checks:
            p_value = "" if check.p_value is None else f"{check.p_value:.2g}"
            draws = f"{check.draws:,}" if check.draws else ""
            table.add_row(check.level, check.name, check.compared, draws, check.statistic, p_value, check.verdict)
        if self.checks:
            console.print(table)
        notes = [f"{check.name}: {check.verdict}, {check.detail}." for check in self.checks if check.detail]
        notes += [f"{each.part} {each.name}: {each.standing}." for each in self.declarations]
        if any(check.p_value is not None for check in self.checks):
            notes.append(f"A lossless combination fails by luck in at most {false_alarm:.1%} of certificates.")
        notes += [f"Would have been found in 9 of 10 cases: {sentence}." for sentence in self.power]
        print_lines(console, *notes, self.sentence)
        print_links(get_console(), {"results": str(folder)})
        if self.outcome == "not lossless":
            raise NotLossless(self.sentence)
        if self.outcome == "declared lossy":
            raise DeclaredLossy(self.sentence)


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

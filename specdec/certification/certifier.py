"""Makes a certificate from a configuration: builds the parts, checks them on three levels, and gives the verdict."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich import get_console

from specdec.certification.certificate import LIMITS, Certificate, Declaration, Outcome, concluded, show
from specdec.certification.checks import Check, attempted, not_applicable
from specdec.certification.exact import drafter_checks, rule_checks
from specdec.certification.greedy_identity import GREEDY, identity_checks
from specdec.certification.near_ties import near_tie_check
from specdec.certification.redrawn_rounds import Redraws
from specdec.certification.statistical import DrawnTests, Draws, Texts, Tick, draw, judged, power_sentences
from specdec.clock import CpuClock
from specdec.config import CertifyConfig
from specdec.drafters import Drafter, drafters
from specdec.environment import capture
from specdec.errors import DeclaredLossy, NotLossless, UsageError
from specdec.plan.beside import refuse_several
from specdec.plan.budget import refuse_budget, refuse_null
from specdec.plugins import is_foreign
from specdec.progress import detail, progress_bar
from specdec.records import Request
from specdec.sampling import generator_for
from specdec.session.arm import Arm
from specdec.session.dtypes import arithmetic_notes
from specdec.session.foreign_claims import record_passed
from specdec.session.parts import Parts, build, limited, prepare
from specdec.structures import structures
from specdec.targets import Target, targets
from specdec.terminal import print_links
from specdec.verifiers import verifiers

_LOSSY_ROUNDS = 400  # that measure the total variation of a combination which is declared lossy


@dataclass
class _Findings:
    """Findings of the levels so far."""

    outcome: Outcome = "certified"
    sentence: str = ""
    checks: list[Check] = field(default_factory=list)
    power: list[str] = field(default_factory=list)
    total_variation: float | None = None


def certify(config: CertifyConfig, folder: Path) -> Certificate:
    """Check a combination on all levels, print the table, and write `certificate.json` to the folder.

    The exact level is of the rule, and of the drafter where it can draft for a table and for tiny models. The
    statistical level is of all parts at the configured temperature, and is left out where that is 0. The greedy level
    compares whole outputs at temperature 0.

    Raises:
        NotLossless: a check failed; the certificate is written.
        DeclaredLossy: the combination does not claim to be lossless; the certificate says by how much it is not.
        SpecdecError: see `specdec.errors`; what can be wrong is found before anything is drawn.
    """
    check_fits(config)
    if config.measurement.threads is not None:
        torch.set_num_threads(config.measurement.threads)
    parts = build(config)
    config = limited(config, parts.target)
    (folder / "config.yaml").write_text(yaml.safe_dump(asdict(config), sort_keys=False), encoding="utf-8")
    prepare(parts, max(parts.prompts.prompts, key=lambda prompt: len(prompt.tokens)), config.measurement)
    for note in arithmetic_notes(parts):
        detail(note)
    texts = [(prompt.id, prompt.tokens) for prompt in parts.prompts.prompts]
    environment = _environment(config, parts)
    lossless = all(each.lossless for each in _declarations(config, "certified")) and not _forced(config)
    found = _check_all(config, parts, texts) if lossless else _measure_loss(config, parts, texts)
    certificate = Certificate(
        outcome=found.outcome,
        sentence=found.sentence,
        combination={
            "drafter": config.drafter["name"],
            "verifier": config.verifier["name"],
            "structure": parts.primary.structure.label,
            "target": str(config.target.get("model", config.target["name"])),
            "temperature": config.sampling["temperature"],
        },
        declarations=_declarations(config, found.outcome),
        checks=found.checks,
        false_alarm=config.certificate.false_alarm,
        power=found.power,
        total_variation=found.total_variation,
        limits=LIMITS,
        config=asdict(config),
        environment=environment,
    )
    certificate.save(folder / "certificate.json")
    if found.outcome == "certified":
        record_passed(config, folder / "certificate.json")
    show(certificate, get_console())
    print_links(get_console(), {"results": str(folder)})
    if found.outcome == "not lossless":
        raise NotLossless(found.sentence)
    if found.outcome == "declared lossy":
        raise DeclaredLossy(found.sentence)
    return certificate


def check_fits(config: CertifyConfig) -> None:
    """Refuse what is more than one combination, what has no law to be lossless to, and a temperature that the parts are
    not made for.

    Raises:
        UsageError: says what to use instead.
    """
    refuse_several(config, "specdec.certify certifies one drafter", "use measurement.drafters=[] and ask for each")
    refuse_budget(config, "specdec.certify")
    refuse_null(config, "specdec.certify")
    if targets.get(config.target["name"]).capabilities.recorded:
        raise UsageError(
            f"Bad value target={config.target['name']}: it knows recorded tokens only, and a certificate compares "
            "with a law; use target=causal."
        )
    if config.study is not None:
        raise UsageError("Bad value study: specdec.certify certifies one combination; leave +experiment out.")
    if verifiers.build(config.verifier).capabilities.greedy_only and config.sampling["temperature"] != 0:
        raise UsageError(
            f"Bad value verifier={config.verifier['name']}: it is for temperature 0, and specdec.certify draws at "
            f"{config.sampling['temperature']}; add sampling=greedy."
        )


# The levels ---------------------------------------------------------------------------------------


def exact_level(config: CertifyConfig) -> list[Check]:
    """Return the checks of the exact level for the configured rule, structure and drafter."""
    verifier, structure = verifiers.build(config.verifier), structures.build(config.structure)
    drafter_config = drafters.config(config.drafter)

    def make(target: Target) -> Drafter:
        if drafters.get(config.drafter["name"]).capabilities.reads_states:
            raise UsageError("it drafts with what was trained on a model's states")
        return drafters.construct(drafter_config, target=target)

    return [
        *rule_checks(verifier, structure.name),
        *drafter_checks(make, verifier, structure.name),
        *identity_checks(verifier, structure, make),
    ]


def _check_all(config: CertifyConfig, parts: Parts, texts: Texts) -> _Findings:
    """Run the three levels."""
    found = _Findings(checks=exact_level(config))
    draws, sampling = _draws(config), parts.target.sampling
    with _progress(draws, min(len(texts), config.certificate.outputs), sampling.greedy) as tick:
        if sampling.greedy:
            why = "temperature 0 draws nothing: the greedy level compares whole outputs"
            found.checks.append(not_applicable("statistical", "draws", why))
        else:
            checks, found.power = _statistical(config, parts.primary, texts, draws, tick)
            found.checks += checks
        arm = parts.primary if sampling.greedy else _greedy_arm(config, parts)
        limit, outputs = config.measurement.limit, texts[: config.certificate.outputs]
        found.checks.append(
            attempted("greedy", "greedy outputs", lambda: near_tie_check(arm, outputs, limit, config.seed, tick))
        )
    found.outcome, found.sentence = concluded(found.checks)
    return found


def _statistical(
    config: CertifyConfig, arm: Arm, texts: Texts, draws: Draws, tick: Tick
) -> tuple[list[Check], list[str]]:
    """Return the checks of the statistical level, and what they would have found."""
    drawn: list[DrawnTests] = []

    def check() -> Check:
        drawn.append(draw(arm, texts, draws, config.seed, tick))
        return drawn[0].states

    states = attempted("statistical", "draws", check)
    if not drawn:
        return [states], []
    false_alarm = config.certificate.false_alarm
    return judged(drawn[0], false_alarm), power_sentences(drawn[0], false_alarm)


def _greedy_arm(config: CertifyConfig, parts: Parts) -> Arm:
    """Return the combination at temperature 0: the drafter is made again, because it keeps its target's sampling."""
    parts.target.standardise(GREEDY)
    drafter = drafters.construct(drafters.config(config.drafter), target=parts.target)
    return replace(parts.primary, drafter=drafter, verifier=parts.primary.verifier.for_greedy())


def _draws(config: CertifyConfig) -> Draws:
    asked = config.certificate
    return Draws(asked.rounds, asked.places, Redraws(asked.redraws, asked.redrafts), config.measurement.limit)


@contextmanager
def _progress(draws: Draws, texts: int, greedy: bool) -> Iterator[Tick]:
    """Show a bar for each kind of work."""
    totals = {"outputs": texts} if greedy else {"rounds": draws.rounds, "places": draws.places, "outputs": texts}
    with progress_bar() as progress:
        bars = {what: progress.add_task(what, total=total) for what, total in totals.items()}
        yield lambda what, amount: progress.advance(bars[what], amount)


# Declarations -------------------------------------------------------------------------------------


def _declarations(config: CertifyConfig, outcome: Outcome) -> list[Declaration]:
    """Return what verifier and drafter claim, and what the claim rests on."""
    found = []
    for part, name, cls, claim in (
        (
            "verifier",
            config.verifier["name"],
            verifiers.get(config.verifier["name"]),
            verifiers.build(config.verifier).capabilities.lossless,
        ),
        (
            "drafter",
            config.drafter["name"],
            drafters.get(config.drafter["name"]),
            drafters.get(config.drafter["name"]).capabilities.lossless,
        ),
    ):
        own = not is_foreign(cls)
        standing = "lossless, proven by specdec's tests" if own else "lossless, declared, not proven"
        if not claim:
            standing = "declared lossy"
        elif outcome == "not lossless":
            standing = "declared lossless; this certificate refutes the combination"
        elif not own and outcome == "certified":
            standing = "declared lossless by another package; it passed this certificate"
        found.append(Declaration(part, name, cls.__module__, claim, standing))
    return found


def _forced(config: CertifyConfig) -> bool:
    """Return whether the drafter's text replaces the target's decisions, which gives the guarantee up."""
    return bool(config.drafter.get("forced", False))


def _measure_loss(config: CertifyConfig, parts: Parts, texts: Texts) -> _Findings:
    """Measure what a combination loses that says itself that it is not lossless, from the rounds of some texts."""
    sentence = "Declared lossy: nothing to certify."
    if _forced(config) or parts.target.sampling.greedy:
        why = "with drafter.forced=true" if _forced(config) else "at temperature 0 see lossless/* of specdec.run"
        return _Findings("declared lossy", f"{sentence} Its total variation was not measured {why}.")
    distances: list[float] = []
    rounds = 0
    for number in range(10 * _LOSSY_ROUNDS):
        name, tokens = texts[number % len(texts)]
        request = Request(
            tokens,
            config.measurement.limit,
            draft_generator=generator_for(config.seed, name, f"certify/draft/text {number}"),
            accept_generator=generator_for(config.seed, name, f"certify/accept/text {number}", parts.target.device),
        )
        generation = parts.primary.decode(request, CpuClock())
        rounds += len(generation.rounds)
        distances += [tv for row in generation.rounds if row.departure is not None for tv in row.departure.tv]
        if rounds >= _LOSSY_ROUNDS:
            break
    if not distances:
        return _Findings("declared lossy", f"{sentence} The law that it emits is not known for such drafts.")
    mean = float(np.mean(distances))
    measured = (
        f"a token's law is {mean:.3f} from the target's in total variation, the mean of {len(distances):,} tokens"
    )
    return _Findings("declared lossy", f"{sentence} Measured: {measured}.", total_variation=mean)


def _environment(config: CertifyConfig, parts: Parts) -> dict[str, Any]:
    """Return versions, code, hardware, and the hashes of weights and prompts."""
    return {
        **capture(parts.target.device, {"seed": config.seed}),
        "model": parts.target.describe(),
        "drafter": parts.chosen.drafter.describe(),
        "prompts": {"name": parts.prompts.name, "sha256": parts.prompts.content_hash},
    }

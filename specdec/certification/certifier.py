"""Makes a certificate from a configuration: builds the parts, checks them on three levels, and gives the verdict."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from specdec.certification.certificate import Certificate, Check, attempted, concluded, declarations, not_applicable
from specdec.certification.exact import drafter_checks, rule_checks
from specdec.certification.greedy_identity import identity_checks
from specdec.certification.statistical import Texts, draw, drawn_request
from specdec.clock import CpuClock
from specdec.config import CertificateConfig
from specdec.drafters import Drafter, drafters
from specdec.drafters.none import NoDrafter
from specdec.errors import UsageError
from specdec.folder.identity import write_config
from specdec.plan.plan import Plan
from specdec.progress import detail, stage
from specdec.sampling import GREEDY
from specdec.session.arm import Arm, seeded_request
from specdec.session.identify import arithmetic_notes
from specdec.session.kept_answers import record_passed
from specdec.session.parts import Parts, loading, open_parts, prepare
from specdec.session.rescoring import Divergence, explain
from specdec.targets import Target

LIMITS = (
    "The exact level holds for the rule, on a table of at most four tokens: the same code decides on larger ones.",
    "The statistical level speaks of these prompts and this target; a smaller bias than stated may have been missed.",
    "In 16-bit, p itself depends on the size of a call: drawn tokens are held against the p that was computed.",
    "Speed, quality of the text and agreement with another engine are no part of it.",
)
PURPOSES = "certify/greedy/draft", "certify/greedy/accept"
_LOSSY_ROUNDS = 400  # that measure the total variation of a combination which is declared lossy


def certify(plan: Plan, asked: CertificateConfig, folder: Path) -> Certificate:
    """Check a combination on all levels, print the table, and write `certificate.json` to the folder.

    The exact level is of the rule, and of the drafter where it can draft for a table and for tiny models. The
    statistical level is of all parts at the configured temperature, and is left out where that is 0. The greedy level
    compares whole outputs at temperature 0.

    Raises NotLossless: a check failed; DeclaredLossy: the combination does not claim to be lossless, and the
    certificate says by how much it is not; other SpecdecError: what can be wrong is found before anything is drawn.
    """
    with loading(plan):
        parts = open_parts(plan)
    write_config(folder, plan.config)
    prepare(parts)
    for note in arithmetic_notes(parts):
        detail(note)
    texts = [(prompt.id, prompt.tokens) for prompt in parts.prompts.prompts]
    lossless = all(each.lossless for each in declarations(plan, "certified")) and not plan.forced
    found = _check_all(parts, asked, texts) if lossless else _measure_loss(parts, texts)
    certificate = replace(
        found,
        combination={
            "drafter": plan.chosen.values.drafter["name"],
            "verifier": plan.chosen.values.verifier["name"],
            "structure": parts.primary.structure.label,
            "target": plan.model,
            "temperature": plan.sampling.temperature,
        },
        declarations=declarations(plan, found.outcome),
        limits=LIMITS,
    )
    certificate.publish(parts, asked.false_alarm, folder, drafter=parts.chosen.drafter.describe())
    record_passed(plan, folder / "certificate.json")
    return certificate


def _check_all(parts: Parts, asked: CertificateConfig, texts: Texts) -> Certificate:
    """Run the three levels: exactly for rule, structure and drafter, then on the target's own texts."""
    plan, arm, rule = parts.plan, parts.primary, parts.plan.chosen.rule
    power: list[str] = []

    def make(target: Target) -> Drafter:
        if plan.chosen.drafter_class.capabilities.reads_states:
            raise UsageError("it drafts with what was trained on a model's states")
        return drafters.construct(plan.chosen.config, target=target)

    with stage("Check exactly", "on tables and tiny models"):
        shape = plan.chosen.structure
        checks = [*rule_checks(rule, shape.name), *drafter_checks(make, rule, shape.name)]
        checks += identity_checks(rule, shape, make)
    outputs = texts[: asked.outputs]
    if plan.sampling.greedy:
        why = "temperature 0 draws nothing: the greedy level compares whole outputs"
        checks.append(not_applicable("statistical", "draws", why))
    else:

        def drawn() -> list[Check]:
            tests = draw(arm, texts, asked, parts.limit, plan.seed)
            power.extend(tests.power())
            return tests.checks()

        checks += attempted("statistical", "draws", drawn)
        parts.target.standardise(GREEDY)  # and the drafter is made again, because it keeps its target's sampling
        drafter = drafters.construct(plan.chosen.config, target=parts.target)
        arm = replace(arm, drafter=drafter, verifier=arm.verifier.for_greedy())
    checks += attempted("greedy", "greedy outputs", lambda: [near_tie_check(arm, outputs, parts.limit, plan.seed)])
    return Certificate(*concluded(checks), checks, power)


def near_tie_check(arm: Arm, texts: Texts, max_new_tokens: int, seed: int) -> Check:
    """Decode every text with drafts and without, and compare; the target was greedy before the drafter was made."""
    plain = replace(arm, drafter=NoDrafter(), structure=arm.structure.resized(0))
    parted: list[Divergence] = []
    accepted = 0
    with stage("Compare outputs", total=len(texts), shorter="certificate.outputs=N compares fewer") as under_way:
        for name, tokens in texts:
            asked = arm.target, (name, tokens), max_new_tokens, seed, PURPOSES
            baseline = plain.decode(seeded_request(*asked), CpuClock())
            output = arm.decode(seeded_request(*asked, baseline.tokens), CpuClock())
            accepted += sum(row.accepted for row in output.rounds)
            divergence = explain(arm.target, (name, arm.gamma), tokens, baseline.tokens, output.tokens)
            if divergence is not None:
                parted.append(divergence)
            under_way.advance()
    return report(parted, len(texts), accepted)


def report(parted: Sequence[Divergence], outputs: int, accepted: int) -> Check:
    """Return the near-tie report: passed when rounding explains every place where an output parts."""
    unexplained = [item for item in parted if not item.explained]
    places = "; ".join(
        f"prompt {item.prompt}, token {item.position + 1}: margin {item.margin:.2g}, rounding {item.rounding:.2g}"
        for item in (unexplained or parted)[:5]
    )
    lead = "rounding does not explain" if unexplained else "near-ties that rounding explains"
    name, compared = "greedy outputs", "plain decoding, differences scored again in float32"
    statistic = f"{len(parted)} part, {len(unexplained)} unexplained"
    detail = f"{lead}: {places}" if parted else ""
    facts = {"accepted_tokens": accepted, "divergences": [asdict(item) for item in parted]}
    return Check(
        "greedy", name, compared, outputs, statistic, "FAILED" if unexplained else "passed", None, detail, facts
    )


def _measure_loss(parts: Parts, texts: Texts) -> Certificate:
    """Measure what a combination loses that says itself that it is not lossless, from the rounds of some texts."""
    sentence = "Declared lossy: nothing to certify."
    forced = parts.plan.forced
    if forced or parts.target.sampling.greedy:
        why = "with drafter.forced=true" if forced else "at temperature 0 see lossless/* of specdec.run"
        return Certificate("declared lossy", f"{sentence} Its total variation was not measured {why}.")
    distances: list[float] = []
    rounds = 0
    with stage("Draw rounds", total=_LOSSY_ROUNDS) as under_way:
        for number in range(10 * _LOSSY_ROUNDS):
            request = drawn_request(parts.primary, texts, parts.limit, parts.plan.seed, number, f"text {number}")
            generation = parts.primary.decode(request, CpuClock())
            rounds += len(generation.rounds)
            distances += [tv for row in generation.rounds if row.departure is not None for tv in row.departure.tv]
            under_way.advance(len(generation.rounds))
            if rounds >= _LOSSY_ROUNDS:
                break
    if not distances:
        return Certificate("declared lossy", f"{sentence} The law that it emits is not known for such drafts.")
    mean = float(np.mean(distances))
    said = f"a token's law is {mean:.3f} from the target's in total variation, the mean of {len(distances):,} tokens"
    return Certificate("declared lossy", f"{sentence} Measured: {said}.", total_variation=mean)

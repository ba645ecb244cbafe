"""A line at a temperature beside a greedy run: the primary structure and plain decoding, both sampling, on every
second prompt.

Greedy text repeats itself, which flatters drafters that copy; a sampled one shows how much. Drafts stay those of greedy
decoding, the drafter's most probable tokens, and the rule keeps the target's own law whatever was drafted.
"""

from dataclasses import dataclass, replace
from typing import Any

from specdec.analysis.busy_machine import undisturbed
from specdec.clock import Clock
from specdec.folder.rounds_table import GenerationKey, round_table
from specdec.plan.plan import Plan
from specdec.prompts import Prompt
from specdec.records import Generation, Request
from specdec.sampling import SamplingConfig
from specdec.session.arm import Arm

SAMPLED_EVERY = 2  # of the prompts of a run, in their order: a line on all would add half to the time of a prompt


@dataclass(frozen=True)
class SampledPair:
    """Two methods that decode with sampling, on the target of a greedy run.

    Attributes:
        arms: plain decoding, then the drafter.
    """

    sampling: SamplingConfig
    arms: tuple[Arm, Arm]

    def decode(self, arm: Arm, request: Request, clock: Clock) -> Generation:
        """Decode one text with sampling; the target is greedy again afterwards.

        Raises:
            NumericsError: the target's logits were not finite.
        """
        greedy = arm.target.sampling
        arm.target.standardise(self.sampling)
        try:
            return arm.decode(request, clock)
        finally:
            arm.target.standardise(greedy)


def sampled_pair(plan: Plan, baseline: Arm, primary: Arm) -> SampledPair | None:
    """Return the pair of a run; None where `measurement.sampled_temperature` is null, the run is not greedy, or its
    parts do not decode with sampling one text at a time and without loss.
    """
    temperature, target = plan.measurement.sampled_temperature, baseline.target
    can, rule = plan.chosen.drafter_class.capabilities, plan.chosen.rule
    fits = (
        target.sampling.greedy
        and not target.capabilities.recorded
        and plan.measurement.batch_size == 1
        and plan.chosen.method != "none"
        and not plan.forced
        and can.lossless
        and not can.needs_reference
        and rule.capabilities.lossless
        and not rule.capabilities.greedy_only
    )
    if temperature is None or not fits:
        return None
    sampling = replace(target.sampling, name="temperature", temperature=temperature)
    return SampledPair(sampling, (replace(baseline, verifier=rule), replace(primary, verifier=rule)))


def sampled_line(
    pair: SampledPair, arm: Arm, prompt: Prompt, repeat: int, generation: Generation, clock: Clock, flagged: bool
) -> dict[str, Any]:
    """Return a line of `sampled.parquet` (`analysis.findings.run_metrics.SAMPLED`), whose seconds are those of an
    undisturbed machine; the device must be synchronised.
    """
    rounds = generation.rounds
    key = GenerationKey("", arm.method, arm.gamma, repeat, prompt.id, prompt.category)
    return {
        "temperature": pair.sampling.temperature,
        "method": arm.method,
        "gamma": arm.gamma,
        "repeat": repeat,
        "prompt": prompt.id,
        "category": prompt.category,
        "tokens": len(generation.tokens),
        "rounds": len(rounds),
        "accepted": sum(each.accepted for each in rounds),
        "rejected": sum(each.rejected for each in rounds),
        "prefill_s": clock.seconds(*generation.prefill),
        "decode_s": float(undisturbed(round_table(key, generation, clock).to_pandas())["round_s"].sum()),
        "flagged": flagged,
    }

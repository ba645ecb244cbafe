"""The sentences that a reader of a run must not miss: what its figures do not hold for, and what was left out."""

from collections.abc import Mapping
from typing import Any

from ..intervals import Interval
from ..read.facts import RunFacts, SessionFacts
from ..read.runs import Run

_ROUNDING = 1e-6  # of a sum of float32 probabilities


def run_notes(
    run: Run, metrics: Mapping[str, float], facts: RunFacts, session: SessionFacts, prompts: Mapping[str, Any]
) -> list[str]:
    """Say what time was, whether outputs are the baseline's, how prediction and measurement differ, what is missing.

    Args:
        prompts: the part `prompts` of `environment.json`.
    """
    notes = [*facts.notes, *control_notes(metrics)]
    if facts.simulated:
        notes.append("Time is simulated by a cost model: no duration of this run was measured.")
        notes.append("Lossless or not: recorded text can only be reproduced, so that nothing is learned from it.")
    elif facts.forced:
        notes.append("Forced: the recorded text was committed whatever the target said; nothing here is lossless.")
    elif session.compared and not session.refuted:
        notes.append(
            f"Lossless: {session.identical} of {session.compared} outputs are identical to the baseline's; "
            f"{session.compared - session.identical} differ, {session.unexplained} of them without a near-tie that "
            "rounding could explain."
        )
    if not facts.lossless:
        departs = ""
        if "lossless/tv" in metrics:
            tv = Interval.from_metrics(metrics, "lossless/tv")
            departs = (
                f": at a tested position the law of the output differs from the baseline's by {tv} in total variation, "
                "on average"
            )
        notes.append(f"Lossy: the verifier's rule does not keep the target's law{departs}.")
    notes += _quality_notes(metrics, facts)
    if "sampled/speedup" in metrics:
        speedup, tokens = (
            Interval.from_metrics(metrics, f"sampled/{name}") for name in ("speedup", "tokens_per_round")
        )
        notes.append(
            f"At temperature {metrics['sampled/temperature']:g}, on {metrics['sampled/prompts']:.0f} of the prompts, "
            f"over plain decoding at that temperature: speedup {speedup}, {tokens} tokens per round, and "
            f"{metrics['sampled/repetition.share']:.0%} have an output that falls into a loop. The rule keeps the "
            "target's law, so that both texts are drawn from one law and differ; specdec.certify tests it."
        )
    if "speedup.predicted" in metrics:
        predicted, measured = metrics["speedup.predicted"], metrics["speedup"]
        notes.append(
            f"specdec.advise predicted a speedup of {predicted:.3f}; {measured:.3f} was measured, "
            f"{measured / predicted - 1:+.1%} from the prediction."
        )
    share = metrics.get("repetition/share", 0.0)
    if share:
        rest = Interval.from_metrics(metrics, "speedup.unflagged")
        without = f"; without them the speedup is {rest}" if share < 1 else ""
        notes.append(f"Repetition: {share:.0%} of the prompts have an output that falls into a loop{without}.")
    skipped = {reason: sum(counts.values()) for reason, counts in prompts["skipped"].items() if counts}
    if skipped:
        notes.append("Skipped prompts: " + ", ".join(f"{count} {reason}" for reason, count in skipped.items()) + ".")
    if prompts["count"] == 1:
        notes.append("One prompt only: no bootstrap, so no intervals.")
    if facts.left_out:
        left_out = ", ".join(map(str, facts.left_out))
        limit = f"this drafter drafts {facts.deepest} levels at most"
        limit = limit if facts.deepest and min(facts.left_out) > facts.deepest else "the structure is less deep"
        notes.append(f"Left out of measurement.gammas: {left_out}; {limit}.")
    if not facts.greedy and facts.lossless:
        # In exact arithmetic the chance of a rejection where drafter and target agree is 0; where rounding makes one,
        # nothing is left of p - q, and the correction was drawn from p itself.
        shared = run.shared_at_rejections()
        empty = sum(mass >= 1 - _ROUNDING for mass in shared)
        if empty:
            notes.append(
                f"Rounding: {empty:,} of {len(shared):,} rejections fell where drafter and target agree, so that no "
                "residual was left; these corrections were drawn from the target's own law."
            )
    return notes


def control_notes(metrics: Mapping[str, float]) -> list[str]:
    """Say what plain decoding has over itself, where it was measured twice: the noise under every other figure."""
    if "null/speedup" not in metrics:
        return []
    control = Interval.from_metrics(metrics, "null/speedup")
    said = f"Null control: plain decoding, measured a second time, has a speedup of {control} over itself"
    if "null/floor" not in metrics:
        return [f"{said}; too few prompts to say how large the noise is."]
    if not control.contains(1.0):
        said += ", an interval that leaves out 1: the machine was disturbed, or this is the one run in twenty"
    return [f"{said}; what differs from 1 by less than {metrics['null/floor']:.1%} is noise."]


def _quality_notes(metrics: Mapping[str, float], facts: RunFacts) -> list[str]:
    """Say what the text lost, where it was judged."""
    if facts.judge is None:
        return []
    model = "the target" if facts.judge == "target" else "the original target"
    likelihood = "quality/log_likelihood"
    notes = []
    if facts.deterministic and not facts.lossless and not facts.greedy:
        notes.append(
            "Without a draft this rule takes the target's likeliest token: the baseline's text is greedy, not sampled."
        )
    if likelihood not in metrics:
        notes.append(f"Quality: {model} gives some token no chance, so there is no mean log-likelihood.")
    for name, sentence in (
        (likelihood, f"Quality under {model} at temperature 1: {{}} nats per token, the baseline's text {{}}."),
        ("quality/tv", "A token's law is {} from the target's in total variation, the baseline's {}."),
        ("quality/decided_otherwise", "A lossless rule would have decided otherwise in {} of the rounds that offered."),
        ("quality/gsm8k_exact_match", "Right answers: {} of the outputs, the baseline's {}."),
    ):
        if name in metrics:
            of_baseline = name.replace("quality/", "quality/baseline_")
            values = (Interval.from_metrics(metrics, key) for key in (name, of_baseline))
            notes.append(sentence.format(*values))
    return notes

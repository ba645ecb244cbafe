"""The greedy level of a certificate: outputs of the user's own parts against plain decoding, and every place where they
part scored again in float32, which 16-bit rounding explains or not.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from specdec.certification.checks import Check, Verdict
from specdec.certification.statistical import Texts
from specdec.clock import CpuClock
from specdec.drafters.none import NoDrafter
from specdec.progress import stage
from specdec.session.arm import Arm, seeded_request
from specdec.session.divergence import Divergence, explain

PURPOSES = "certify/greedy/draft", "certify/greedy/accept"


def near_tie_check(arm: Arm, texts: Texts, max_new_tokens: int, seed: int) -> Check:
    """Decode every text with drafts and without at temperature 0, and compare token for token.

    Args:
        arm: the combination, its target standardised greedily before the drafter was made.
    """
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
    verdict: Verdict = "FAILED" if unexplained else "passed"
    places = "; ".join(
        f"prompt {item.prompt}, token {item.position + 1}: margin {item.margin:.2g}, rounding {item.rounding:.2g}"
        for item in (unexplained or parted)[:5]
    )
    lead = "rounding does not explain" if unexplained else "near-ties that rounding explains"
    return Check(
        "greedy",
        "greedy outputs",
        "plain decoding, differences scored again in float32",
        outputs,
        f"{len(parted)} part, {len(unexplained)} unexplained",
        verdict,
        detail=f"{lead}: {places}" if parted else "",
        facts={"accepted_tokens": accepted, "divergences": [asdict(item) for item in parted]},
    )

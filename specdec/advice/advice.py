"""The advice of `specdec.advise`: a forecast for every gamma, what it would take to pay, a verdict; and its file.

Arithmetic and files only: the costs and the rounds come from `advice.advisor`. Times are in units of t1, the
target's own one-token call, as in the gap account.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specdec.analysis.account.gap_account import cost_values
from specdec.analysis.account.verdicts import unsettled
from specdec.analysis.engines.measured_drafter import Alone, Measured
from specdec.analysis.engines.recommendation import Recommendation, recommend
from specdec.analysis.intervals import Interval
from specdec.config import flattened
from specdec.environment import cpu
from specdec.session.parts import Parts
from specdec.theory.capped_geometric import alpha_for

_REMEDIES = {
    "acceptance": "if every round offered gamma tokens and all were accepted",
    "draft cost": "if drafting were free",
    "verification cost": "if verifying cost one plain call",
    "overhead": "without the overhead",
}


@dataclass(frozen=True)
class RoundCost:
    """The mean round and the baseline, over t1."""

    # g, v and o; their sum is the round
    draft: float
    verify: float
    overhead: float
    full_verify: float  # v of a round that offers all gamma tokens
    baseline: float  # t_AR, the baseline's time per token

    @property
    def round(self) -> float:
        return self.draft + self.verify + self.overhead

    def speedup(self, tokens_per_round: float) -> float:
        """Return t_AR over the time that a round takes per token, as the account of a run has it."""
        costs = {"draft_s": self.draft, "verify_s": self.verify, "round_s": self.round}
        plain = {"baseline_round_s": self.baseline, "baseline_tokens": 1.0}
        return float(cost_values({"rounds": 1.0, "tokens": tokens_per_round, **costs, **plain}, 1.0)["speedup"])


@dataclass(frozen=True)
class Forecast:
    """The expectation for one gamma, without having speculated once."""

    gamma: int
    tokens_per_round: Interval
    speedup: Interval
    cost: RoundCost
    offered: dict[int, float]  # nodes offered -> share of the rounds that offer that many
    pays_from_tokens: float  # per round, from which speculation at this gamma is faster than the baseline
    pays_from_alpha: float | None  # the i.i.d. alpha that gives these, for these offers of chains
    # the largest cost c of a drafter step over t1 that pays at the predicted tokens; None where no free drafter does
    pays_below_c: float | None


@dataclass(frozen=True)
class Advice:
    """`advice.json`."""

    key: str  # hash of `keyed`; a run with the same key finds this advice
    keyed: dict[str, Any]
    label: str
    # form of the replay (`DrafterCapabilities.replay`); "speculation" where no text tells the rounds: they were decoded
    # at the largest gamma, and a model predicts the others
    replay: str
    source: str  # where the text came from: "baseline" or the recorded file
    prompts: int
    tokens: int
    # mean of sum min(p, q) over positions of the text with a proposal, of a draft of one token there; None without any,
    # and where only the target's calls would tell
    alpha: float | None
    t1_ms: float  # the target's one-token call
    best_gamma: int
    blame: str | None  # when the best gamma does not pay, the term whose ideal would gain most
    verdict: str
    predictions: list[Forecast]
    notes: list[str]
    serving: dict[str, Any] = field(default_factory=dict)  # see `analysis.engines.recommendation`


def predict(
    gamma: int, tau: Interval, speedup: Interval, cost: RoundCost, offered: Mapping[int, float], chain: bool = True
) -> Forecast:
    """Return the forecast for one gamma, with what it would take to break even there.

    offered: nodes offered -> rounds; chain: drafts do not branch: only then does one alpha stand for tokens per round.
    """
    needed = cost.round / cost.baseline
    total = sum(offered.values())
    shares = {size: rounds / total for size, rounds in sorted(offered.items())}
    c = (tau.estimate * cost.baseline - cost.verify - cost.overhead) / gamma
    alpha = alpha_for(needed, shares) if chain else None
    return Forecast(gamma, tau, speedup, cost, shares, needed, alpha, c if c >= 0 else None)


def ideals(prediction: Forecast) -> dict[str, float]:
    """Return the speedup with one term at its ideal and the others as they are, by term."""
    cost, tau = prediction.cost, prediction.tokens_per_round.estimate
    return {
        "acceptance": replace(cost, verify=cost.full_verify).speedup(prediction.gamma + 1),
        "draft cost": replace(cost, draft=0.0).speedup(tau),
        "verification cost": replace(cost, verify=1.0).speedup(tau),
        "overhead": replace(cost, overhead=0.0).speedup(tau),
    }


def judge(predictions: list[Forecast], label: str) -> tuple[Forecast, str | None, str]:
    """Return the fastest forecast, the term to blame when it does not pay, and the verdict in one sentence, which says
    as little as a run would where nothing is settled.
    """
    best = max(predictions, key=lambda item: item.speedup.estimate)
    what = f"{label} at gamma {best.gamma}"
    rest = (
        f"{best.speedup} times as fast, with {best.tokens_per_round.estimate:.2f} tokens per round where "
        f"{best.pays_from_tokens:.2f} break even"
    )
    if doubt := unsettled(best.speedup):
        return best, None, f"Whether speculation pays is not settled ({doubt}): {what} is predicted to be {rest}."
    if best.speedup.estimate > 1:
        return best, None, f"Speculate: {what} is predicted to be {rest}."
    gains = ideals(best)
    blame = max(gains, key=gains.__getitem__)
    verdict = f"Do not speculate: the best, {what}, is predicted to be {best.speedup} times as fast"
    if gains[blame] > 1:
        verdict += f", and {blame} is to blame: it would be {gains[blame]:.2f} {_REMEDIES[blame]}."
    else:
        verdict += f", and no term alone is to blame: even {_REMEDIES[blame]} it would be {gains[blame]:.2f}."
    return best, blame, verdict


def recommended(
    parts: Parts, predictions: list[Forecast], calls: Mapping[int, float], prompt: float, output: float
) -> Recommendation:
    """Recommend how to serve the drafter, from what is predicted for every gamma.

    calls: tokens of a call -> its time, in any unit; prompt, output: mean tokens of a text.
    """
    primary, device = parts.primary, parts.target.device
    params = {key: str(value) for key, value in flattened(parts.plan.config).items()}
    form = str(primary.drafter.describe().get("format") or "")
    return recommend(
        Measured(
            params=params,
            depth=item.gamma,
            nodes=item.gamma if primary.structure.single else max(item.offered),
            speedup=item.speedup,
            format=form,
            predicted=True,
            lossless=primary.verifier.capabilities.lossless,
            machine=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu()["model"],
            alone=Alone(
                calls,
                item.tokens_per_round.estimate,
                sum(size * share for size, share in item.offered.items()),
                prompt,
                output,
            ),
        )
        for item in predictions
    )

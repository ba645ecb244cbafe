"""Statistical checks of decoding as it happens: the first and the second token of every round against the target's law
there, and that law against a fresh pass over the text.

Every round of ordinary texts is one draw, from the state that earlier rounds left, acceptances and rejections alike. A
token is counted by its class, because each place has a law of its own: by its rank under p, and by p over q.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specdec.certification.certificate import Check
from specdec.certification.chi_square import Tally, Tested, chi_square
from specdec.records import Acceptance, Draft, Generation
from specdec.sampling import one_hot, probabilities
from specdec.targets.base import Target
from specdec.verifiers.base import Verifier

# Ends of the classes by rank (the most likely token, the next one, ranks 3 and 4, ..., all from 65 on), and by p over q
# (tokens that are drafted too often, about right, too seldom).
_RANKS = torch.tensor([1, 2, 4, 8, 16, 64])
_RATIOS = torch.tensor([0.5, 0.8, 1.0, 1.25, 2.0])
_FRESH_TEXTS = 16  # texts over which a fresh pass is made: what a commit leaves wrong is wrong in all of them
_DRAWN = 8  # tokens of a draft whose laws are looked at: the first ones
_FIRST = 3  # classes of the first token in the joint test: rank 1, rank 2, all others


@dataclass(frozen=True)
class Seen:
    """A round as the acceptance rule saw it.

    Attributes:
        rows: [1 or 2, V] p at the root, and after the first token where that was a node of the draft.
        q: [V] the law that the first draft was drawn from; None where nothing was offered.
    """

    rows: Tensor
    q: Tensor | None


class Watched(Verifier):
    """Decides as another rule does, keeps what it was shown, and adds the drawn tokens of every draft to `drafted`."""

    def __init__(self, rule: Verifier, drafted: Tally) -> None:
        self.rule, self.capabilities, self._drafted = rule, rule.capabilities, drafted
        self.seen: list[Seen] = []

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        self._count(draft)
        acceptance = self.rule.accept(draft, p, generator)
        rows = [0, acceptance.path[0] + 1] if acceptance.path else [0]
        q = None
        if len(draft):
            first = draft.tests[0][0]
            q = one_hot(draft.tokens[first], p.shape[-1]) if draft.q is None else draft.q[first]
            q = q.double().cpu()
        self.seen.append(Seen(p[rows].double().cpu(), q))
        return acceptance

    def _count(self, draft: Draft) -> None:
        """Count drawn tokens by their rank under the law q that each was drawn from, in the order of the draws: the
        claim that travels with a draft, on which every rule that reads q relies. Point masses are no draws.

        A token that an earlier sibling has is a class of its own, the last: draws with replacement repeat tokens,
        others do not.
        """
        if draft.q is None:
            return
        tokens = draft.tokens.tolist()
        drawn = [(child, children[:place]) for children in draft.tests for place, child in enumerate(children)]
        for child, siblings in drawn[:_DRAWN]:
            q, token = draft.q[child].double().cpu(), tokens[child]
            chances, cell = rank_class(q, token)
            law = np.append(chances, 0.0)
            earlier = {tokens[sibling] for sibling in siblings}
            for other in earlier:
                chance = float(q[other])
                law[rank_class(q, other)[1]] -= chance
                law[-1] += chance
            self._drafted.add_one(law.clip(0.0), len(law) - 1 if token in earlier else cell, bool(q[token] == 0))


def rank_class(p: Tensor, token: int) -> tuple[np.ndarray, int]:
    """Return the chances of the classes by rank under p [V], and the class of a token; ties are broken by order."""
    chances = p.topk(min(int(_RANKS[-1]), len(p))).values.cumsum(0)
    ends = chances[(_RANKS - 1).clamp_max(len(chances) - 1)]
    law = torch.cat([ends[:1], ends.diff(), (p.sum() - ends[-1:])]).clamp_min(0.0)
    rank = int((p > p[token]).sum()) + int((p[:token] == p[token]).sum())
    return law.numpy(), int(torch.searchsorted(_RANKS, torch.tensor(rank), right=True))


@dataclass
class LiveTallies:
    """The counts of all rounds so far.

    Attributes:
        by_rank, by_ratio: of the first token of a round.
        drafted: of the drawn tokens of all drafts.
        second: of the token after it, whichever round commits it, given the class of the first.
        apart: at every place, the total variation between the law that a round used and that of a fresh pass.
        rounding: there, the total variation between fresh passes in the target's own arithmetic and in float32.
        texts: decoded so far.
    """

    by_rank: Tally = field(default_factory=lambda: Tally(len(_RANKS) + 1))
    by_ratio: Tally = field(default_factory=lambda: Tally(len(_RATIOS) + 1))
    drafted: Tally = field(default_factory=lambda: Tally(len(_RANKS) + 2))
    second: Tally = field(default_factory=lambda: Tally(_FIRST * (len(_RANKS) + 1)))
    apart: list[float] = field(default_factory=list)
    rounding: list[float] = field(default_factory=list)
    texts: int = 0

    @property
    def rounds(self) -> int:
        return self.by_rank.draws

    def tests(self) -> list[Tested]:
        """Return the tests of all counts."""
        return [
            chi_square("first token of a round, by rank under p", self.by_rank),
            chi_square("first token of a round, by p over q", self.by_ratio),
            chi_square("second token given the first, by rank", self.second),
            chi_square("drawn drafts against their own q, by rank", self.drafted),
        ]

    def states(self) -> Check:
        """Return whether the laws that rounds used are those of fresh passes over the same texts: a state that a
        rejection or a commit left wrong moves them. Rounding may: the bound is a thousandth, and three times what
        rounding to the target's own arithmetic moves.
        """
        apart, bound = float(np.mean(self.apart)), 1e-3 + 3 * float(np.mean(self.rounding))
        failed = not apart <= bound
        return Check(
            "statistical",
            "states after commits",
            "p of every round with a fresh pass over the text",
            len(self.apart),
            f"mean TV {apart:.1e} (at most {bound:.1e})",
            "FAILED" if failed else "passed",
            detail="the target's state is not that of its text" if failed else "",
            facts={"mean_tv": apart, "largest_tv": float(np.max(self.apart)), "bound": bound},
        )

    @torch.inference_mode()
    def add(self, target: Target, generation: Generation, seen: Sequence[Seen]) -> None:
        """Count the rounds of a text, and compare their laws with those of a fresh pass over it."""
        tokens, place = generation.tokens, 0  # of the first token of a round in the output
        used: list[tuple[int, Tensor]] = []  # places, and the laws there by which a token was decided
        for number, row in enumerate(generation.rounds):
            p, q, token = seen[number].rows[0], seen[number].q, tokens[place]
            chances, group = rank_class(p, token)
            self.by_rank.add_one(chances, group, bool(p[token] == 0))
            if q is not None:
                ratio = torch.where(q > 0, p / q.clamp_min(torch.finfo(q.dtype).tiny), torch.inf)
                classes = torch.bucketize(ratio, _RATIOS.to(ratio))
                law = torch.zeros(len(_RATIOS) + 1, dtype=p.dtype).index_add_(0, classes, p)
                self.by_ratio.add_one(law.numpy(), int(classes[token]))
            used.append((place, p))
            # A second token is there unless the end token or the limit came first, which the first one decides.
            known = [*seen[number].rows[1:], *(later.rows[0] for later in seen[number + 1 : number + 2])]
            if token not in target.end_tokens and place + 1 < len(tokens) and known:
                law, second = known[0], tokens[place + 1]
                chances, cell = rank_class(law, second)
                begin = min(group, _FIRST - 1) * len(chances)
                padded = np.zeros(_FIRST * len(chances))
                padded[begin : begin + len(chances)] = chances
                self.second.add_one(padded, begin + cell, bool(law[second] == 0))
                used.append((place + 1, law))
            place += len(row.committed)
        if self.texts < _FRESH_TEXTS:
            own, wide = (  # [T + 1, V], in the arithmetic of decoding and in float32 or better
                probabilities(score(generation.prompt, tokens), target.sampling).double().cpu()
                for score in (target.score_as_decoded, target.score)
            )
            for place, p in used:
                self.apart.append(float((p - own[place]).abs().sum() / 2))
                self.rounding.append(float((own[place] - wide[place]).abs().sum() / 2))
        self.texts += 1

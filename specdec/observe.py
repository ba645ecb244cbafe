"""The record of a round: what counts as accepted, how likely it was, and how far a rule that is not lossless went
from the target. It is written between rounds, so that nothing here is timed.
"""

from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.records import Acceptance, Departure, Draft, Marks, Round
from specdec.sampling import one_hot, residual
from specdec.verifiers.base import Verifier


class Decided(NamedTuple):
    """A round after its decision."""

    draft: Draft
    p: Tensor  # [N+1, V] the target's law after the root and after each node of the draft
    acceptance: Acceptance
    committed: tuple[int, ...]  # appended to the text; a limit or an end token may have cut some accepted ones off
    # The structure offers one candidate for each position: only then has it a law. Branching drafts may be chains too.
    chain: bool

    @property
    def accepted(self) -> int:
        """Accepted draft tokens up to the cut."""
        return min(len(self.acceptance.path), len(self.committed))

    @property
    def rejected(self) -> bool:
        """A rejection was observed within the text: a cut before it hides it (theory.md 5.1)."""
        return self.acceptance.rejected and len(self.committed) == len(self.acceptance.path) + 1

    @property
    def tested(self) -> int:
        """Positions of a chain that were tested: the accepted ones and the rejected one."""
        return self.accepted + self.rejected

    @property
    def draft_laws(self) -> Tensor:
        """The law [T, V] that each tested token of a chain was drawn from, in the type of p."""
        draft, p = self.draft, self.p
        if draft.q is None:
            return one_hot(draft.tokens[: self.tested], p.shape[-1]).to(p)
        return draft.q[: self.tested].to(p)

    @property
    def depths(self) -> Tensor:
        """The depth [T] of each tested position of a chain, 1 after the root."""
        return torch.arange(1, self.tested + 1, device=self.p.device)


def record(decided: Decided, verifier: Verifier, context: int, finish: str, marks: Marks, batch: int = 1) -> Round:
    """Return what is kept of a round that began with `context` tokens, the root included. The text ended in it by
    `finish`, if at all (`Round.truncation`), and `batch` sequences shared the step (`Round.batch`).
    """
    draft, p, lossy = decided.draft, decided.p[: decided.tested], not verifier.capabilities.lossless
    beta = tv = torch.empty(0)  # of a draft that branches, and where nothing was tested
    if decided.chain and len(p):
        if lossy:
            tested = p, decided.draft_laws, decided.depths
            beta, tv = verifier.passed(*tested).sum(-1), verifier.total_variation(*tested)
        elif draft.q is None:
            beta = p.gather(-1, draft.tokens[: len(p)].unsqueeze(-1)).squeeze(-1)
        else:
            beta = torch.minimum(p, draft.q[: len(p)]).sum(-1)
    return Round(
        context=context,
        draft_tokens=decided.acceptance.tokens,
        tree=draft.tree,
        source=draft.source,
        acceptance=decided.acceptance,
        committed=decided.committed,
        accepted=decided.accepted,
        rejected=decided.rejected,
        truncation=finish,
        beta=tuple(beta.tolist()),
        marks=marks,
        tv=tuple(tv.tolist()),
        departure=departure(verifier, decided) if lossy else None,
        batch=batch,
    )


def departure(verifier: Verifier, decided: Decided) -> Departure | None:
    """Return how far a round went from the law p of its target, at every position that it committed.

    The total variation is that between p and the law of the emitted token, sum |law - p| / 2. For a chain that law is
    the rule's own, exactly (`Verifier.law`; after a full chain `Verifier.reference`), the draft's tokens being random
    where they were drawn. On a draft that branches it is the law given the draft: under a rule without randomness a
    point mass on the emitted token y, so the distance is 1 - p(y); over drafts that are drawn at random it would be
    less.

    A lossless rule decides otherwise when, on the same draft and with the same uniform numbers, speculative sampling
    would not have accepted just these nodes. Where this rule has no randomness, it agrees with the chance that
    speculative sampling passes the accepted child of every node on the path, and none at the last, testing them in
    their order. Where it has, on a chain: with s and a the chances with which the two pass a token, it agrees on an
    accepted one with chance min(s, a) / a and on a rejected one with chance (1 - max(s, a)) / (1 - a). The product is 0
    or 1 under greedy, and 1 for speculative sampling itself. Tokens behind a cut count for nothing. None where the law
    of what is emitted is not known: a branching draft that is judged at random.
    """
    deterministic = verifier.capabilities.deterministic
    if not (decided.chain or deterministic):
        return None
    draft, p, tested = decided.draft, decided.p, decided.tested
    kept = decided.acceptance.path[: decided.accepted]
    # The laws at the committed positions, [C, V].
    laws = p[[0, *(node + 1 for node in decided.acceptance.path)]][: len(decided.committed)]
    if decided.chain:
        emitted = verifier.law(laws[:tested], decided.draft_laws, decided.depths)
        law = torch.cat([emitted, verifier.reference(laws[tested:])])
        tv = ((law - laws).abs().sum(-1) / 2).tolist()
    else:
        tokens = torch.tensor(decided.committed, device=p.device).unsqueeze(-1)
        tv = (1 - laws.gather(-1, tokens).squeeze(-1)).clamp_min(0.0).tolist()
    if not len(draft):
        return Departure(tuple(tv), None)
    if deterministic:
        # The children of the last accepted node were tested too, unless the text was cut before them.
        agreement = prod(_strict_chance(draft, p, node, child) for node, child in pairwise([-1, *kept]))
        if decided.rejected:
            agreement *= _strict_chance(draft, p, kept[-1] if kept else -1, None)
    else:
        p, q = p[:tested], decided.draft_laws
        columns = (p, q, verifier.passed(p, q, decided.depths))
        p_token, q_token, passed = (each.gather(-1, draft.tokens[:tested, None]).squeeze(-1) for each in columns)
        strict = (p_token / q_token).clamp_max(1.0).tolist()
        chances = list(zip(strict, (passed / q_token).tolist(), strict=True))
        agreement = prod(min(s, a) / a for s, a in chances[: decided.accepted])
        agreement *= prod((1 - max(s, a)) / (1 - a) for s, a in chances[decided.accepted :])
    return Departure(tuple(tv), max(0.0, 1 - agreement))


def _strict_chance(draft: Draft, p: Tensor, node: int, chosen: int | None) -> float:
    """Return the chance that multi-round rejection (`verifiers.speculative_sampling`) goes from `node`, -1 for the
    root, to its child `chosen`, or with None that it passes no child.
    """
    law, none_yet, passed = p[node + 1], 1.0, 0.0
    for child in draft.tests[node + 1]:
        token = draft.tokens[child]
        q = (one_hot(token, len(law)) if draft.q is None else draft.q[child]).to(law)
        chance = float((law[token] / q[token]).clamp_max(1.0))
        if child == chosen:
            passed += none_yet * chance
        none_yet *= 1 - chance
        law = residual(law, q)
    return none_yet if chosen is None else passed

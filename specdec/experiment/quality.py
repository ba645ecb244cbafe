"""What a rule that is not lossless, or a target trained away from its original, does to the text.

Of a round: how far it went from the target's law, and whether a lossless rule would have decided otherwise. Of an
output: its likelihood under the original model, and whether its answer is right. Nothing here is timed.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from specdec.records import Departure, Draft
from specdec.sampling import one_hot, residual
from specdec.targets.base import Target
from specdec.verifiers.base.contract import Verifier

_NUMBER = re.compile(r"(?:(?<!\w)-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")  # a minus between two numbers is no sign
_REFERENCE = "####"  # before the answer in GSM8K


def departure(
    verifier: Verifier,
    draft: Draft,
    p: Tensor,
    path: Sequence[int],
    committed: Sequence[int],
    rejected: bool,
    chain: bool,
) -> Departure | None:
    """How far a round went from the law p of its target, at every position that it committed.

    Total variation is that between p and the law of the emitted token, sum |law - p| / 2. For a chain that law is the
    rule's own, exactly (`Verifier.law`; after a full chain `Verifier.reference`), the draft's tokens being random where
    they were drawn. On a draft that branches it is the law given the draft: under a rule without randomness a point
    mass on the emitted token y, so the distance is 1 - p(y); over drafts that are drawn at random it would be less.

    A lossless rule decides otherwise when, on the same draft and with the same uniform numbers, speculative sampling
    would not have accepted just these nodes. Where this rule has no randomness, it agrees with the chance that it
    passes the accepted child of every node on the path, and none at the last, testing them in their order. Where it
    has, on a chain: with s and a the chances with which the two pass a token, it agrees on an accepted one with chance
    min(s, a) / a and on a rejected one with chance (1 - max(s, a)) / (1 - a). The product is 0 or 1 under greedy, and 1
    for speculative sampling itself. Tokens behind a cut count for nothing.

    Args:
        p: [N+1, V].
        path: the accepted nodes, some of which a limit or an end token may have cut off `committed`.
        rejected: whether a rejection was observed within the text.
        chain: one candidate for each position, by its structure.
    Returns:
        None where the law of what is emitted is not known: a branching draft that is judged at random.
    """
    rows = p[[0, *(node + 1 for node in path)]][: len(committed)]  # [C, V]
    accepted = min(len(path), len(committed))
    if not (chain or verifier.deterministic):
        return None
    if chain:
        tested = accepted + rejected
        q = chain_laws(draft, tested, p)
        depth = torch.arange(1, tested + 1, device=p.device)
        law = torch.cat([verifier.law(rows[:tested], q, depth), verifier.reference(rows[tested:])])
        tv = ((law - rows).abs().sum(-1) / 2).tolist()
    else:
        tokens = torch.tensor(committed, device=p.device).unsqueeze(-1)
        tv = (1 - rows.gather(-1, tokens).squeeze(-1)).clamp_min(0.0).tolist()
    if not len(draft):
        agreement = None
    elif verifier.deterministic:
        # What follows the last accepted node is tested unless it is cut off.
        agreement = prod(_strict_chance(draft, p, node, child) for node, child in pairwise([-1, *path[:accepted]]))
        if rejected:
            agreement *= _strict_chance(draft, p, path[-1] if path else -1, None)
    else:
        agreement = _chain_agreement(verifier, draft, rows[:tested], q, accepted)
    return Departure(tuple(tv), None if agreement is None else max(0.0, 1 - agreement))


def _strict_chance(draft: Draft, p: Tensor, node: int, chosen: int | None) -> float:
    """Chance that multi-round rejection (`verifiers.speculative_sampling`) goes from `node`, -1 for the root, to its
    child `chosen`; None: that it passes no child.
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


def chain_laws(draft: Draft, tested: int, p: Tensor) -> Tensor:
    """[tested, V] the law that each of the first tokens of a chain was drawn from, in the type of p [N+1, V]."""
    if draft.q is None:
        return one_hot(draft.tokens[:tested], p.shape[-1]).to(p)
    return draft.q[:tested].to(p)


def _chain_agreement(verifier: Verifier, draft: Draft, p: Tensor, q: Tensor, accepted: int) -> float:
    """Chance that speculative sampling decides as `verifier` did on the tested tokens of a chain; p, q [tested, V]."""
    tokens = draft.tokens[: len(p)].unsqueeze(-1)
    p_token, q_token = (law.gather(-1, tokens).squeeze(-1) for law in (p, q))
    strict = (p_token / q_token).clamp_max(1.0).tolist()
    own = verifier.acceptance(p_token, q_token).tolist()
    kept = prod(min(s, a) / a for s, a in zip(strict[:accepted], own[:accepted], strict=True))
    return kept * prod((1 - max(s, a)) / (1 - a) for s, a in zip(strict[accepted:], own[accepted:], strict=True))


def log_likelihood(target: Target, prompt: Sequence[int], text: Sequence[int]) -> float:
    """ln of the chance that `target` writes `text` after `prompt` at temperature 1 with nothing cut off; -inf where it
    cannot.
    """
    law = target.score(prompt, text)[: len(text)].double().log_softmax(-1)  # [T, V]
    return float(law.gather(-1, torch.tensor(text, device=law.device).unsqueeze(-1)).sum())


def answers(output: str, reference: str) -> bool:
    """Whether the last number of an output is the reference's answer: what stands behind `####`, or its last number.

    The last number, because models that nobody told of the format do not write the mark; evaluation harnesses extract
    answers in the same way. Numbers are compared, not spellings: 1,200 is 1200.0.
    """
    wanted = _last_number(reference.rpartition(_REFERENCE)[2])
    return wanted is not None and _last_number(output) == wanted


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None

"""The contract of an acceptance rule, and the decisions for chains that several rules share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft
from specdec.registry import Registry
from specdec.sampling import one_hot, residual


@dataclass(frozen=True)
class VerifierCapabilities:
    """The abilities of an acceptance rule."""

    handles: frozenset[str]  # names of the structures that it can judge
    # The output law is exactly the target's; such a rule is under test for every structure it handles. A rule that is
    # not lossless says by `law` what it emits instead.
    lossless: bool = True
    greedy_only: bool = False  # right only where p is one-hot; a run with a temperature is refused
    deterministic: bool = False  # the decision follows from p and the draft's tokens, without randomness
    exact_match: bool = False  # it decides as the rule `greedy` does wherever p is one-hot
    # A token of a chain passes with min(1, p/q), whatever else is offered, so that a position-wise replay counts rounds
    # (theory.md 4.2); this says nothing of rows and trees. Other rules are replayed only where p is one-hot: all
    # lossless rules are one there.
    token_by_token: bool = True
    any_depth: bool = True  # a token's chance to pass is the same at every depth, so that one alpha describes the rule


class Verifier(ABC):
    """An acceptance rule: decides how much of a draft becomes text. It sees probabilities only, never logits."""

    capabilities: VerifierCapabilities  # as configured; the class says what holds for some configurations only

    @abstractmethod
    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        """Choose a path of a draft of N nodes and the token after it, by p [N+1, V], the target's law after the root
        (place 0) and after each node. All randomness comes from `generator`. N may be 0: the next token is then drawn
        from p[0], and the draft's tokens lie on the host, wherever p is, so that a rule leaves them alone.
        """

    def for_greedy(self) -> "Verifier":
        """Return the cheapest rule that decides exactly as this one does wherever p is one-hot."""
        return verifiers.build({"name": "greedy"}) if self.capabilities.exact_match else self

    def passed(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        """Return the chances [..., V] that a tested position of a chain emits each token as an accepted draft; for the
        arguments see `law`. Their sum is beta, the chance that a token drawn from q passes, and the mean of beta over a
        text is alpha: sum of min(p, q) for a lossless rule that tests tokens one by one. Raises NotImplementedError: a
        rule that is not lossless does not say it.
        """
        if not self.capabilities.lossless:
            raise NotImplementedError(f"{type(self).__name__} is not lossless and does not say what passes")
        return torch.minimum(p, q.to(p.dtype))

    def law(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        """Return the exact law [..., V] of the token emitted at a tested position of a chain, accepted or corrected: p
        of a lossless rule, and of others what passes and else `corrected`. The arguments p and q [..., V] are the laws
        of target and drafter, q one-hot for a deterministic draft; depth [...] is that of the position in its draft, 1
        after the root: some rules treat the first ones differently.
        """
        if self.capabilities.lossless:
            return p
        passed = self.passed(p, q, depth)
        return passed + (1 - passed.sum(-1, keepdim=True)).clamp_min(0.0) * self.corrected(p, q)

    def corrected(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the law [..., V] of the token after a rejection, of a rule that is not lossless."""
        return self.reference(p)

    def reference(self, p: Tensor) -> Tensor:
        """Return the law [..., V] of the emitted token where nothing is drafted, with which `law` is compared: of a
        deterministic rule the first choice, else p.
        """
        return one_hot(p.argmax(-1), p.shape[-1]).to(p.dtype) if self.capabilities.deterministic else p

    def total_variation(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        """Return the distance [...] between the laws emitted with a draft and without, sum |law - reference| / 2."""
        return (self.law(p, q, depth) - self.reference(p)).abs().sum(-1) / 2


def correction(draft: Draft, p: Tensor, accepted: Tensor, scaled: Tensor | None = None, kept: float = 1.0) -> Tensor:
    """Return the law [V] of the token after the first `accepted` [] of a chain that is not empty: the residual after a
    rejection, else p. In the residual `scaled` [N, V] stands for p (block verification), and `kept` is the share of q
    that it subtracts (lenience). Nothing here waits for the device.
    """
    # Not an index: reading a number off a GPU for one would wait for it.
    last = accepted.clamp_max(len(draft) - 1).reshape(1)

    def of_last(values: Tensor) -> Tensor:
        return values.index_select(0, last)[0]

    q = one_hot(of_last(draft.tokens), p.shape[-1]) if draft.q is None else of_last(draft.q)
    rejected = residual(of_last(p if scaled is None else scaled), kept * q.to(p.dtype))
    return torch.where(accepted < len(draft), rejected, p[-1])


def chain_acceptance(draft: Draft, accepted: Tensor | None, next_token: Tensor) -> Acceptance:
    """Return the decision for a chain, fetched from the device in one transfer, the only one of a round: the number []
    of accepted tokens, None for an empty draft, and the correction or the bonus [].
    """
    if accepted is None:
        return Acceptance((), int(next_token), rejected=False, tokens=())
    count, token, *tokens = torch.cat([accepted.reshape(1), next_token.reshape(1), draft.tokens]).tolist()
    return Acceptance(tuple(range(count)), token, rejected=count < len(tokens), tokens=tuple(tokens))


def first_choice_acceptance(draft: Draft, p: Tensor, passing: Tensor) -> Acceptance:
    """Return the decision that keeps the longest path whose tokens pass, the first in the draft's order among equals,
    and goes on with argmax p. A mask `passing` [N+1, V] has the tokens that pass after the root and after each node.
    """
    nodes, parents = len(draft), draft.tree.parents
    if nodes == 0:
        return chain_acceptance(draft, None, p[0].argmax())
    passed = passing[_parent_places(parents, p.device), draft.tokens]  # [N]
    # One transfer, the only one of the round.
    fetched: list[int] = torch.cat([p.argmax(-1), draft.tokens, passed.long()]).tolist()
    chosen, tokens, passes = fetched[: nodes + 1], fetched[nodes + 1 : 2 * nodes + 1], fetched[2 * nodes + 1 :]
    kept: list[bool] = []
    for node, parent in enumerate(parents):
        kept.append(bool(passes[node]) and (parent < 0 or kept[parent]))
    last = max((node for node in range(nodes) if kept[node]), key=draft.tree.depths.__getitem__, default=-1)
    return Acceptance(draft.tree.path(last), chosen[last + 1], bool(draft.tree.children[last + 1]), tuple(tokens))


@lru_cache(maxsize=64)
def _parent_places(parents: tuple[int, ...], device: torch.device) -> Tensor:
    """Return for each node [N] the place in p of the law that it is tested against: that of its parent."""
    return (torch.tensor(parents, dtype=torch.long) + 1).to(device, non_blocking=True)


verifiers: Registry[Verifier] = Registry("verifiers", "verifier")

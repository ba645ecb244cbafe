"""A model that drafts, sped up by a cheaper drafter: speculative decoding of the drafts themselves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from specdec.config import Named, typed
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.drafters.base.nested import Composite, built_part, checked_part, described, named_below
from specdec.drafters.small_model import SmallModel
from specdec.errors import NumericsError, UsageError
from specdec.records import EMPTY, Draft, Source, TextStart, Tree, chain_tree
from specdec.sampling import generator_on
from specdec.structures.base import Structure, structures
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.verifiers.base import Verifier
from specdec.verifiers.speculative_sampling import SpeculativeSampling


@typed
class StagedConfig(Named):
    of: dict[str, Any]
    by: dict[str, Any]
    structure: dict[str, Any]

    def __post_init__(self) -> None:
        checked_part("of", self.of)
        if drafters.get(self.of["name"]) is not SmallModel:
            raise UsageError(
                f"Bad value drafter.of.name={self.of['name']}: it should be small_model, because proposals are checked "
                "against the law of a model; a drafter that is fast already, or staged itself, belongs in drafter.by."
            )
        checked_part("by", self.by)
        with named_below("structure", group="structure"):
            structures.config(self.structure)


@drafters.register("staged")
class Staged(Composite):
    """Drafts the chains of the model `of`, made by speculative decoding of that model with the drafter `by` (Spector
    and Re 2308.04623, section 3).

    The model stands in a target's place: `by` proposes what `structure` asks for, the model evaluates it in one call,
    and speculative sampling accepts, until the chain has gamma tokens. That rule is lossless, so the tokens have
    exactly the law that the model alone would draw them from, and q is this law, the model's at every node; with a
    greedy model the chain is the model's greedy chain. Where a rejection of the run's target ends a chain, the model's
    cache is rolled back, and `by` takes the rejected tokens back (`Drafter.retract`) or starts the text anew.

    A call of the model keeps accepted tokens, whose sources are those of `by`, and gives one of its own with the source
    "small_model": these nodes of a draft are the model's calls.

    `by` drafts for the model, not for the run's target: heads must have been trained for the model's weights, and are
    given its states. A drafter that reads states or logits is given those of every token before it drafts, which takes
    a call of its own after a chain that was accepted whole, and is started anew after a rejection. `by` may be staged
    itself, to any depth. All models are decoder-only and have one tokenizer.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), replay="position")

    def __init__(self, small: SmallModel, outer: "DraftTarget", by: Drafter, structure: Structure) -> None:
        """Raises UsageError: a structure that `by` does not fill, or that is deeper than it drafts."""
        can = by.capabilities
        if structure.name not in can.fills:
            raise UsageError(
                f"Bad value drafter.structure.name={structure.name}: drafter.by fills only "
                f"{', '.join(sorted(can.fills))}."
            )
        if can.deepest is not None and structure.gamma > can.deepest:
            raise UsageError(
                f"Bad value drafter.structure={structure.name}: it is {structure.gamma} deep, and drafter.by drafts "
                f"{can.deepest} levels at most; lower the structure's depth."
            )
        self.small, self.outer, self.by, self._structure = small, outer, by, structure
        self.nested = {"by": by}
        rule: Verifier = SpeculativeSampling()
        self._verifier = rule.for_greedy() if outer.sampling.greedy else rule
        # A drafter that reads what the model says of each token needs to hear of all of them.
        self._reads = can.reads_states or can.reads_logits or can.replay == "calling"
        self.capabilities = replace(self.capabilities, vocab_size=small.capabilities.vocab_size)
        self._begin(TextStart((), 0))

    @classmethod
    def from_config(cls, config: StagedConfig, target: Target) -> "Staged":
        small = cast(SmallModel, built_part("of", config.of, target))
        with named_below("of"):
            outer = DraftTarget(small, target)
        return cls(small, outer, built_part("by", config.by, outer), structures.build(config.structure))

    def _begin(self, text: TextStart) -> None:
        self._text = list(text.prompt)
        self._known: list[int] = []  # what `by` has been told; the model's cache has all of it but the last
        self._sure = 0  # tokens that both share beyond doubt
        self._capacity = text.capacity + self._structure.nodes + 2
        self._random, self._prompt = text.generator, tuple(text.prompt)
        self._generator = generator_on(text.generator, self.outer.device)
        self._states: Tensor | None = None  # [capacity, D] of the tokens in the model's cache

    def prepare(self, capacity: int, structure: Structure) -> None:
        nodes = self._structure.nodes
        # After a chain that was accepted whole, a call has one token more.
        self.outer.prepare({1, 2, nodes + 1, nodes + 2}, capacity + nodes + 2, 1)
        super().prepare(capacity + nodes + 2, self._structure)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin(text)
        if len(text.prompt) > self.outer.context_length:
            return
        self.outer.start(TextStart(text.prompt, self._capacity))
        self._keep(0)
        self._known = list(text.prompt)
        self._start_by(self._known)

    def _start_by(self, text: Sequence[int]) -> None:
        """Start `by` at a text that begins with the prompt."""
        first, states = len(self._prompt), self._states
        begin = TextStart(self._prompt, self._capacity, generator=self._random)
        self.by.start(begin, None if states is None else states[: first - 1])
        if len(text) > first:
            self.by.commit(text[first:], None if states is None else states[first - 1 : len(text) - 1])

    def _keep(self, place: int) -> None:
        """Keep the model's last states [S, D], of the tokens from `place` on, for a drafter that reads them."""
        states = self.outer.states
        if states is not None and self.by.capabilities.reads_states:
            if self._states is None:
                self._states = states.new_empty(self._capacity, states.shape[-1])
            self._states[place : place + len(states)] = states

    def draft(self, structure: Structure) -> Draft:
        gamma = min(structure.gamma, self.outer.context_length + 1 - len(self._text))
        if gamma < 1 or not self._known:
            return EMPTY
        pending = self._roll_back()
        laws, source = list[Tensor](), list[Source]()
        while len(source) < gamma:
            try:
                law, origin = self._round(pending, gamma - len(source))
            except NumericsError:
                raise NumericsError(
                    f"The logits of drafter.of.model={self.small.name} are not finite: the run stops here. Try "
                    "drafter.of.dtype=float32, or check the model."
                ) from None
            laws.append(law)
            source += origin
            pending = self._known[-1:]
        tokens = torch.tensor(self._known[-gamma:], device=self.outer.device)
        q = None if self.outer.sampling.greedy else torch.cat(laws)
        return Draft(tokens, chain_tree(gamma), q, tuple(source))

    def _roll_back(self) -> list[int]:
        """Bring the model and `by` to the text; return the tokens that the model has to read, its root first."""
        known, text = self._known, self._text
        shared, most = min(self._sure, len(text)), min(len(known), len(text))
        while shared < most and known[shared] == text[shared]:
            shared += 1
        read = min(shared, len(text) - 1, len(known) - 1)
        told = text[: read + 1] if self._reads else list(text)
        self.outer.move(read, text[read])
        wrong = len(known) - shared
        if wrong and (self._reads or not self.by.retract(wrong)):
            self._start_by(told)
        elif len(told) > shared:
            self.by.commit(told[shared:])
        self._known, self._sure = list(text), len(text)
        return text[read:]

    def _round(self, pending: Sequence[int], room: int) -> tuple[Tensor, list[Source]]:
        """Draft, verify, accept and commit 1 to `room` tokens, with the model as the target; its root is pending, and
        tokens after it that are text already. Return the model's laws [A+1, V] of the tokens, and their sources.
        """
        behind, place = len(pending) - 1, len(self._known) - len(pending)
        catches_up = self._reads and behind > 0
        draft = EMPTY if catches_up else self.by.draft(self._structure.clamped(room - 1))
        below = draft
        if behind:  # one call on both; q is left out, because p alone is asked for
            parents = (*range(-1, behind - 1), *(parent + behind for parent in draft.tree.parents))
            front = torch.tensor(list(pending[1:])).to(self.outer.device, non_blocking=True)
            below = Draft(torch.cat([front, draft.tokens.to(self.outer.device)]), Tree(parents))
        p = self.outer.verify(below)
        acceptance = self._verifier.accept(draft, p[behind:], self._generator)
        path = acceptance.path
        tokens = [*(acceptance.tokens[node] for node in path), acceptance.next_token]
        self.outer.commit([*range(behind), *(behind + node for node in path)], acceptance.next_token)
        self._keep(place)
        # As rounds of their own, without a draft: tokens that are text already.
        for skipped in range(behind if catches_up else 0):
            self._tell(EMPTY, pending[skipped + 1 : skipped + 2], slice(skipped, skipped + 1))
        self._tell(draft, tokens, slice(behind, None))
        self._known += tokens
        rows = torch.tensor([behind, *(behind + node + 1 for node in path)]).to(p.device, non_blocking=True)
        return p[rows], [*(draft.source[node] for node in path), Source("small_model", 0)]

    def _tell(self, draft: Draft, tokens: Sequence[int], rows: slice) -> None:
        """End a round of `by`, whose root and nodes are these rows of the model's last call."""
        if self.by.capabilities.reads_logits:
            assert self.outer.logits is not None
            self.by.observe(draft, self.outer.logits[rows])
        self.by.commit(tokens, None if self.outer.states is None else self.outer.states[rows])

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._text += tokens

    def retract(self, count: int) -> bool:
        del self._text[len(self._text) - count :]
        self._sure = min(self._sure, len(self._text))
        return bool(self._known)

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        return self.small.laws(prompt, text)

    def describe(self) -> dict[str, Any]:
        return {**described({"of": self.small, "by": self.by}), "proposals": self._structure.label}

    @property
    def flops_per_token(self) -> float:
        """Operations of the model and of `by` for one token each: the model reads every drafted token once, as it would
        alone. Rejected proposals, which come on top, depend on the text.
        """
        return self.small.flops_per_token + self.by.flops_per_token


class DraftTarget(Causal):
    """The model of a drafter as the target of another drafter, in tokens of the run's target, whatever its width."""

    def __init__(self, drafter: SmallModel, target: Target) -> None:
        """Raises UsageError: an encoder-decoder, or a model with another tokenizer."""
        for refused, what in (
            (drafter.model.config.is_encoder_decoder, "is an encoder-decoder"),
            (drafter.translation is not None, "has another tokenizer (drafter.translate=true)"),
        ):
            if refused:
                raise UsageError(
                    f"Bad value drafter.model={drafter.name}: it {what}, and only a decoder-only model with the "
                    "target's tokenizer drafts in stages; use +drafter=small_model."
                )
        super().__init__(
            drafter.model,
            drafter.sampling,
            drafter.tokenizer,
            name=drafter.name,
            compilation=target.compilation,
            prefill_chunk=drafter.prefill_chunk,
        )
        self._drafter, self._width = drafter, self.vocab_size
        self.vocab_size = target.vocab_size

    def start(self, text: TextStart) -> None:
        super().start(replace(text, prompt=self._drafter.known(text.prompt)))

    def move(self, length: int, root: int) -> None:
        """Keep the first `length` tokens of the cache; `root` is the one after them."""
        self.decoder.length = length
        self._root = torch.full((1,), root, device=self.device)

    def _forward(self, tokens: Tensor, tree: Tree) -> Tensor:
        known = tokens if self._width >= self.vocab_size else torch.where(tokens < self._width, tokens, 0)
        return self._drafter.align(super()._forward(known, tree))

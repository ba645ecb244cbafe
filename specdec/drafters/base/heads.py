"""The part that drafters over heads share: heads from a file, h_t in every round, and the draft of any structure."""

import copy
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from specdec.drafters.base.batch import BatchDrafter
from specdec.drafters.base.contract import Drafter, DrafterCapabilities
from specdec.errors import NumericsError, UsageError
from specdec.heads.checkpoint import KIND, load_heads, shipped_heads
from specdec.heads.choices import Standardise, choices_of
from specdec.heads.draft_heads import DraftHeads
from specdec.heads.trained_file import training_of
from specdec.models.load import training_cost
from specdec.published.checkpoint_files import PICKLES
from specdec.published.heads_format import load_published_heads
from specdec.records import EMPTY, Draft, Source, TextStart, Tree
from specdec.sampling import all_finite, generator_on, one_hot, probabilities
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Asked, Growth, How, Siblings, grow_together, growing, sibling_ranks

Drafts = Literal["sampled", "greedy"]

_POSITIONS = 256  # whose laws are in memory at a time, when a text is replayed
_TRAINED = "heads.safetensors"  # in the folder of a training


class HeadsDrafter(Drafter):
    """Head k drafts the tokens at depth k from h_t, the state of the last token that the target evaluated.

    Under a greedy target, or with `drafts=greedy`, and in a dynamic tree, nodes are the most likely tokens, point
    masses; otherwise they are drawn from the heads' laws, standardised by the target's own sampling, siblings as
    `siblings` says. Heads that a structure has no level for are not computed. Nothing is offered before the first
    state: after a prompt of one token.

    A draft costs a few matrix products over one or a few states: there is nothing to compile.

    Class attributes:
        strategy: the registry name, for `Source`.
        grounded: whether the heads read the drafted tokens.
        shipped: the heads that `drafter.model=pocket` names.

    Attributes:
        heads: in the target's dtype, on its device.
        choices: what they propose, for one text or for several.
    """

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, reads_states=True, replay="start")
    strategy: ClassVar[str]
    grounded: ClassVar[bool]
    shipped: ClassVar[str]

    def __init__(
        self,
        heads: DraftHeads,
        target: Target,
        sha256: str = "",
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
    ) -> None:
        """
        Args:
            sha256: of the heads' files; "" for heads that were made in memory, and for a hub id.
        Raises:
            UsageError: a target without hidden states, or with fewer layers than the heads read.
        """
        self._kept = target.hidden.keep(heads.offset(target.hidden.layers))
        self.heads, self._sha256 = heads, sha256
        self._origin: dict[str, Any] = {}  # how they were made or published
        self.choices = choices_of(heads)
        self._sampling, self._device = target.sampling, target.device
        self._greedy = drafts == "greedy" or target.sampling.greedy
        self._siblings: Siblings = siblings
        self.capabilities = replace(self.capabilities, vocab_size=heads.vocab_size, deepest=len(heads))
        self._begin(None, 0)

    @classmethod
    def from_file(cls, model: str, target: Target, drafts: Drafts, siblings: Siblings = "without_replacement") -> Self:
        """Return a drafter over the heads of a file, or of a published checkpoint.

        Args:
            model: `pocket`, a file that `specdec.train` wrote (or its folder), or a published checkpoint, by its
                folder or hub id.
        Raises:
            UsageError: no such file, heads of another kind or of other weights, a target without hidden states.
        """
        path = shipped_heads(cls.shipped) if model == "pocket" else Path(model).expanduser()
        if (path / _TRAINED).is_file():
            path = path / _TRAINED
        if path.suffix in PICKLES or not path.is_file() and path.suffix != ".safetensors":
            return cls.from_published(model, target, drafts, siblings)
        if model == "pocket" and not path.is_file():
            raise UsageError(
                f"Bad value drafter.model=pocket: this installation has no heads {cls.shipped!r}; train some with "
                f"python -m specdec.train +heads={cls.shipped} and give their file."
            )
        heads = load_heads(path, target)
        if heads.grounded != cls.grounded:
            kind, other = ("grounded", "grounded") if heads.grounded else ("not grounded", "medusa")
            raise UsageError(f"Bad value drafter.model={model}: these heads are {kind}; use +drafter={other}.")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        drafter = cls(heads, target, sha256, drafts, siblings)
        drafter._origin = {"training": training_cost(training_of(KIND, path))}
        return drafter

    @classmethod
    def from_published(
        cls, model: str, target: Target, drafts: Drafts, siblings: Siblings = "without_replacement"
    ) -> Self:
        """Return a drafter over the heads of a published checkpoint, given by its folder or hub id.

        Raises:
            UsageError: see `load_published_heads`.
        """
        published = load_published_heads(model, target, cls.strategy)
        drafter = cls(published.heads, target, published.sha256, drafts, siblings)
        drafter._origin = published.origin
        return drafter

    def _begin(self, generator: torch.Generator | None, root: int) -> None:
        self._generator, self._root = generator, root
        self._state: Tensor | None = None  # [D] h_t
        self._past: Any = None  # what the prefix layer keeps of the states before
        self._finite: Tensor | None = None

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin(generator_on(text.generator, self._device), text.prompt[-1])
        self._read(states)

    def _read(self, states: Tensor | None) -> None:
        if states is not None and len(states):
            contextual, self._past = self.heads.contextual(self._kept(states).unsqueeze(0), self._past)
            self._state = contextual[0, -1]

    def draft(self, structure: Structure) -> Draft:
        shape = structure.clamped(len(self.heads))
        if not self.begun or shape.gamma == 0:
            return EMPTY
        if self.ranks(shape):
            return _ranked({0: self}, {0: shape})[0]
        return _grown({0: self}, {0: shape})[0]

    @property
    def begun(self) -> bool:
        """There is a state to draft from."""
        return self._state is not None

    @property
    def before(self) -> tuple[Tensor, int]:
        """The state h_t [D] and the root that a round drafts from."""
        assert self._state is not None
        return self._state, self._root

    def forget(self) -> None:
        """Forget the text."""
        self._begin(None, 0)

    def ranks(self, shape: Structure) -> bool:
        """Return whether a draft has ranked tokens on the topology of the structure: no beam chooses it, and no node
        has more children than there are tokens.
        """
        if not self._greedy or shape.beam is not None:
            return False
        return max(map(len, shape.tree.children)) <= self.heads.vocab_size

    def sources(self, shape: Structure) -> tuple[Source, ...]:
        """Return strategy and rank of every node of a full draft of ranked tokens."""
        return tuple(Source(self.strategy, rank) for rank in sibling_ranks(shape.tree, shape.rows is not None))

    def standardise(self, shape: Structure) -> Standardise:
        """Return what turns logits into laws for a draft of this shape, or leaves them as scores that rank children."""
        if self._greedy or shape.beam is not None:
            return lambda logits: logits
        return self._standardised

    def _standardised(self, logits: Tensor) -> Tensor:
        return probabilities(logits, self._sampling)

    def growth(self, shape: Structure) -> Growth:
        """Return the draft of this text, which grows level by level."""
        how: How = "ranked" if self._greedy or shape.beam is not None else self._siblings
        return growing(shape, how, self.strategy, self._generator)

    def check(self, draft: Draft) -> None:
        """Have the q of the round's draft looked at, for `commit` to read."""
        self._finite = all_finite(draft.q)

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        """See `Drafter.commit`.

        Raises:
            NumericsError: the q of the round's draft was not finite. It is seen only here, because by now the host
                has waited for the device.
        """
        if self._finite is not None and not self._finite:
            raise NumericsError(
                "The heads' logits are not finite: the run stops here. Try target.dtype=float32, or check "
                "drafter.model."
            )
        self._finite, self._root = None, tokens[-1]
        self._read(states)

    @torch.inference_mode()
    def chances(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Tensor | None:
        """Return q of the text's tokens, see `Drafter.chances`: one pass of each head over all positions, from which
        `_POSITIONS` laws at a time are made.
        """
        assert states is not None
        size, first = len(text), len(prompt) - 2  # the state before the root of round 1
        q = torch.zeros(size, depth, dtype=torch.float64, device=self._device)
        tokens = torch.tensor([*prompt, *text], device=self._device)
        features = self.heads.features(self._kept(states).unsqueeze(0), tokens[:-1].unsqueeze(0), depth)
        for k in range(1, min(depth, size) + 1):
            # A chain that begins at position t drafts token t+k-1 of the text at depth k, from state first+t.
            for begin in range(max(0, -first), size - k + 1, _POSITIONS):
                end = min(begin + _POSITIONS, size - k + 1)
                logits = self.heads.logits(k, features[k - 1][0, first + begin : first + end])
                of_text = tokens[len(prompt) + begin + k - 1 : len(prompt) + end + k - 1].unsqueeze(-1)
                law = (
                    one_hot(logits.argmax(-1), logits.shape[-1])
                    if self._greedy
                    else probabilities(logits, self._sampling)
                )
                q[begin:end, k - 1] = law.gather(-1, of_text).squeeze(-1).double()
        return q

    def batched(self, slots: int) -> "BatchedHeads":
        return BatchedHeads([copy.copy(self) for _ in range(slots)])

    def describe(self) -> dict[str, Any]:
        weights = list(self.heads.parameters())
        return {
            "class": type(self.heads).__name__,
            "heads": self.heads.describe(),
            "parameters": sum(weight.numel() for weight in weights),
            "weight_bytes": sum(weight.numel() * weight.element_size() for weight in weights),
            "dtype": str(weights[0].dtype).removeprefix("torch."),
            "sha256": self._sha256,
            **self._origin,
        }

    @property
    def flops_per_token(self) -> float:
        """Operations of a head and its way to the vocabulary, the mean over the heads (`DraftHeads`)."""
        return self.heads.flops_per_token


class BatchedHeads(BatchDrafter):
    """Heads over the states of several texts: drafts of one shape take the passes that a single one takes, one for each
    level or, of independent heads, one for all. Before the end of a text its draft is cut, and drafts of every size
    have passes of their own.
    """

    def __init__(self, texts: Sequence[HeadsDrafter]) -> None:
        """
        Args:
            texts: a drafter for each slot, over the same heads.
        """
        self._texts, self.slots = texts, len(texts)
        for slot in range(self.slots):
            self.release(slot)

    def start(self, slot: int, text: TextStart, states: Tensor | None = None) -> None:
        self._texts[slot].start(text, states)

    def draft(self, structures: Mapping[int, Structure]) -> dict[int, Draft]:
        drafts: dict[int, Draft] = {}
        ranked: defaultdict[Tree, dict[int, Structure]] = defaultdict(dict)
        grown: defaultdict[int, dict[int, Structure]] = defaultdict(dict)
        for slot, structure in structures.items():
            text = self._texts[slot]
            shape = structure.clamped(len(text.heads))
            if not text.begun or shape.gamma == 0:
                drafts[slot] = EMPTY
            elif text.ranks(shape):
                ranked[shape.tree][slot] = shape
            else:
                grown[shape.gamma][slot] = shape
        for alike in ranked.values():
            drafts |= _ranked({slot: self._texts[slot] for slot in alike}, alike)
        for alike in grown.values():
            drafts |= _grown({slot: self._texts[slot] for slot in alike}, alike)
        return {slot: drafts[slot] for slot in structures}

    def commit(self, slot: int, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._texts[slot].commit(tokens, states)

    def release(self, slot: int) -> None:
        self._texts[slot].forget()


def _ranked(texts: Mapping[int, HeadsDrafter], shapes: Mapping[int, Structure]) -> dict[int, Draft]:
    """Draft ranked tokens on one topology for several texts."""
    first, tree = next(iter(texts.values())), next(iter(shapes.values())).tree
    tokens = first.choices.first(*_before(texts), tree)  # [B, N]
    return {slot: Draft(row, tree, source=first.sources(shapes[slot])) for slot, row in zip(texts, tokens, strict=True)}


def _grown(texts: Mapping[int, HeadsDrafter], shapes: Mapping[int, Structure]) -> dict[int, Draft]:
    """Draft for several texts level by level, each by the tokens of the levels above; all shapes are equally deep."""
    first, shape = next(iter(texts.values())), next(iter(shapes.values()))
    states, roots = _before(texts)
    after = first.choices.laws(states, shape.gamma, first.standardise(shape))
    places = {slot: place for place, slot in enumerate(texts)}

    def laws(asked: Mapping[int, Asked]) -> dict[int, Tensor]:
        width = max(len(each.nodes) for each in asked.values())
        lines: dict[int, Tensor] = {}
        for slot, (tokens, tree, nodes) in asked.items():
            paths = torch.tensor([tree.path(node) for node in nodes], dtype=torch.long)  # [M, k - 1]: of one depth
            # Before the first level there are no tokens, and what there is of them is on the host.
            drafted = tokens.to(roots.device)[paths.to(roots.device, non_blocking=True)]
            root = roots[places[slot]].expand(len(nodes), 1)
            lines[slot] = torch.cat([root, drafted], 1)
        some = next(iter(lines.values()))[:1]  # stands where a text asks for fewer laws than others, or for none
        padded = [
            torch.cat([line, some.expand(width - len(line), -1)]) for line in (lines.get(slot, some) for slot in texts)
        ]
        found = after(torch.stack(padded))  # [B, M, V]
        return {slot: found[places[slot], : len(each.nodes)] for slot, each in asked.items()}

    drafts = grow_together({slot: text.growth(shapes[slot]) for slot, text in texts.items()}, laws)
    for slot, draft in drafts.items():
        texts[slot].check(draft)
    return drafts


def _before(texts: Mapping[int, HeadsDrafter]) -> tuple[Tensor, Tensor]:
    """Return the states [B, D] and the roots [B] of texts that have begun."""
    befores = [text.before for text in texts.values()]
    roots = [torch.full((1,), root, device=state.device) for state, root in befores]  # a copy would wait for the device
    return torch.stack([state for state, _ in befores]), torch.cat(roots)

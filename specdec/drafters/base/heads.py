"""The part that drafters over heads share: heads from a file, h_t in every round, and the draft of any structure."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from specdec.drafters.base.contract import Drafter, DrafterCapabilities
from specdec.errors import NumericsError, UsageError
from specdec.heads.checkpoint import KIND, load_heads, shipped_heads
from specdec.heads.choices import choices_of
from specdec.heads.draft_heads import DraftHeads
from specdec.heads.trained_file import training_of
from specdec.models.load import training_cost
from specdec.published.checkpoint_files import PICKLES
from specdec.published.heads_format import load_published_heads
from specdec.records import EMPTY, Draft, Source, TextStart, Tree
from specdec.sampling import all_finite, generator_on, one_hot, probabilities
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import How, Siblings, grow, sibling_ranks

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
        self._choices = choices_of(heads)
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
        if self._state is None or shape.gamma == 0:
            return EMPTY
        root = torch.full((1,), self._root, device=self._device)  # written there: copying would wait for it
        if (self._greedy or shape.beam) and self._has_topology(shape):
            tokens = self._choices.first(self._state.unsqueeze(0), root, shape.tree)[0]
            return Draft(tokens, shape.tree, source=self._sources(shape))
        return self._grown(shape, self._state, root)

    def _has_topology(self, shape: Structure) -> bool:
        """Return whether a draft of ranked tokens has the topology of the structure: no beam chooses it, and no node
        has more children than there are tokens.
        """
        return shape.beam is None and max(map(len, shape.tree.children)) <= self.heads.vocab_size

    def _sources(self, shape: Structure) -> tuple[Source, ...]:
        return tuple(Source(self.strategy, rank) for rank in sibling_ranks(shape.tree, shape.rows is not None))

    def _grown(self, shape: Structure, state: Tensor, root: Tensor) -> Draft:
        """Draft level by level, each by the tokens of the levels above."""
        ranked = self._greedy or shape.beam is not None
        standardise = (lambda logits: logits) if ranked else self._standardised
        after = self._choices.laws(state.unsqueeze(0), shape.gamma, standardise)

        def laws(tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
            paths = torch.tensor([tree.path(node) for node in nodes], dtype=torch.long)  # [M, k - 1]: of one depth
            # Before the first level there are no tokens, and what there is of them is on the host.
            drafted = tokens.to(root.device)[paths.to(root.device, non_blocking=True)]
            return after(torch.cat([root.expand(len(nodes), 1), drafted], 1).unsqueeze(0))[0]

        how: How = "ranked" if ranked else self._siblings
        draft = grow(shape, laws, how, self.strategy, self._generator)
        self._finite = all_finite(draft.q)
        return draft

    def _standardised(self, logits: Tensor) -> Tensor:
        return probabilities(logits, self._sampling)

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
                law = one_hot(logits.argmax(-1), logits.shape[-1]) if self._greedy else self._standardised(logits)
                q[begin:end, k - 1] = law.gather(-1, of_text).squeeze(-1).double()
        return q

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

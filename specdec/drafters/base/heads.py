"""The part that drafters over heads share: heads from a file, h_t in every round, what heads choose, and any draft."""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from specdec.config import NonEmpty, typed
from specdec.drafters.base.contract import BatchDrafter, DrafterCapabilities
from specdec.drafters.base.network_drafter import Along, Drafts, DrawnConfig, NetworkDrafter
from specdec.errors import UsageError
from specdec.heads.network import DraftHeads, Heads, MlpHead
from specdec.models.load import describe_weights
from specdec.published.network_files import TRAINED_HEADS
from specdec.records import EMPTY, Draft, Source, TextStart, Tree
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Asked, Siblings, grow_together, index_on, source_ranks

_POSITIONS = 256  # whose laws are in memory at a time, when a text is replayed
Standardise = Callable[[Tensor], Tensor]  # turns logits [..., V] into laws, or into scores that rank children
After = Callable[[Tensor], Tensor]  # gives laws [B, M, V] of head k after M paths [B, M, k], which begin with the root


@typed
class HeadsDrafterConfig(DrawnConfig):
    model: NonEmpty


class HeadsDrafter(NetworkDrafter):
    """Head k drafts the tokens at depth k from h_t, the state of the last token that the target evaluated.

    q is the law of the head (see `NetworkDrafter`). Heads that a structure has no level for are not computed. Nothing
    is offered before the first state: after a prompt of one token.
    """

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, reads_states=True, replay="start")
    not_finite = (
        "The heads' logits are not finite: the run stops here. Try target.dtype=float32, or check drafter.model."
    )
    grounded: ClassVar[bool]  # the heads read the drafted tokens
    shipped: ClassVar[str]  # the heads that `drafter.model=pocket` names

    def __init__(
        self,
        heads: DraftHeads,
        target: Target,
        about: Mapping[str, Any] | None = None,
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
    ) -> None:
        """Raises UsageError: a target without hidden states, or with fewer layers than the heads read."""
        super().__init__(target, drafts, siblings)
        self._kept = target.hidden.keep(heads.offset(target.hidden.layers))
        self.heads, self._about = heads, {"sha256": "", **(about or {})}
        self.choices: IndependentChoices | SequentialChoices = SequentialChoices(heads)
        if isinstance(heads, Heads) and not heads.grounded:  # our own network can be asked for all heads at once
            self.choices = IndependentChoices(heads)
        self.capabilities = replace(self.capabilities, vocab_size=heads.vocab_size, deepest=len(heads))
        self._begin(None)

    @classmethod
    def from_config(cls, config: HeadsDrafterConfig, target: Target) -> Self:
        """Raises UsageError: heads of another kind; see `TrainedKind.open`."""
        heads, about = TRAINED_HEADS.open(config.model, target, cls.strategy, cls.shipped)
        if heads.grounded != cls.grounded:
            kind, other = ("grounded", "grounded") if heads.grounded else ("not grounded", "medusa")
            raise UsageError(f"Bad value drafter.model={config.model}: these heads are {kind}; use +drafter={other}.")
        return cls(heads, target, about, config.drafts, config.siblings)

    def prepare(self, capacity: int, structure: Structure) -> None:
        self.prepare_product(self.heads, self.heads.output_layer(1))

    def _begin(self, generator: torch.Generator | None, root: int = 0) -> None:
        super()._begin(generator)
        self.state: Tensor | None = None  # h_t [D], from which a round drafts
        self.root = root
        self._past: Any = None  # what the prefix layer keeps of the states before

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin(text.generator, text.prompt[-1])
        self._read(states)

    def _read(self, states: Tensor | None) -> None:
        if states is not None and len(states):
            contextual, self._past = self.heads.contextual(self._kept(states).unsqueeze(0), self._past)
            self.state = contextual[0, -1]

    def draft(self, structure: Structure) -> Draft:
        return BatchedHeads([self]).draft({0: structure})[0]

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        super().commit(tokens)
        self.root = tokens[-1]
        self._read(states)

    def along(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Along:
        """See `NetworkDrafter.along`: a pass of each head over all positions, and logits of `_POSITIONS` at a time."""
        assert states is not None
        tokens = torch.tensor([*prompt, *text][:-1], device=self._device)
        before = len(prompt) - 2  # place of the state before the root of round 1
        for k, features in enumerate(self.heads.features(self._kept(states).unsqueeze(0), tokens.unsqueeze(0), depth)):
            for place in range(max(0, before), len(tokens), _POSITIONS):
                yield place - before, k, self.heads.logits(k + 1, features[0, place : place + _POSITIONS])

    def batched(self, slots: int) -> "BatchedHeads":
        texts = [copy.copy(self) for _ in range(slots)]
        for text in texts:
            text._begin(None)
        return BatchedHeads(texts)

    def describe(self) -> dict[str, Any]:
        return {**describe_weights(self.heads), "heads": self.heads.describe(), **self._about}

    @property
    def flops_per_token(self) -> float:
        """Operations of a head and its way to the vocabulary, the mean over the heads (`DraftHeads`)."""
        return self.heads.flops_per_token


class BatchedHeads(BatchDrafter):
    """Heads over the states of several texts: ranked tokens are drafted together on one topology, others with all that
    are equally deep. Drafts of one shape take the passes that a single one takes.
    """

    texts: Sequence[HeadsDrafter]

    def draft(self, structures: Mapping[int, Structure]) -> dict[int, Draft]:
        drafts = dict.fromkeys(structures, EMPTY)
        groups: defaultdict[Tree | int, dict[int, Structure]] = defaultdict(dict)
        for slot, structure in structures.items():
            text = self.texts[slot]
            shape = structure.clamped(len(text.heads))
            if text.state is not None and shape.gamma > 0:
                # Ranked tokens take the topology as it is, if no node has more children than there are tokens.
                ranked = shape.beam is None and text.how(shape) == "ranked"
                fits = ranked and max(map(len, shape.tree.children)) <= text.heads.vocab_size
                groups[shape.tree if fits else shape.gamma][slot] = shape
        for common, shapes in groups.items():
            texts = [self.texts[slot] for slot in shapes]
            states = torch.stack([text.state for text in texts if text.state is not None])  # [B, D]
            # Filled there: a copy would wait for the device.
            roots = torch.cat([torch.full((1,), text.root, device=states.device) for text in texts])  # [B]
            if isinstance(common, int):
                drafts |= self._grown(shapes, states, roots)
                continue
            for slot, row in zip(shapes, texts[0].choices.first(states, roots, common), strict=True):
                ranks = source_ranks(common, shapes[slot].rows is not None)
                drafts[slot] = Draft(row, common, source=tuple(Source(texts[0].strategy, rank) for rank in ranks))
        return drafts

    def _grown(self, shapes: Mapping[int, Structure], states: Tensor, roots: Tensor) -> dict[int, Draft]:
        """Draft level by level, each by the tokens of the levels above; all shapes are equally deep."""
        first, shape = self.texts[next(iter(shapes))], next(iter(shapes.values()))
        after = first.choices.laws(states, shape.gamma, first.standardise(shape))
        places = {slot: place for place, slot in enumerate(shapes)}
        growths = {slot: self.texts[slot].growth(shape) for slot, shape in shapes.items()}

        def laws(asked: Mapping[int, Asked]) -> dict[int, Tensor]:
            lines: dict[int, Tensor] = {}
            for slot, each in asked.items():
                root = roots[places[slot]].expand(len(each.nodes), 1)
                lines[slot] = torch.cat([root, each.paths(roots.device)], 1)
            # Stands for a text that asks for no law; where one asks for fewer than others, paths of token 0 are read.
            some = next(iter(lines.values()))[:1]
            found = after(pad_sequence([lines.get(slot, some) for slot in shapes], batch_first=True))  # [B, M, V]
            return {slot: found[places[slot], : len(each.nodes)] for slot, each in asked.items()}

        return {slot: self.texts[slot].checked(draft) for slot, draft in grow_together(growths, laws).items()}

    def release(self, slot: int) -> None:
        self.texts[slot]._begin(None)


class StackedLayer:
    """A copy of one linear layer of all K heads. On a CPU a product with one vector takes as long as its start-up: four
    small ones cost four times as much as one.
    """

    def __init__(self, layers: list[nn.Linear]) -> None:
        self.weight = torch.stack([layer.weight.detach().T for layer in layers])  # [K, in, out]
        self.bias = torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers])  # [K, 1, out]

    def __call__(self, x: Tensor) -> Tensor:
        """Return [k, B, out] for inputs [k, B, in] of the first k heads."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class IndependentChoices:
    """Choices of heads that read h_t alone (Medusa 2401.10774, 2.1): one pass gives all depths. All nodes of a depth
    have the same choices below them, so a tree is a part of the Cartesian product of the heads' choices. States h_t
    [B, D], of B sequences, are those of `Heads.contextual`.
    """

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._blocks: list[tuple[StackedLayer, StackedLayer | None]] = []
        for blocks in zip(*(head.blocks for head in heads.heads if isinstance(head, MlpHead)), strict=True):
            outer = [block.outer for block in blocks if block.outer is not None]
            inner = StackedLayer([block.inner for block in blocks])
            self._blocks.append((inner, StackedLayer(outer) if outer else None))

    def logits(self, states: Tensor, count: int) -> Tensor:
        """Return the logits [count, B, V] of the first `count` heads; the other heads are not computed."""
        x = states.expand(count, -1, -1)
        for inner, outer in self._blocks:
            hidden = F.silu(inner(x))
            x = x + (hidden if outer is None else outer(hidden))
        if self._heads.config.output == "own":
            return torch.stack([self._heads.logits(k, x[k - 1]) for k in range(1, count + 1)])
        return self._heads.logits(1, x)

    def first(self, states: Tensor, roots: Tensor, tree: Tree) -> Tensor:
        """Return tokens [B, N] for the nodes of a tree, the same one for all roots [B]: a node of rank j gets the
        (j+1)-th choice after its parent. The tree is no deeper than there are heads; no node has more than V children.
        """
        width, places = _by_depth(tree)
        best = self.logits(states, tree.depth).topk(width, dim=-1).indices  # [depth, B, width]
        return best.transpose(0, 1).flatten(1).index_select(1, index_on(best.device, places))

    def laws(self, states: Tensor, depth: int, standardise: Standardise) -> After:
        """Return the function that gives the laws after paths, for drafts of at most `depth` levels."""
        rows = standardise(self.logits(states, depth))
        return lambda drafted: rows[drafted.shape[-1] - 1].unsqueeze(1).expand(-1, drafted.shape[1], -1)


class SequentialChoices:
    """Choices of grounded heads (Hydra 2402.05109, section 3), which also read the tokens of the path: one pass for
    each level, over all its nodes that have children. For the methods see `IndependentChoices`.
    """

    def __init__(self, heads: DraftHeads) -> None:
        self._heads = heads

    def first(self, states: Tensor, roots: Tensor, tree: Tree) -> Tensor:
        device = roots.device
        chosen = torch.cat([roots.unsqueeze(1), roots.new_empty(len(roots), len(tree))], 1)  # [B, 1 + N], by number
        for k, level in enumerate(_by_level(tree), 1):
            drafted = chosen.index_select(1, index_on(device, level.paths)).unflatten(1, (-1, k))  # [B, M, k]
            best = self._after(states, drafted).topk(level.width, dim=-1).indices  # [B, M, width]
            tokens = best.flatten(1).index_select(1, index_on(device, level.places))
            chosen.index_copy_(1, index_on(device, level.nodes), tokens)
        return chosen[:, 1:]

    def laws(self, states: Tensor, depth: int, standardise: Standardise) -> After:
        return lambda drafted: standardise(self._after(states, drafted))

    def _after(self, states: Tensor, drafted: Tensor) -> Tensor:
        """Return the logits [B, M, V] after M paths in each sequence [B, M, k]."""
        batch, paths, k = drafted.shape
        # A single sequence keeps its one state, which heads that read no tokens then pass on once, not for each path.
        state = states[0] if batch == 1 else states.repeat_interleave(paths, 0)
        logits = self._heads.logits(k, self._heads.draft_features(k, state, drafted.flatten(0, 1)))
        return logits.expand(batch * paths, -1).unflatten(0, (batch, paths))


@lru_cache(maxsize=256)
def _by_depth(tree: Tree) -> tuple[int, tuple[int, ...]]:
    """Return the most siblings, W, and the place [N] of each node's token in a table [depth, W] of choices."""
    width = max(map(len, tree.children))
    ranks = zip(tree.depths, tree.ranks, strict=True)
    return width, tuple((depth - 1) * width + rank for depth, rank in ranks)


class _Level(NamedTuple):
    """The n nodes of depth k, by their M parents. A node's number is its place in the tree plus one, the root's 0."""

    nodes: tuple[int, ...]  # [n] their numbers
    paths: tuple[int, ...]  # [M * k] the numbers on the path to each parent, from the root on
    width: int  # the largest number of children of one parent, W
    places: tuple[int, ...]  # [n] place of every node's token in a table [M, W] of choices after each parent


@lru_cache(maxsize=256)
def _by_level(tree: Tree) -> tuple[_Level, ...]:
    levels, numbers = list[_Level](), [0]
    while parents := [number for number in numbers if tree.children[number]]:
        families = [tree.children[parent] for parent in parents]
        width = max(map(len, families))
        paths = [node + 1 for parent in parents for node in (-1, *tree.path(parent - 1))]
        places = [place * width + rank for place, family in enumerate(families) for rank in range(len(family))]
        numbers = [child + 1 for family in families for child in family]
        levels.append(_Level(tuple(numbers), tuple(paths), width, tuple(places)))
    return tuple(levels)

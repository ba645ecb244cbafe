"""A feature drafter: a layer or a few over the target's own features, which drafts autoregressively (EAGLE).

The rows of the committed text are made of the target's own features only, and those of a draft live in an object that
is dropped with it: nothing of a rejected token can stay behind.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.network_drafter import Along, Drafts, DrawnConfig, FeatureDrafter
from specdec.eagle.eagle_network import BlockNetwork, EagleNetwork, KeysValues, MarkovHead
from specdec.errors import UsageError
from specdec.models.load import describe_weights
from specdec.published.network_files import TRAINED_EAGLE
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import Target
from specdec.tree_building.siblings import Asked, Siblings

logger = logging.getLogger(__name__)

_POSITIONS = 256  # whose logits are in memory at a time, when a text is replayed


@typed
class EagleDrafterConfig(DrawnConfig):
    model: str
    layers: list[Annotated[int, Field(ge=0)]] | None


@drafters.register("eagle")
class Eagle(FeatureDrafter):
    """Drafts with a network over the target's features (EAGLE 2401.15077, EAGLE-2 2406.16858, EAGLE-3 2503.01840).

    The network's law of the next token reads the features of the tokens that the target has evaluated and, from the
    second token of a draft on, states that it has made itself. A draft of depth d takes d passes of it, one for each
    level; the first is over the tokens committed in the round before. Whatever was accepted or rejected, these rows are
    made anew of the target's features. P-EAGLE networks draft all levels after the first in one pass over mask tokens
    (2602.01469), and DFlash networks all of a block, so that their nodes of one depth have one law. DSpark networks
    (2607.05147) add scores of the tokens above to each level's logits: q has them, in chains and in trees.

    q is the network's law (see `NetworkDrafter`), 0 for tokens that it cannot draft; siblings are drawn as `siblings`
    says. Where the structure has a `threshold`, the network's own probability of the drafted token (softmax at
    temperature 1) is read after every token.
    """

    capabilities = DrafterCapabilities(
        fills=EVERY_STRUCTURE, reads_states=True, reports_confidence=True, replay="start"
    )

    network: EagleNetwork | BlockNetwork
    strategy = "eagle"
    not_finite = (
        "The EAGLE network's logits are not finite: the run stops here. Try target.dtype=float32, or check "
        "drafter.model."
    )

    def __init__(
        self,
        network: EagleNetwork | BlockNetwork,
        target: Target,
        about: Mapping[str, Any] | None = None,
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
    ) -> None:
        """Raises UsageError: a target without hidden states, or without the layers that the network reads."""
        try:
            offsets = network.config.offsets(target.hidden.layers)
        except ValueError as error:
            raise UsageError(f"Bad value drafter.model: {error}; use another checkpoint, or drafter.layers.") from None
        super().__init__(target, network, offsets, drafts, siblings)
        network.keep_rows()
        self._about = about or {}
        self.rows_of = BlockText if isinstance(network, BlockNetwork) else TextRows
        self.capabilities = replace(self.capabilities, vocab_size=network.vocab_size, deepest=network.config.deepest)
        self._begin(None)

    @classmethod
    def from_config(cls, config: EagleDrafterConfig, target: Target) -> "Eagle":
        network, about = TRAINED_EAGLE.open(config.model, target, "eagle", "eagle", layers=config.layers)
        if "format" in about and (boundaries := network.config.boundaries):
            form = about["format"]
            logger.info("%s (%s) reads the inputs of blocks %s of the target.", config.model, form, boundaries)
        return cls(network, target, about, config.drafts, config.siblings)

    def widened(self, logits: Tensor) -> Tensor:
        return self.network.over_target(logits)

    def drafts_along(self, tokens: Tensor, features: Tensor, first: int, depth: int) -> Along:
        """See `FeatureDrafter.drafts_along`: at depth k each row reads the token k places further on and the state that
        it left at depth k - 1. It sees the rows of the text before it and, of deeper ones, its own (the training-time
        test of EAGLE-3 2503.01840, section 3.1). A network of mask tokens reads these instead, and a block network
        drafts a block from every place, whose Markov head reads the text's tokens.

        `_POSITIONS` rows are drafted at a time. Rows whose tokens the text lacks read others.
        """
        network = self.network
        rows = len(tokens) - 2  # the last that predicts a token of the text
        if isinstance(network, BlockNetwork):
            whole = network.context(features.unsqueeze(0), torch.arange(len(features), device=tokens.device))
            for row in range(first, rows):
                before = tuple((keys[:, :, : row + 1], values[:, :, : row + 1]) for keys, values in whole)
                root = tokens[row + 1 : row + 2]
                logits, states = network(root, row + 1, before)
                slots = SlotRows(logits[0], network.markov_head, root, states[0])
                yield row, 0, slots.first
                for k in range(1, min(depth, logits.shape[1], rows - row)):
                    yield row, k, slots.next(tokens[row + 1 + k : row + 2 + k])
            return
        places = torch.arange(rows, device=tokens.device)
        past: KeysValues | None = None
        if first > 0:
            read, states = tokens[1 : first + 1].unsqueeze(0), network.fuse(features[:first].unsqueeze(0))
            past = network(read, states, places[:first], last=0)[2]
        for begin in range(first, rows, _POSITIONS):
            end = min(begin + _POSITIONS, rows)
            read, states = tokens[begin + 1 : end + 1].unsqueeze(0), network.fuse(features[begin:end].unsqueeze(0))
            carried, logits, past = network(read, states, places[begin:end], past)
            yield begin, 0, logits[0]
            size, drafted = end - begin, past
            own = torch.eye(size, dtype=torch.bool, device=tokens.device)
            seen = torch.ones(size, end, dtype=torch.bool, device=tokens.device).tril_(begin)
            for k in range(1, depth):
                seen = torch.cat([seen, own], 1)
                read = tokens.roll(-k)[begin + 1 : end + 1].unsqueeze(0)
                if network.config.mask_token is not None:
                    read, carried = network.slots(size)
                carried, logits, drafted = network(read, carried, places[begin:end] + k, drafted, seen)
                yield begin, k, logits[0]

    def describe(self) -> dict[str, Any]:
        return {**describe_weights(self.network), "network": asdict(self.network.config), **self._about}

    @property
    def flops_per_token(self) -> float:
        """Operations of the layers, of a Markov head and of the way to the vocabulary; those of the fusion only where
        every step has it. The pass over the tokens of the round before is left out.
        """
        network = self.network
        parts = {name: weight for name, weight in network.named_parameters() if not name.endswith("markov_w1.weight")}
        mixed = sum(weight.numel() for name, weight in parts.items() if name.startswith(("layers.", "markov_head.")))
        if network.config.form == "eagle1":
            mixed += network.fc.weight.numel()
        return 2.0 * (mixed + network.draft_size * network.config.hidden)


class TextRows:
    """The `length` rows of a committed text. Row i reads the feature of position i and token i+1, so the last row gives
    the law of the token after the root, and there is one row fewer than tokens.
    """

    def __init__(self, network: EagleNetwork) -> None:
        self._network = network
        self.length = 0
        self._past: KeysValues | None = None
        self._carried, self._logits = torch.empty(0), torch.empty(0)

    def append(self, tokens: Tensor, features: Tensor) -> None:
        """Add a row for each of some tokens [S], in one pass, by the features [S, k * D_t] of the positions before."""
        states = self._network.fuse(features.unsqueeze(0))
        places = torch.arange(self.length, self.length + len(tokens), device=tokens.device)
        carried, self._logits, self._past = self._network(tokens.unsqueeze(0), states, places, self._past, last=1)
        self._carried = carried[:, -1:]
        self.length += len(tokens)

    def draft(self, depth: int) -> "SlotRows | StepRows":
        """Begin a draft of at most `depth` levels after the last row. There is at least one."""
        assert self._past is not None
        if self._network.config.mask_token is not None:
            logits = self._logits[0]  # of the last row; behind it come those of the mask tokens
            if depth > 1:
                tokens, states = self._network.slots(depth - 1)
                places = torch.arange(self.length, self.length + depth - 1, device=states.device)
                logits = torch.cat([logits, self._network(tokens, states, places, self._past)[1][0]])
            return SlotRows(logits)
        return StepRows(self._network, self.length, self._past, self._carried, self._logits[0])


class BlockText:
    """Keys and values, made of the target's features, of the `length` positions before the root; none of a block."""

    def __init__(self, network: BlockNetwork) -> None:
        self._network = network
        self.length = 0
        self._past: KeysValues | None = None
        self._root = torch.empty(0)

    def append(self, tokens: Tensor, features: Tensor) -> None:
        """See `TextRows.append`."""
        places = torch.arange(self.length, self.length + len(tokens), device=tokens.device)
        self._past, self._root = self._network.context(features.unsqueeze(0), places, self._past), tokens[-1:]
        self.length += len(tokens)

    def draft(self, depth: int) -> "SlotRows":
        """Draft a whole block, of which at most `depth` tokens are used: with fewer slots it would be another law."""
        assert self._past is not None
        logits, states = self._network(self._root, self.length, self._past)
        return SlotRows(logits[0], self._network.markov_head, self._root, states[0])


class SlotRows:
    """Rows of mask tokens, one for each depth and all in one pass (P-EAGLE 2602.01469, DFlash): the nodes of one depth
    have one law, unless a Markov head reads the tokens above (DSpark). `first` are the logits [1, W] after the root.
    """

    def __init__(
        self, logits: Tensor, head: MarkovHead | None = None, root: Tensor | None = None, states: Tensor | None = None
    ) -> None:
        """Make rows of the logits [depth, W] of every depth; a Markov head reads the root [1] and states [depth, D]."""
        self._logits, self._head, self._root, self._states = logits, head, root, states
        self._path = torch.empty(1, 0, dtype=torch.long, device=logits.device)  # of the chain so far
        self.first = self._law(self._path)

    def _law(self, paths: Tensor) -> Tensor:
        """Return the logits [M, W] after M paths [M, depth] of the target's tokens below the root."""
        depth = paths.shape[1]
        logits = self._logits[depth : depth + 1].expand(len(paths), -1)
        if self._head is None or self._root is None or self._states is None:
            return logits
        before = torch.cat([self._root.expand(len(paths), 1), paths], 1)
        return logits + self._head(before, self._states[: depth + 1])

    def next(self, token: Tensor) -> Tensor:
        """Add the next row of a chain, for token [1]; return the logits [1, W] after it. The host waits for nothing."""
        self._path = torch.cat([self._path, token.unsqueeze(0)], 1)
        return self._law(self._path)

    def after(self, asked: Asked) -> Tensor:
        """Return the logits [M, W] after M nodes, level by level, each below one that was asked about before."""
        return self._law(asked.paths(self._path.device))


class StepRows:
    """Rows that are made of carried states, level by level; methods as in `SlotRows`. Those at depth d stand at the
    rotary position of the root plus d - 1, and see the text and their own ancestors.
    """

    def __init__(self, network: EagleNetwork, length: int, past: KeysValues, carried: Tensor, first: Tensor) -> None:
        """Begin after the `length` rows of the text, by their keys and values, the state [1, 1, D] that the last one
        leaves, and the logits [1, W] after it.
        """
        self._network, self._length, self._past, self.first = network, length, past, first
        self._carried = carried  # [1, 1 + R, D] after the last row of the text, and after each row of the draft
        self._rows: dict[tuple[int, ...], int] = {(): 0}  # path of tokens -> its place in `_carried`
        self._steps = 0

    def next(self, token: Tensor) -> Tensor:
        place = torch.full((1,), self._length + self._steps, device=token.device)
        carried, logits, self._past = self._network(token.unsqueeze(0), self._carried[:, -1:], place, self._past)
        self._carried = carried
        self._steps += 1
        return logits[0]

    def after(self, asked: Asked) -> Tensor:
        if len(asked.tree) == 0:
            return self.first.expand(len(asked.nodes), -1)
        paths = [tuple(path) for path in asked.paths(asked.tokens.device).tolist()]
        depth, known = len(paths[0]), self._carried.shape[1] - 1  # rows of the draft so far
        seen = torch.zeros(len(paths), self._length + known + len(paths), dtype=torch.bool)
        seen[:, : self._length] = True
        for place, path in enumerate(paths):
            for end in range(1, depth):
                seen[place, self._length + self._rows[path[:end]] - 1] = True
            seen[place, self._length + known + place] = True
        parents = torch.tensor([self._rows[path[:-1]] for path in paths])
        device = self._carried.device
        carried, logits, self._past = self._network(
            torch.tensor([[path[-1] for path in paths]]).to(device, non_blocking=True),
            self._carried.index_select(1, parents.to(device, non_blocking=True)),
            torch.full((len(paths),), self._length + depth - 1, device=device),
            self._past,
            seen.to(device, non_blocking=True),
        )
        self._rows |= {path: known + 1 + place for place, path in enumerate(paths)}
        self._carried = torch.cat([self._carried, carried], 1)
        return logits[0]

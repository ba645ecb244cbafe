"""The context of a block network over one committed text, and its drafts."""

import torch
from torch import Tensor

from specdec.eagle.block_network import BlockNetwork
from specdec.eagle.draft_rows import DraftRows, OfStep, SlotRows, TextRows, chains_along
from specdec.eagle.eagle_network import EagleNetwork
from specdec.eagle.feature_network import FeatureNetwork, KeysValues


class BlockText:
    """Keys and values of all positions before the root, made of the target's own features; a block's are not kept.

    Attributes:
        length: number of these positions, and the root's place.
    """

    def __init__(self, network: BlockNetwork) -> None:
        self._network = network
        self.length = 0
        self._past: KeysValues | None = None
        self._root = torch.empty(0)

    def append(self, tokens: Tensor, features: Tensor) -> None:
        """See `TextRows.append`."""
        places = torch.arange(self.length, self.length + len(tokens), device=tokens.device)
        new = self._network.context(features.unsqueeze(0), places)
        if self._past is not None:
            new = tuple(
                (torch.cat([old[0], fresh[0]], 2), torch.cat([old[1], fresh[1]], 2))
                for old, fresh in zip(self._past, new, strict=True)
            )
        self._past, self._root = new, tokens[-1:]
        self.length += len(tokens)

    def draft(self, depth: int) -> DraftRows:
        """Draft a whole block, of which at most `depth` tokens are used: with fewer slots it would be another law."""
        assert self._past is not None
        return SlotRows(self._network(self._root, self.length, self._past)[0])


def text_of(network: FeatureNetwork) -> TextRows | BlockText:
    """Return the rows of a new text for a network."""
    if isinstance(network, BlockNetwork):
        return BlockText(network)
    assert isinstance(network, EagleNetwork)
    return TextRows(network)


def drafts_along(network: FeatureNetwork, tokens: Tensor, features: Tensor, first: int, depth: int, of: OfStep) -> None:
    """Draft the text itself from every place in it; see `chains_along`."""
    if not isinstance(network, BlockNetwork):
        assert isinstance(network, EagleNetwork)
        chains_along(network, tokens, features, first, depth, of)
        return
    past = network.context(features.unsqueeze(0), torch.arange(len(features), device=tokens.device))
    for row in range(first, len(tokens) - 2):
        before = tuple((keys[:, :, : row + 1], values[:, :, : row + 1]) for keys, values in past)
        logits = network(tokens[row + 1 : row + 2], row + 1, before)[0]
        for k in range(min(depth, len(logits))):
            of(row, k, logits[k : k + 1])

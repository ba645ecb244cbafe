"""The rows of an EAGLE network over one text: those of the committed text, and those of one draft on top of them.

Rows of the text are made of the target's own features only. The rows of a draft, made of carried states, live in an
object of their own, which is dropped with the draft: nothing of a rejected token can stay behind.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.eagle.eagle_network import EagleNetwork, KeysValues
from specdec.records import Tree


class TextRows:
    """The rows of a committed text. Row i reads the feature of position i and token i+1, so the last row gives the law
    of the token after the root, and there is one row fewer than tokens.

    Attributes:
        length: number of rows.
    """

    def __init__(self, network: EagleNetwork) -> None:
        self._network = network
        self.length = 0
        self._past: KeysValues | None = None
        self._carried, self._logits = torch.empty(0), torch.empty(0)

    def append(self, tokens: Tensor, features: Tensor) -> None:
        """Add a row for each of some tokens [S], in one pass.

        Args:
            features: [S, k * D_t] the target's, each of the position before its token.
        """
        states = self._network.fuse(features.unsqueeze(0))
        places = torch.arange(self.length, self.length + len(tokens), device=tokens.device)
        carried, self._logits, self._past = self._network(tokens.unsqueeze(0), states, places, self._past, last=1)
        self._carried = carried[:, -1:]
        self.length += len(tokens)

    def draft(self) -> "DraftRows":
        """Begin a draft after the last row. There is at least one."""
        assert self._past is not None
        return DraftRows(self._network, self.length, self._past, self._carried, self._logits[0])


class DraftRows:
    """The rows of one draft. Those at depth d stand at the rotary position of the root plus d - 1, and see the text and
    their own ancestors.

    Attributes:
        first: [1, W] the logits after the root.
    """

    def __init__(self, network: EagleNetwork, length: int, past: KeysValues, carried: Tensor, first: Tensor) -> None:
        """
        Args:
            length: rows of the text.
            past: their keys and values.
            carried: [1, 1, D] state that the last one leaves.
        """
        self._network, self._length, self._past, self.first = network, length, past, first
        self._carried = carried  # [1, 1 + R, D] after the last row of the text, and after each row of the draft
        self._rows: dict[tuple[int, ...], int] = {(): 0}  # path of tokens -> its place in `_carried`
        self._steps = 0

    def next(self, token: Tensor) -> Tensor:
        """Add the next row of a chain, for token [1]; return the logits [1, W] after it. The host waits for nothing."""
        place = torch.full((1,), self._length + self._steps, device=token.device)
        carried, logits, self._past = self._network(token.unsqueeze(0), self._carried[:, -1:], place, self._past)
        self._carried = carried
        self._steps += 1
        return logits[0]

    def after(self, tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
        """Return the logits [M, W] after M nodes of one depth, as `grow` asks for them: level by level, each node below
        one that was asked about before. Nodes are known by the tokens on their paths, which the host reads.
        """
        if len(tree) == 0:
            return self.first.expand(len(nodes), -1)
        numbers = tokens.tolist()
        paths = [tuple(numbers[above] for above in tree.path(node)) for node in nodes]
        depth, known = len(paths[0]), self._carried.shape[1] - 1  # rows of the draft so far
        seen = torch.zeros(len(nodes), self._length + known + len(nodes), dtype=torch.bool)
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
            torch.full((len(nodes),), self._length + depth - 1, device=device),
            self._past,
            seen.to(device, non_blocking=True),
        )
        self._rows |= {path: known + 1 + place for place, path in enumerate(paths)}
        self._carried = torch.cat([self._carried, carried], 1)
        return logits[0]

"""The rows of an EAGLE or a block network over one text: those of the committed text, made of the target's own features
only, and those of a draft, in an object that is dropped with it: nothing of a rejected token can stay behind.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec.eagle.eagle_network import BlockNetwork, EagleNetwork, MarkovHead
from specdec.eagle.feature_network import KeysValues
from specdec.records import Tree

_POSITIONS = 256  # whose logits are in memory at a time, when a text is replayed

OfStep = Callable[[int, int, Tensor], None]
"""`of_step(row, k, logits)` gets the logits [M, W] of rows `row` to `row + M - 1` at depth k (0 is the first)."""


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
    """Keys and values of the `length` positions before the root, made of the target's own features; a block's are not
    kept.
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

    def draft(self, depth: int) -> "SlotRows":
        """Draft a whole block, of which at most `depth` tokens are used: with fewer slots it would be another law."""
        assert self._past is not None
        logits, states = self._network(self._root, self.length, self._past)
        return SlotRows(logits[0], self._network.markov_head, self._root, states[0])


class SlotRows:
    """Rows of mask tokens, one for each depth and all in one pass (P-EAGLE 2602.01469, DFlash): whatever was drafted
    above, the nodes of one depth have the same law, unless a Markov head adds what the tokens above say (DSpark).

    Attributes:
        first: [1, W] the logits after the root.
    """

    def __init__(
        self, logits: Tensor, head: MarkovHead | None = None, root: Tensor | None = None, states: Tensor | None = None
    ) -> None:
        """
        Args:
            logits: [depth, W] of every depth.
            head: a Markov head; it reads the root [1] and the states [depth, D] too.
        """
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

    def after(self, tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
        """Return the logits [M, W] after M nodes of one depth, as `grow` asks for them: level by level, each node below
        one that was asked about before.
        """
        device = self._path.device
        paths = torch.tensor([tree.path(node) for node in nodes], dtype=torch.long)
        return self._law(tokens.to(device)[paths.to(device, non_blocking=True)])


class StepRows:
    """Rows that are made of carried states, level by level; methods as in `SlotRows`. Those at depth d stand at the
    rotary position of the root plus d - 1, and see the text and their own ancestors.
    """

    def __init__(self, network: EagleNetwork, length: int, past: KeysValues, carried: Tensor, first: Tensor) -> None:
        """
        Args:
            past: keys and values of the `length` rows of the text.
            carried: [1, 1, D] state that the last one leaves; `first` [1, W] are the logits after it.
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

    def after(self, tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
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


def drafts_along(
    network: EagleNetwork | BlockNetwork, tokens: Tensor, features: Tensor, first: int, depth: int, of: OfStep
) -> None:
    """Draft the text itself from every row of it on, teacher-forced: at depth k each row reads the token k places
    further on and the state that it left at depth k - 1. It sees the rows of the text before it and, of deeper ones,
    its own (the training-time test of EAGLE-3 2503.01840, section 3.1). A network of mask tokens reads these instead,
    and a block network drafts a block from every place, whose Markov head reads the text's tokens.

    Args:
        tokens: [T] of the text.
        features: [T - 1, k * D_t] of all of them but the last.
        of: is told of every level, `_POSITIONS` rows at a time. Rows whose tokens the text lacks read others.
    """
    rows = len(tokens) - 2  # the last that predicts a token of the text
    if isinstance(network, BlockNetwork):
        whole = network.context(features.unsqueeze(0), torch.arange(len(features), device=tokens.device))
        for row in range(first, rows):
            before = tuple((keys[:, :, : row + 1], values[:, :, : row + 1]) for keys, values in whole)
            root = tokens[row + 1 : row + 2]
            logits, states = network(root, row + 1, before)
            slots = SlotRows(logits[0], network.markov_head, root, states[0])
            of(row, 0, slots.first)
            for k in range(1, min(depth, logits.shape[1], rows - row)):
                of(row, k, slots.next(tokens[row + 1 + k : row + 2 + k]))
        return
    places = torch.arange(rows, device=tokens.device)
    past: KeysValues | None = None
    pieces = [(begin, min(begin + _POSITIONS, rows)) for begin in range(first, rows, _POSITIONS)]
    for begin, end in [(0, first), *pieces] if first > 0 else pieces:
        read = tokens[begin + 1 : end + 1].unsqueeze(0)
        states, asked = network.fuse(features[begin:end].unsqueeze(0)), begin >= first
        carried, logits, past = network(read, states, places[begin:end], past, last=None if asked else 0)
        if not asked:
            continue
        of(begin, 0, logits[0])
        size, drafted = end - begin, past
        own = torch.eye(size, dtype=torch.bool, device=tokens.device)
        seen = torch.ones(size, end, dtype=torch.bool, device=tokens.device).tril_(begin)
        for k in range(1, depth):
            seen = torch.cat([seen, own], 1)
            read = tokens.roll(-k)[begin + 1 : end + 1].unsqueeze(0)
            if network.config.mask_token is not None:
                read, carried = network.slots(size)
            carried, logits, drafted = network(read, carried, places[begin:end] + k, drafted, seen)
            of(begin, k, logits[0])

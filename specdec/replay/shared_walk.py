"""One walk along a text for drafts of several sizes: the rounds in which greedy decoding writes it, for every size.

A drafter whose proposals do not depend on earlier rounds is led along the text once, and drafts wherever a round of any
size begins. What a round takes is kept in columns; nothing here is a tensor. Knows no time and no statistics.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specdec.drafters.base.lookup import Lookup
from specdec.records import TextStart
from specdec.structures import Structure
from specdec.tree_building.lookup_filling import Proposal
from specdec.tree_building.possible_rounds import PossibleRounds, chain_rounds

NONE = ""  # the strategy of a round without a proposal


class Track:
    """The rounds of one size of draft so far, one entry of every list per round; see `records.Round` for the terms.

    Attributes:
        structure: what is asked for; `gamma` is its depth.
        position: tokens of the text before the round.
        offered, nodes, leaves: depth of the draft, its nodes, and its paths.
        accepted, rejected: what of its depth became text, and whether a rejection was observed.
        strategy, rank: the source of the last accepted node, or of the first offered one where none was accepted.
        proposals: the drafts themselves; None where they are not kept.
    """

    def __init__(self, structure: Structure, keep: bool = False) -> None:
        self.structure, self.gamma = structure, structure.gamma
        self.position: list[int] = []
        self.offered: list[int] = []
        self.nodes: list[int] = []
        self.leaves: list[int] = []
        self.accepted: list[int] = []
        self.rejected: list[bool] = []
        self.strategy: list[str] = []
        self.rank: list[int] = []
        self.proposals: list[Proposal] | None = [] if keep else None

    def add(self, position: int, proposal: Proposal, text: Sequence[int]) -> int:
        """Add the round that begins at `position` of `text` with this draft; return where the next one begins."""
        tokens, tree, source = proposal
        size = len(text)
        if not tokens:
            accepted, offered, last, ended, leaves = 0, 0, -1, True, 0
        elif tree.is_chain:
            at = position
            for token in tokens:
                if at == size or token != text[at]:
                    break
                at += 1
            accepted = at - position
            offered, last, ended, leaves = len(tokens), accepted - 1, accepted == len(tokens), 1
        else:
            accepted, last = _descend(proposal, text, position)
            offered, ended, leaves = tree.depth, not tree.children[last + 1], len(tree.leaves)
        self.position.append(position)
        self.offered.append(offered)
        self.nodes.append(len(tokens))
        self.leaves.append(leaves)
        self.accepted.append(accepted)
        # A draft that agrees to the end of the text was cut there: what came after it is not known.
        self.rejected.append(not ended and accepted < size - position)
        if source:
            origin = source[last if last >= 0 else 0]
            self.strategy.append(origin.strategy)
            self.rank.append(origin.rank)
        else:
            self.strategy.append(NONE)
            self.rank.append(0)
        if self.proposals is not None:
            self.proposals.append(proposal)
        return position + accepted + 1

    def columns(self, tokens: int) -> "RoundColumns":
        """Return the rounds as arrays; `tokens` are committed in all of them."""
        names = tuple(dict.fromkeys(self.strategy))
        number = {name: index for index, name in enumerate(names)}
        return RoundColumns(
            tokens=tokens,
            position=np.array(self.position, dtype=np.int32),
            offered=np.array(self.offered, dtype=np.int32),
            nodes=np.array(self.nodes, dtype=np.int32),
            leaves=np.array(self.leaves, dtype=np.int32),
            accepted=np.array(self.accepted, dtype=np.int32),
            rejected=np.array(self.rejected, dtype=bool),
            strategy=np.array([number[name] for name in self.strategy], dtype=np.int16),
            strategies=names,
            rank=np.array(self.rank, dtype=np.int32),
            proposals=self.proposals,
        )


@dataclass(frozen=True, eq=False)
class RoundColumns:
    """The rounds of one output in columns [R]; see `Track` for their meaning.

    Attributes:
        tokens: committed in all rounds.
        strategy: indices of names in `strategies`.
        proposals: the drafts; None where they were not kept.
    """

    tokens: int
    position: np.ndarray
    offered: np.ndarray
    nodes: np.ndarray
    leaves: np.ndarray
    accepted: np.ndarray
    rejected: np.ndarray
    strategy: np.ndarray
    strategies: tuple[str, ...]
    rank: np.ndarray
    proposals: Sequence[Proposal] | None = None

    def __len__(self) -> int:
        return len(self.position)

    @property
    def committed(self) -> np.ndarray:
        """Tokens [R] appended to the text in each round: up to where the next one begins."""
        return np.diff(self.position, append=self.tokens)


def walk(
    drafter: Lookup, structures: Sequence[Structure], start: TextStart, text: Sequence[int], limit: int, keep: int = -1
) -> list[RoundColumns]:
    """Return the rounds in which greedy decoding writes `text` with drafts of each structure.

    They are those of `generate` on target=replay. A drafter that depends on earlier rounds (its replay is "copying") is
    led along the text once for each structure.

    Args:
        start: of the text, with room for the largest draft.
        text: tokens that are written: the recorded ones, up to the limit.
        limit: of the output; more than `text` where an end token ends it before.
        keep: the number of the structure whose drafts are kept; -1 keeps none.
    """
    possible = drafter.possible_rounds(start.prompt, text, limit, structures)
    found: list[RoundColumns | None] = [
        None if rounds is None or number == keep else taken(rounds) for number, rounds in enumerate(possible)
    ]
    tracks = {
        number: Track(structures[number], keep=number == keep) for number, known in enumerate(found) if known is None
    }
    together = drafter.capabilities.replay in ("position", "start")
    if tracks:
        for group in [list(tracks.values())] if together else [[track] for track in tracks.values()]:
            lead(drafter, group, start, text, limit)
    return [tracks[number].columns(len(text)) if known is None else known for number, known in enumerate(found)]


def lead(drafter: Lookup, tracks: Iterable[Track], start: TextStart, text: Sequence[int], limit: int) -> None:
    """Lead a drafter along `text` and add the rounds of every track to it; for the arguments see `walk`."""
    drafter.start(start)
    # The loop runs once a round, a few microseconds long: names are looked up once, not every time.
    propose, commit = drafter.propose, drafter.commit
    due: dict[int, list[Track]] = {0: list(tracks)}
    known = 0  # tokens that the drafter was told of
    for position in range(len(text)):
        here = due.pop(position, None)
        if here is None:
            continue
        if known < position:
            commit(text[known:position])
            known = position
        # As in `generate`: nothing is offered beyond the last token.
        room = limit - position - 1
        for track in here:
            shape = track.structure
            after = track.add(position, propose(shape if track.gamma <= room else shape.clamped(room)), text)
            due.setdefault(after, []).append(track)


def taken(possible: PossibleRounds) -> RoundColumns:
    """Return the rounds that are taken: each begins behind what the one before it committed."""
    size = len(possible.accepted)
    following: list[int] = (np.arange(size) + possible.accepted + 1).tolist()
    begins, position = [], 0
    while position < size:
        begins.append(position)
        position = following[position]
    at = np.array(begins, dtype=np.int32)
    offered, nodes, leaves, accepted, rank = (
        column[at].astype(np.int32)
        for column in (possible.offered, possible.nodes, possible.leaves, possible.accepted, possible.rank)
    )
    return RoundColumns(
        tokens=size,
        position=at,
        offered=offered,
        nodes=nodes,
        leaves=leaves,
        accepted=accepted,
        # A draft that agrees to the end of the text was cut there: what came after it is not known.
        rejected=~possible.ended[at] & (accepted < size - at),
        strategy=(offered == 0).astype(np.int16),
        strategies=(possible.strategy, NONE),
        rank=rank,
    )


def plain_columns(size: int) -> RoundColumns:
    """Return the rounds of plain decoding of a text of `size` tokens: one for each."""
    nothing = np.zeros(size, dtype=np.int64)
    return taken(chain_rounds(nothing, nothing, NONE))


def first_tokens(drafter: Lookup, structure: Structure, start: TextStart, text: Sequence[int]) -> tuple[int, int]:
    """Draft one level before every token of `text`; return how often the token was among what was drafted, and how
    often there was a draft. Their ratio is `alpha.text` of the text.
    """
    single = structure.resized(1)
    (possible,) = drafter.possible_rounds(start.prompt, text, len(text) + 1, [single])
    if possible is not None:
        return int((possible.accepted > 0).sum()), int((possible.offered > 0).sum())
    drafter.start(start)
    propose, commit = drafter.propose, drafter.commit
    hits = drafts = 0
    for position, token in enumerate(text):
        tokens = propose(single).tokens
        drafts += bool(tokens)
        hits += token in tokens
        commit(text[position : position + 1])
    return hits, drafts


def _descend(proposal: Proposal, text: Sequence[int], position: int) -> tuple[int, int]:
    """Return how many tokens of the text from `position` on the tree has, and the node of the last (-1 is the root).

    Siblings carry different tokens, so there is one way down.
    """
    tokens, children = proposal.tokens, proposal.tree.children
    node, at, size = -1, position, len(text)
    while at < size:
        wanted = text[at]
        for child in children[node + 1]:
            if tokens[child] == wanted:
                node = child
                break
        else:
            break
        at += 1
    return at - position, node

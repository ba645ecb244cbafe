"""Branching drafts made from laws: siblings that are drawn or ranked, and the tree that grows of them."""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specdec.records import EMPTY, Draft, Source, Tree, parents_among, shared_tree
from specdec.sampling import sample
from specdec.structures.base import Beam, Structure

Siblings = Literal["independent", "without_replacement"]  # the ways in which children of one node are drawn
How = Siblings | Literal["ranked"]  # or chosen: `ranked` takes the most likely tokens

Whose = Sequence[Sequence[int]]  # `whose[i][j]` is the one of K models that gives the (j+1)-th child of parent i


class Drawn(NamedTuple):
    """The children of M parents; those of one parent stand side by side, in the order in which they were drawn."""

    tokens: Tensor  # [C]
    q: Tensor | None  # [C, V] the law that each was really drawn from; None where they are point masses


def independent(q: Tensor, counts: Sequence[int], generator: torch.Generator | None) -> Drawn:
    """Draw `counts[i]` tokens from law i of q [M, V]; one token may come several times."""
    parents = [parent for parent, count in enumerate(counts) for _ in range(count)]
    laws = q.index_select(0, index_on(q.device, tuple(parents)))
    return Drawn(sample(laws, generator), laws)


def in_turns(
    laws: Tensor, counts: Sequence[int], how: How, generator: torch.Generator | None = None, whose: Whose | None = None
) -> Drawn:
    """Choose `counts[i]` <= V different tokens by law i of `laws` [M, V]: one for each parent that wants more, again
    and again. Where several models have laws [K, M, V], `whose` says by which of them each child is chosen.

    "without_replacement" draws (Sequoia 2402.12374, Algorithm 2; RSD 2402.14160): after each token x, q(x) becomes 0,
    for all models, and q is renormalised. Once nothing of q is left, the law is uniform over the tokens that were not
    drawn. "ranked" takes the tokens with the largest scores, best first, ties by order; they are point masses.
    """
    if how != "ranked" and max(counts) == 1 and whose is None:
        return independent(laws, counts, generator)
    if how == "ranked":
        laws = laws.clamp_min(torch.finfo(laws.dtype).min)  # -inf is for tokens that were taken
    tried = torch.zeros(laws.shape[-2:], dtype=torch.bool, device=laws.device)
    tokens, drawn_from, places = list[Tensor](), list[Tensor](), list[tuple[int, int]]()
    for turn in range(max(counts)):
        wanting = [parent for parent, count in enumerate(counts) if count > turn]
        parents = index_on(laws.device, tuple(wanting))
        if whose is None:
            due = laws.index_select(0, parents)
        else:
            due = laws[index_on(laws.device, tuple(whose[parent][turn] for parent in wanting)), parents]
        taken = tried.index_select(0, parents)
        if how == "ranked":
            chosen = due.masked_fill(taken, -torch.inf).max(-1).indices
        else:
            left, untried = due.masked_fill(taken, 0.0), (~taken).to(due.dtype)
            mass = left.sum(-1, keepdim=True)
            # NaN stays NaN: what is wrong with a law must show.
            law = torch.where(mass == 0, untried / untried.sum(-1, keepdim=True), left / mass)
            chosen = sample(law, generator)
            drawn_from.append(law)
        tried[parents, chosen] = True
        tokens.append(chosen)
        places += [(parent, turn) for parent in wanting]
    order = index_on(laws.device, tuple(sorted(range(len(places)), key=places.__getitem__)))
    return Drawn(torch.cat(tokens)[order], torch.cat(drawn_from)[order] if drawn_from else None)


@lru_cache(maxsize=1024)
def index_on(device: torch.device, places: tuple[int, ...]) -> Tensor:
    """Return an index [n] on the device, made without waiting for it, and kept: most rounds ask for the same ones."""
    return torch.tensor(places).to(device, non_blocking=True)


class Asked(NamedTuple):
    """The laws [M, V] that a growing draft asks for: after M nodes of one depth (-1 is the root) of the draft so far,
    tokens [N] over `tree`. Children that are ranked take any scores in place of laws; where `structure.beam` is given,
    logits. Several models give [K, M, V] (see `growing`).
    """

    tokens: Tensor
    tree: Tree
    nodes: Sequence[int]

    def paths(self, device: torch.device) -> Tensor:
        """Return the tokens [M, k] on the path to each node, itself included; the device is not waited for."""
        paths = torch.tensor([self.tree.path(node) for node in self.nodes], dtype=torch.long)
        return self.tokens.to(device)[paths.to(device, non_blocking=True)]


Growth = Generator[Asked, Tensor, Draft]  # yields what laws a draft needs next, is sent them, returns the draft


def grow(growth: Growth, laws: Callable[[Asked], Tensor]) -> Draft:
    """Return one draft, grown by the laws of a call for each level; see `growing`."""
    return grow_together({0: growth}, lambda asked: {0: laws(asked[0])})[0]


def grow_together(
    growths: Mapping[int, Growth], laws: Callable[[Mapping[int, Asked]], Mapping[int, Tensor]]
) -> dict[int, Draft]:
    """Grow the drafts of several sequences, level by level; one call of `laws` serves all that still grow."""
    drafts: dict[int, Draft] = {}
    sent: Mapping[int, Tensor | None] = dict.fromkeys(growths)
    while sent:
        asked: dict[int, Asked] = {}
        for sequence, law in sent.items():
            try:
                growth = growths[sequence]
                asked[sequence] = next(growth) if law is None else growth.send(law)
            except StopIteration as end:
                drafts[sequence] = end.value
        sent = laws(asked) if asked else {}
    return drafts


def growing(
    structure: Structure, how: How, strategy: str | Sequence[str], generator: torch.Generator | None = None
) -> Growth:
    """Fill the topology of `structure` level by level, asking for laws once for each.

    A token that independent draws give twice is one node, which is tested twice (`Draft.draws`). It stands for both
    places of the topology and gets the children of both, so that k rows are k independent continuations, merged where
    they begin alike. To merge them, the host reads the tokens once a level. The other ways read nothing and keep the
    topology, except that a node has no more children than there are tokens.

    The rank of a source is that of the row in rows, and otherwise that among siblings, in the order drawn. Several
    models share the siblings, see `_models`. A child that is drawn has the q of its own model, of which the tokens of
    earlier siblings are taken out: multi-round rejection needs no more than that.

    Raises ValueError: a beam that is filled in another way than `ranked`; several models that fill one, or whose draws
    are independent, because a token that two of them draw would have two q.
    """
    names = (strategy,) if isinstance(strategy, str) else tuple(strategy)
    if len(names) > 1 and (how == "independent" or structure.beam is not None):
        raise ValueError("several models draw siblings without replacement, or rank them, on a given topology")
    if structure.beam is not None and how != "ranked":
        raise ValueError(f"a dynamic tree is made of ranked tokens, not of {how} draws")
    if structure.beam is not None:
        return (yield from _by_confidence(structure, structure.beam, names[0]))
    topology, ranks = structure.tree, source_ranks(structure.tree, structure.rows is not None)
    models = _models(topology, len(names))
    tokens, drawn_from = EMPTY.tokens, list[Tensor]()
    parents, source, tests = list[int](), list[Source](), [list[int]()]
    level = {-1: [-1]}  # nodes, and the places of the topology that each stands for
    while True:
        below = {
            node: [child for place in places for child in topology.children[place + 1]]
            for node, places in level.items()
        }
        wanted = {node: places for node, places in below.items() if places}
        if not wanted:
            break
        law = yield Asked(tokens, shared_tree(tuple(parents)), list(wanted))  # [M, V]
        if how == "independent":
            children = independent(law, list(map(len, wanted.values())), generator)
            numbers: Sequence[int] = children.tokens.tolist()
        else:
            wanted = {node: places[: law.shape[-1]] for node, places in wanted.items()}
            whose = [[models[place] for place in places] for places in wanted.values()] if len(names) > 1 else None
            children = in_turns(law, list(map(len, wanted.values())), how, generator, whose)
            numbers = range(len(children.tokens))  # all different, without a look
        level, kept, index = {}, [], 0
        for parent, places in wanted.items():
            nodes: dict[int, int] = {}  # token -> its node
            for place in places:
                node = nodes.setdefault(numbers[index], len(parents))
                if node == len(parents):  # a new one
                    kept.append(index)
                    parents.append(parent)
                    source.append(Source(names[models[place]], ranks[place]))
                    tests.append([])
                level.setdefault(node, []).append(place)
                tests[parent + 1].append(node)
                index += 1
        chosen = index_on(law.device, tuple(kept))
        tokens = torch.cat([tokens.to(law.device), children.tokens[chosen]])
        if children.q is not None:
            drawn_from.append(children.q[chosen])
    if not parents:
        return EMPTY
    drawn_again = how == "independent" and max(map(len, tests)) > 1
    draws = tuple(map(tuple, tests)) if drawn_again else None
    q = torch.cat(drawn_from) if drawn_from else None
    return Draft(tokens, shared_tree(tuple(parents)), q, tuple(source), draws)


def _by_confidence(structure: Structure, beam: Beam, strategy: str) -> Growth:
    """Draft by a beam search: expansion, then selection (EAGLE-2 2406.16858, 4.1 and 4.2).

    A confidence is a log-probability under float32 laws. Among equals the node drafted first counts as more confident.
    Tokens with chance 0 are left out. The host reads the confidences once a level.

    A node with as many more confident ones as the structure has nodes can no longer be offered, nor can its children:
    it is dropped at once. Laws are asked for with only the nodes that they follow and their ancestors, so never with
    more nodes than the structure has.
    """
    tokens, tree = EMPTY.tokens, EMPTY.tree
    ranks, confidence = list[int](), list[float]()
    level = [-1]  # nodes to expand
    for _ in range(structure.gamma):
        above = sorted({ancestor for node in level for ancestor in tree.path(node)})
        asked = [above.index(node) if node >= 0 else -1 for node in level]
        law = yield Asked(_taken(tokens, above), Tree(parents_among(tree.parents, above)), asked)  # [M, V]
        best = law.float().log_softmax(-1).topk(min(beam.branching, law.shape[-1]), dim=-1)
        parents = list(tree.parents)
        for parent, chances in zip(level, best.values.tolist(), strict=True):
            confidence += [(confidence[parent] if parent >= 0 else 0.0) + chance for chance in chances]
            ranks += range(len(chances))
            parents += [parent] * len(chances)
        # This leaves out NaN as well: a law that is not finite offers nothing.
        able = [node for node, chance in enumerate(confidence) if chance > -inf]
        kept = _most_confident(able, confidence, structure.nodes)
        tokens = _taken(torch.cat([tokens.to(law.device), best.indices.flatten()]), kept)
        fresh = [place for place, node in enumerate(kept) if node >= len(tree)]
        tree = Tree(parents_among(parents, kept))  # not a shared one: every round has another
        ranks, confidence = [ranks[node] for node in kept], [confidence[node] for node in kept]
        level = _most_confident(fresh, confidence, beam.width)
        if not level:
            break
    return Draft(tokens, tree, None, tuple(Source(strategy, rank) for rank in ranks)) if len(tree) else EMPTY


def _most_confident(nodes: Sequence[int], confidence: Sequence[float], most: int) -> list[int]:
    """Return the `most` most confident of `nodes`, in their original order."""
    return sorted(sorted(nodes, key=lambda node: -confidence[node])[:most])


def _taken(tokens: Tensor, nodes: Sequence[int]) -> Tensor:
    # Without waiting for the device.
    return tokens[torch.tensor(nodes, dtype=torch.long).to(tokens.device, non_blocking=True)]


@lru_cache(maxsize=64)
def source_ranks(topology: Tree, of_rows: bool) -> tuple[int, ...]:
    """Return for each node [N] its rank among its siblings or, `of_rows`, the rank of its row."""
    return tuple(topology.ranks[topology.path(node)[0]] for node in range(len(topology))) if of_rows else topology.ranks


@lru_cache(maxsize=64)
def _models(topology: Tree, count: int) -> tuple[int, ...]:
    """Return for each node [N] the one of `count` models that gives it. The child of rank j of a node that model m gave
    is given by model m + j, modulo their number, the root counting as model 0's. So each model goes on with its own
    first choices, and adds siblings to those of the others; k rows are shared out in turn. SpecInfer (2305.09781,
    Algorithm 2) has the models draw their children independently.
    """
    models: list[int] = []
    for parent, rank in zip(topology.parents, topology.ranks, strict=True):
        models.append(((models[parent] if parent >= 0 else 0) + rank) % count)
    return tuple(models)

"""A fixed token tree: given, read from a small file, or the best one for given accuracies (theory.md 3.2)."""

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import yaml

from specdec.config import DraftSize, Named, NonEmpty, typed
from specdec.errors import UsageError
from specdec.records import Tree, parents_among, shared_tree
from specdec.structures.base import Structure, structures
from specdec.text.lines import readable
from specdec.theory.trees import best_tree

Accuracy = tuple[float, ...] | tuple[tuple[float, ...], ...]


@typed
class TokenTreeConfig(Named):
    file: NonEmpty | None
    parents: list[int] | None
    accuracy: list[Any] | None  # a number for each rank, or such a list for each depth
    nodes: DraftSize
    depth: DraftSize


@structures.register("tree")
class TokenTree(Structure):
    """One topology for every round: a node of rank j gets the drafter's (j+1)-th choice after the node's parent."""

    name = "tree"
    sized_by = "structure.nodes"

    def __init__(self, full: Tree, nodes: int, accuracy: Accuracy | None = None) -> None:
        """Ask for the configured tree, of at most `nodes` nodes; it was built from `accuracy`, or given."""
        self._full, self._nodes, self._accuracy = full, nodes, accuracy
        self._tree, self.gamma = full, full.depth

    @classmethod
    def from_config(cls, config: TokenTreeConfig) -> "TokenTree":
        if config.file is not None and config.parents is not None:
            raise UsageError("structure.file and structure.parents each say what the tree is: set one of them to null.")
        if config.file is not None or config.parents is not None:
            where = config.file or "structure.parents"
            full = _checked_tree(config.parents, None, where) if config.file is None else load_tree(config.file)
            for what, size, key, limit in (
                (f"has {len(full)} nodes", len(full), "nodes", config.nodes),
                (f"is {full.depth} deep", full.depth, "depth", config.depth),
            ):
                if size > limit:
                    raise UsageError(
                        f"The tree of {where} {what}, more than structure.{key}={limit}: raise that limit."
                    )
            return cls(full, config.nodes)
        if config.accuracy is None:
            raise UsageError("structure=tree has no tree: set structure.accuracy, structure.parents or structure.file.")
        accuracy = _checked(config.accuracy)
        return cls(_built(accuracy, config.nodes, config.depth), config.nodes, accuracy)

    @property
    def tree(self) -> Tree:
        return self._tree

    def resized(self, gamma: int) -> Self:
        """Return the configured tree without its nodes below depth `gamma`; 0 leaves none. For more depth than
        configured, a tree that was built from accuracies is built again for that depth, with the same number of nodes;
        it may stay shallower where more depth does not pay. A given tree stays as it is. So the result is at most
        `gamma` deep, and does not depend on the size that this tree has now.
        """
        full = self._full
        if gamma > full.depth and self._accuracy is not None:
            full = _built(self._accuracy, self._nodes, gamma)
        sized = copy(self)
        sized._tree = _pruned(full, gamma)
        sized.gamma = sized._tree.depth
        return sized


def given(parents: Sequence[int]) -> dict[str, Any]:
    """Return config values for the tree of `parents`, with limits that it just meets."""
    values = {"name": "tree", "file": None, "parents": list(parents), "accuracy": None}
    return values | {"nodes": len(parents), "depth": Tree(tuple(parents)).depth}


def load_tree(path: str | Path) -> Tree:
    """Read a tree from a YAML file with `parents` and, optionally, `ranks`: two lists with a number for each node.
    Raises UsageError: a file that is missing, unreadable, empty or another YAML; parents that do not precede their
    children; ranks of siblings other than 0, 1, ... in this order.
    """
    try:
        with readable(f"Tree file structure.file={path}"):
            values = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError):  # no UTF-8 and impossible dates are ValueErrors
        raise UsageError(f"Tree file structure.file={path} is not YAML text: {_LAYOUT}.") from None
    if values is None:
        raise UsageError(f"Tree file structure.file={path} is empty: {_LAYOUT}.")
    if not isinstance(values, dict) or "parents" not in values or not values.keys() <= {"parents", "ranks"}:
        raise UsageError(f"Tree file structure.file={path} is not a tree: {_LAYOUT}.")
    return _checked_tree(values["parents"], values.get("ranks"), str(path))


_LAYOUT = 'it should hold "parents: [-1, -1, 0, ...]" and may hold "ranks: [0, 1, 0, ...]", a number for each node'


def save_tree(path: Path, parents: Sequence[int]) -> None:
    """Write the YAML file that `structure.file` reads, and its folders. UsageError, before that: as in `load_tree`."""
    tree = _checked_tree(list(parents), None, str(path))
    values = {"parents": list(tree.parents), "ranks": list(tree.ranks)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values, default_flow_style=None, sort_keys=False, width=120), encoding="utf-8")


def _checked_tree(parents: Any, ranks: Any, where: str) -> Tree:
    if not _whole_numbers(parents) or not parents:
        raise UsageError(f"Bad tree in {where}: parents should be a list of whole numbers, one for each node.")
    try:
        tree = shared_tree(tuple(parents))
    except ValueError as error:
        raise UsageError(f"Bad tree in {where}: {error} (-1 is the root, the first node is 0).") from None
    if ranks is None:
        return tree
    if not _whole_numbers(ranks) or len(ranks) != len(parents):
        raise UsageError(f"Bad tree in {where}: ranks should be a list of {len(parents)} whole numbers, as parents is.")
    for node, (rank, place) in enumerate(zip(ranks, tree.ranks, strict=True)):
        if rank != place:
            raise UsageError(
                f"Bad tree in {where}: node {node} has rank {rank} where {place} is due: a drafter fills the children "
                "of a node with its first choices, so their ranks are 0, 1, 2, ... in this order."
            )
    return tree


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _checked(accuracy: list[Any]) -> Accuracy:
    by_depth = bool(accuracy) and all(isinstance(item, list) for item in accuracy)
    for depth, ranks in enumerate(accuracy if by_depth else [accuracy]):
        key = f"structure.accuracy.{depth}" if by_depth else "structure.accuracy"
        if not ranks or not all(type(chance) in (int, float) and 0 <= chance <= 1 for chance in ranks):
            raise UsageError(
                f"Bad value {key}={ranks}: it should list numbers from 0 to 1, the chance of each rank, or such a list "
                "for each depth."
            )
        if sum(ranks) > 1 + 1e-6:
            raise UsageError(
                f"Bad value {key}={ranks}: the ranks sum to {sum(ranks):.4g}; give each rank's own chance (top-j minus "
                "top-(j-1) accuracy), together at most 1."
            )
    return tuple(tuple(ranks) for ranks in accuracy) if by_depth else tuple(accuracy)


@lru_cache(maxsize=64)
def _built(accuracy: Accuracy, nodes: int, depth: int) -> Tree:
    tree = best_tree(accuracy, nodes, depth)
    if not tree.parents:
        raise UsageError("structure.accuracy makes an empty tree: give the first rank a chance above 0.")
    return shared_tree(tree.parents)


@lru_cache(maxsize=256)
def _pruned(tree: Tree, depth: int) -> Tree:
    """Return a tree without nodes below `depth`. Kept, because the last rounds of every text ask for the same."""
    if depth >= tree.depth:
        return tree
    kept = [node for node, level in enumerate(tree.depths) if level <= depth]
    return shared_tree(parents_among(tree.parents, kept))

"""Token Recycling: the target's own candidates, those it did not choose included, are drafted where a token recurs."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from torch import Tensor

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import Proposal, filled


@typed
class RecyclingConfig:
    name: Literal["recycling"]
    k: AtLeastOne
    persist: bool


@drafters.register("recycling")
class Recycling(Lookup):
    """Keeps an adjacency matrix: for each token, the `k` tokens that the target put first the last time that it looked
    behind that token (Luo et al. 2408.08696, section 3).

    A draft fills the structure from the root down: the child of rank j of a token x is the matrix's token of rank j
    after x. Where x has no line yet, the node and all nodes below it are left out. Every call of the target renews the
    lines of the root and of all nodes, rejected ones too. Of a token that the draft holds more than once, the last node
    counts; the paper leaves that open. The ranking is of logits, the same at every temperature.

    The paper keeps one matrix over all texts. `persist` says what a text begins with:

    - false: nothing, so that no result depends on other texts or on their order.
    - true: all that was learned until its prompt was met for the first time. So methods, repeats and replays of one
      prompt begin alike, and none learns from another's decoding of that prompt. Lines are learned from the texts of
      every depth of the run, its warm-up and its calibration, so tokens per round depend on the prompts before, on
      their order and on `measurement.gammas`; the text that is written does not.

    Nodes are point masses. A draft costs a dictionary look-up for each node, learning from a call a top-k over its
    logits, for which the host waits.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}), reads_logits=True)

    def __init__(self, config: RecyclingConfig, target: Target) -> None:
        super().__init__(target)
        self._k, self._persist = min(config.k, target.vocab_size), config.persist
        self._matrix: dict[int, list[int]] = {}  # its lines that are known
        self._before: dict[tuple[int, ...], dict[int, list[int]]] = {}  # prompt -> the matrix when it was first met
        self._last = 0

    def prepare(self, capacity: int, structure: Structure) -> None:
        """
        Raises:
            UsageError: the structure has more siblings than tokens are kept, so that some places would stay empty.
        """
        widest = max(map(len, structure.tree.children))
        if widest > self._k:
            raise UsageError(
                f"Bad value drafter.k={self._k}: structure={structure.name} asks for {widest} tokens to follow one; "
                "raise drafter.k to as many."
            )

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._last = text.prompt[-1]
        if self._persist:
            self._matrix = dict(self._before.setdefault(tuple(text.prompt), self._matrix))
        else:
            self._matrix = {}

    def propose(self, structure: Structure) -> Proposal:
        return filled(structure.tree, self._last, self._ranked)

    def _ranked(self, token: int, count: int) -> Iterator[tuple[int, str, int]]:
        return ((child, "recycling", child) for child in islice(self._matrix.get(token, ()), count))

    def observe(self, draft: Draft, logits: Tensor) -> None:
        lines: list[list[int]] = logits.topk(self._k, dim=-1).indices.tolist()
        nodes: list[int] = draft.tokens.tolist()
        self._matrix.update(zip((self._last, *nodes), lines, strict=True))

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._last = tokens[-1]

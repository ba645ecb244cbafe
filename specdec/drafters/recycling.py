"""Token Recycling: the target's own candidates, those it did not choose included, are drafted where a token recurs."""

from collections.abc import Iterator, Sequence
from itertools import islice

from torch import Tensor

from specdec.config import AtLeastOne, Named, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup, check_siblings
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import Proposal, filled


@typed
class RecyclingConfig(Named):
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
    - true: the lines of earlier prompts, made by scoring the text that the baseline wrote there (`remember`), untimed.
      So every gamma and every repeat of a prompt begins alike, and none learns from another's decoding of that prompt.
      Rounds depend on which prompts came before; the text that is written does not. In the paper the lines of rejected
      nodes outlive their text too; here they do not, because they differ between the methods of a run.

    Nodes are point masses. A draft costs a dictionary look-up for each node, learning from a call a top-k over its
    logits, for which the host waits.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}), reads_logits=True, replay="calling")

    def __init__(self, config: RecyclingConfig, target: Target) -> None:
        super().__init__(target)
        self._target = target
        self._k, self._persist = min(config.k, target.vocab_size), config.persist
        self._matrix: dict[int, list[int]] = {}  # its lines that are known
        self._earlier: dict[int, list[int]] = {}  # lines of finished prompts
        self._before: dict[tuple[int, ...], dict[int, list[int]]] = {}  # finished prompt -> those before it
        self._last = 0

    def prepare(self, capacity: int, structure: Structure) -> None:
        check_siblings(structure, self._k)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._last = text.prompt[-1]
        self._matrix = dict(self._before.get(tuple(text.prompt), self._earlier)) if self._persist else {}

    @property
    def remembers(self) -> str:
        return "persist=false" if self._persist else ""

    def remember(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        if not self._persist or tuple(prompt) in self._before:
            return
        # Kept here, not where a text begins: warm-up begins texts too, and a resumed run does not begin finished ones.
        self._before[tuple(prompt)] = self._earlier
        lines = self._target.score(prompt, output)[:-1].topk(self._k).indices.tolist()
        # A new matrix: prompts that were met before keep the old one.
        self._earlier = self._earlier | dict(zip((prompt[-1], *output[:-1]), lines, strict=True))

    def propose(self, structure: Structure) -> Proposal:
        def ranked(token: int, count: int) -> Iterator[tuple[int, str, int]]:
            return ((child, "recycling", child) for child in islice(self._matrix.get(token, ()), count))

        return filled(structure.tree, self._last, ranked)

    def observe(self, draft: Draft, logits: Tensor) -> None:
        lines = logits.topk(self._k).indices.tolist()
        self._matrix.update(zip((self._last, *draft.tokens.tolist()), lines, strict=True))

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._last = tokens[-1]

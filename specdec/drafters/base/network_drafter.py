"""The part that drafters with a network share: how tokens are chosen by its laws, and the check of q; and the part of
those over the target's own states: the rows of a text.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from specdec.compiled.cuda_graphs import Choice, joined
from specdec.compiled.passes import compiled_product
from specdec.config import Named, typed
from specdec.drafters.base.contract import Drafter
from specdec.errors import NumericsError
from specdec.records import EMPTY, Draft, TextStart, chain_draft
from specdec.sampling import all_finite, drawn, generator_on, probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Growth, How, Siblings, grow, growing

Drafts = Literal["sampled", "greedy"]


@typed
class DrawnConfig(Named):
    """The settings of how the tokens of a draft are chosen by the laws of a network."""

    drafts: Drafts
    siblings: Siblings


Along = Iterator[tuple[int, int, Tensor]]
"""Yields (position, k, logits [M, V]) by which chains that began at M positions of a text, from `position` on, and have
drafted its tokens draft their token k, from 0 on; also where the text has no such token any more."""


@dataclass
class GrowingChain:
    gamma: int
    threshold: float
    uniforms: Tensor | None  # the numbers [gamma] that it is drawn with; None where it is greedy
    choices: list[Choice] = field(default_factory=list)
    chance: float = 1.0  # the network's, of all tokens so far

    @property
    def next_uniform(self) -> Tensor | None:
        """The number [] that the next token is drawn with."""
        return None if self.uniforms is None else self.uniforms[len(self.choices)]

    def goes_on(self, choice: Choice, logits: Tensor) -> bool:
        """Append a token, chosen by logits [1, V]; return whether there is one more to draft."""
        self.choices.append(choice)
        if len(self.choices) == self.gamma:
            return False
        if self.threshold > 0:
            # Read after the draw, which is never undone: withdrawing unlikely tokens would bias the output.
            confidence = logits.softmax(-1, dtype=torch.float32).gather(-1, choice.tokens.unsqueeze(-1))
            self.chance *= float(confidence)
        return self.chance >= self.threshold


class NetworkDrafter(Drafter):
    """Drafts by the laws of a network. Tokens are drawn from them, standardised by the target's own sampling; under a
    greedy target, or with `drafts=greedy`, and in a dynamic tree, they are the most likely ones, point masses.
    """

    strategy: ClassVar[str]  # the registry name, for `Source`
    # The sentence of the error that ends a run whose q is not finite.
    not_finite: ClassVar[str] = (
        "The drafter's logits are not finite: the run stops here. Try drafter.dtype=float32, or check drafter.model."
    )

    def __init__(self, target: Target, drafts: Drafts, siblings: Siblings) -> None:
        self._greedy = drafts == "greedy" or target.sampling.greedy
        self.sampling = replace(target.sampling, temperature=0.0) if self._greedy else target.sampling
        self._siblings: Siblings = siblings
        self._device, self._compilation, self._packages = target.device, target.compilation, target.packages
        self._passes: Mapping[str, Mapping[str, Any]] = {}

    def prepare_product(self, network: Any, output: Tensor) -> None:
        """Have a network multiply by output layers like this one [V, D] with a compiled kernel, where calls of the
        target are compiled for a CPU: torch's library reads a layer twice for a few vectors.
        """
        if self._compilation == "inductor" and self._device.type == "cpu":
            network.product = compiled_product(output, self._packages)
            if network.product is not linear:
                self._passes = {"products with the output layer": {"pass": self._compilation}}

    @property
    def passes(self) -> Mapping[str, Mapping[str, Any]]:
        return self._passes

    def _begin(self, generator: torch.Generator | None) -> None:
        """Forget the text; the next one draws with this generator."""
        self.generator = generator_on(generator, self._device)
        self._finite: Tensor | None = None

    def how(self, structure: Structure) -> How:
        """Return how the children of a node are chosen in drafts of this structure."""
        return "ranked" if self._greedy or structure.beam is not None else self._siblings

    def standardise(self, structure: Structure) -> Callable[[Tensor], Tensor]:
        """Return what turns logits into laws for such drafts, or leaves them as scores where children are ranked."""
        if self.how(structure) == "ranked":
            return lambda logits: logits
        return lambda logits: probabilities(logits, self.sampling)

    def growth(self, structure: Structure) -> Growth:
        """Return a draft of rows or a tree before it grows."""
        return growing(structure, self.how(structure), self.strategy, self.generator)

    def new_chain(self, gamma: int, threshold: float) -> GrowingChain:
        """Return a chain without a token. All of its numbers are drawn at once, so that a threshold changes no token
        and every way of drafting uses the same ones.
        """
        uniforms = None
        if not self._greedy:
            uniforms = torch.rand(gamma, generator=self.generator, device=self._device, dtype=torch.float64)
        return GrowingChain(gamma, threshold, uniforms)

    def drafted(self, chain: GrowingChain, logits: Tensor, after: Callable[[Tensor], Tensor]) -> Choice:
        """Draft a chain by the logits [1, V] after the root, and by those that `after` gives of each token [1] read."""
        while True:
            choice = self.choose(logits, chain.next_uniform)
            if not chain.goes_on(choice, logits):
                return joined(chain.choices)
            logits = after(choice.read)

    def choose(self, logits: Tensor, uniform: Tensor | None) -> Choice:
        """Choose the next token of each of B texts by logits [B, V] over the target's tokens, and by uniform numbers
        [B, 1], or [] for one text; greedy drafts need none.
        """
        if self._greedy:
            tokens = logits.max(dim=-1).indices
            return Choice(tokens, tokens, None)
        assert uniform is not None
        q = probabilities(logits, self.sampling)
        tokens = drawn(q, uniform)
        return Choice(tokens, tokens, q)

    def along(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Along | None:
        """Draft the text from all of its positions on, teacher-forced; arguments and None as in `Drafter.chances`."""
        return None

    @torch.inference_mode()
    def chances(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Tensor | None:
        drafts = self.along(prompt, text, states, depth)
        if drafts is None:
            return None
        q = torch.zeros(len(text), depth, dtype=torch.float64, device=self._device)
        tokens = torch.tensor(text, dtype=torch.long, device=self._device)
        for position, k, logits in drafts:
            drafted = tokens[position + k : position + k + len(logits)]
            logits = logits[: len(drafted)]
            if self._greedy:
                chances = (logits.argmax(-1) == drafted).double()
            else:
                chances = probabilities(logits, self.sampling).gather(-1, drafted.unsqueeze(-1)).squeeze(-1).double()
            q[position : position + len(drafted), k] = chances
        return q

    def checked(self, draft: Draft) -> Draft:
        """Have the q of the round's draft looked at, for `commit` to read."""
        self._finite = all_finite(draft.q)
        return draft

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        """See `Drafter.commit`. Raises NumericsError: the q of the round's draft was not finite. It is seen only here,
        because by now the host has waited for the device.
        """
        if self._finite is not None and not self._finite:
            raise NumericsError(self.not_finite)
        self._finite = None


class FeatureDrafter(NetworkDrafter):
    """Drafts with a network whose rows of the text are made of the target's features and tokens: those of a round are
    noted when it is committed, and read, in one pass, when the next draft is asked for. Nothing is offered before the
    first feature: after a prompt of one token, and where nobody gives the target's states.
    """

    # Makes the rows of a new text by the network: an object with `append(tokens [S], features [S, F])`, a `length`, and
    # `draft(depth)`, which begins a draft: `first` are its logits [1, W] after the root, `next(token [1])` those after
    # one more token of a chain, and `after(asked)` those [M, W] that `grow` asks for.
    rows_of: Callable[[Any], Any]

    def __init__(
        self, target: Target, network: Any, offsets: Sequence[int], drafts: Drafts, siblings: Siblings
    ) -> None:
        """Make a drafter that reads the target's layers at these offsets (`HiddenStates.keep`). Raises UsageError: a
        target without hidden states, or without one of these layers.
        """
        super().__init__(target, drafts, siblings)
        self._kept = target.hidden.keep(*offsets)
        self.network = network
        self._dtype = next(network.parameters()).dtype

    def prepare(self, capacity: int, structure: Structure) -> None:
        self.prepare_product(self.network, self.network.output_layer.to(self._dtype))

    def widened(self, logits: Tensor) -> Tensor:
        """Return the network's logits [..., W] over the target's tokens [..., V]."""
        return logits

    def _begin(self, generator: torch.Generator | None) -> None:
        super()._begin(generator)
        self._rows: Any = self.rows_of(self.network)
        self._tokens: list[int] = []  # committed tokens that have no row yet
        self._features: list[Tensor] = []  # of the positions before them

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin(text.generator)
        self._note(text.prompt[1:], states)
        self.read()

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        super().commit(tokens)
        self._note(tokens, states)

    def _note(self, tokens: Sequence[int], states: Tensor | None) -> None:
        """Keep tokens with the features of the positions before them. Without states a text has no more drafts."""
        if states is None:
            self._rows = None
        elif len(states):
            self._tokens += tokens[: len(states)]
            self._features.append(self._kept(states)[: len(tokens)])

    def read(self) -> Any:
        """Make the rows of all noted tokens; return None where there is nothing to draft from."""
        if self._rows is None:
            return None
        if self._tokens:
            tokens = torch.tensor(self._tokens).to(self._device, non_blocking=True)
            self._rows.append(tokens, torch.cat(self._features).to(self._dtype))
            self._tokens, self._features = [], []
        return self._rows if self._rows.length else None

    def draft(self, structure: Structure) -> Draft:
        if structure.gamma < 1 or (text := self.read()) is None:
            return EMPTY
        structure = structure.clamped(self.capabilities.deepest or structure.gamma)
        rows = text.draft(structure.gamma)
        if structure.single:
            chain = self.new_chain(structure.gamma, structure.threshold)
            tokens, _, q = self.drafted(chain, self.widened(rows.first), lambda token: self.widened(rows.next(token)))
            return self.checked(chain_draft(tokens, self.strategy, q))
        laws = self.standardise(structure)
        return self.checked(grow(self.growth(structure), lambda asked: laws(self.widened(rows.after(asked)))))

    @abstractmethod
    def drafts_along(self, tokens: Tensor, features: Tensor, first: int, depth: int) -> Along:
        """Draft a text of tokens [T] and features [T - 1, F] from every row on, from `first` on, teacher-forced. Yield
        (row, k, logits [M, W] of rows `row` to `row + M - 1` at depth k from 0).
        """

    def along(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Along:
        assert states is not None
        tokens, features = torch.tensor([*prompt, *text], device=self._device), self._kept(states).to(self._dtype)
        first = len(prompt) - 2  # the row that predicts the text's first token
        for row, k, logits in self.drafts_along(tokens, features, max(0, first), depth):
            yield row - first, k, self.widened(logits)

"""What the learning-free drafters made of a model's own weights share: which model, and how the few tokens that they
rank after the last one become a draft.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from specdec.drafters.base.lookup import NOTHING, Lookup, Proposal, filled
from specdec.errors import UsageError
from specdec.models.load import Dtype, describe_model, load_model, load_tokenizer, model_path, resolve_dtype
from specdec.records import Source, Tree, chain_tree
from specdec.sampling import one_hot
from specdec.structures.base import Structure
from specdec.structures.chain import Chain
from specdec.structures.rows import Rows

if TYPE_CHECKING:
    from specdec.targets.base import Target


class TokenLookup(Lookup):
    """Proposals that depend on the last token alone, of a fixed ranking of the tokens after each.

    Class attributes:
        strategy: its name in `Source`.
    """

    fills = frozenset({"chain", "rows", "tree"})
    strategy: ClassVar[str]

    def __init__(self, target: "Target", k: int) -> None:
        """
        Args:
            k: tokens ranked after each, or all of the vocabulary where that has fewer.
        """
        super().__init__(target)
        self._k = k
        self.vocab_size = target.vocab_size
        self._last = 0

    def prepare(self, capacity: int, structure: Structure) -> None:
        """
        Raises:
            UsageError: a structure with more siblings than tokens are ranked; rows of it would stay empty.
        """
        widest = max(map(len, structure.tree.children))
        if widest > self._k:
            raise UsageError(
                f"Bad value drafter.k={self._k}: structure={structure.name} asks for {widest} tokens to follow one; "
                "raise drafter.k to as many."
            )

    @abstractmethod
    def ranked(self, token: int, count: int) -> Sequence[int]:
        """The `count` first tokens of the ranking after `token`, best first; fewer where no more are known."""

    @abstractmethod
    def rows(self, token: int, k: int, w: int) -> list[tuple[int, ...]]:
        """Continuations of `token`, `w` tokens each, best first: row j begins with the token of rank j. At most `k`,
        fewer where no more are known.
        """

    def start(
        self,
        prompt: Sequence[int],
        capacity: int,
        generator: torch.Generator | None = None,
        reference: Sequence[int] | None = None,
    ) -> None:
        self._last = prompt[-1]

    def commit(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]

    def propose(self, structure: Structure) -> Proposal:
        """Chains and rows as `rows` gives them; in any other tree the child of rank j of a token x is the token of rank
        j after x, left out with all that hangs on it where there is none.
        """
        if structure.gamma == 0:
            return NOTHING
        if not isinstance(structure, Chain | Rows):
            return filled(structure.tree, self._last, self._children)
        rows = self.rows(self._last, structure.k if isinstance(structure, Rows) else 1, structure.gamma)
        # Their first tokens differ, so there is nothing to merge.
        return Proposal(tuple(chain.from_iterable(rows)), *_block(self.strategy, len(rows), structure.gamma))

    def _children(self, token: int, count: int) -> list[tuple[int, str, int]]:
        return [(child, self.strategy, child) for child in self.ranked(token, count)]

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        if self.replay != "position":
            return None
        assert self.vocab_size is not None
        first = [self.ranked(token, 1)[0] for token in (prompt[-1], *text[:-1])]
        return one_hot(torch.tensor(first[: len(text)], dtype=torch.long, device=self._device), self.vocab_size)


@lru_cache(maxsize=256)
def _block(strategy: str, k: int, w: int) -> tuple[Tree, tuple[Source, ...]]:
    """Topology and sources of k rows of w tokens that share nothing but the root."""
    tree = chain_tree(w) if k == 1 else Tree(tuple(node - 1 if node % w else -1 for node in range(k * w)))
    return tree, tuple(Source(strategy, node // w) for node in range(k * w))


@dataclass(frozen=True)
class ModelOf:
    """A decoder-only model over the target's tokens.

    Attributes:
        name: for messages.
        described: see `describe_model`.
        tokenizer: the target's, or the model's own where the target has none; None where neither has.
    """

    model: Any
    name: str
    described: dict[str, Any]
    tokenizer: Any


def model_of(name: str | None, dtype: Dtype, target: "Target") -> ModelOf | None:
    """The model that `drafter.model` and `drafter.dtype` name; null is the target's own, None where it has none.

    Raises:
        UsageError: an encoder-decoder, another vocabulary, a dtype without a model to load.
        ModelLoadError: see `load_model`.
    """
    if name is None:
        return _own(dtype, target)
    path = model_path(name)
    model = load_model(path, dtype=resolve_dtype(dtype), device=target.device, attention="auto")
    if model.config.is_encoder_decoder:
        raise UsageError(
            f"Bad value drafter.model={name}: it is an encoder-decoder, which says nothing about a token on its own; "
            "use a decoder-only model."
        )
    size = model.config.get_text_config().vocab_size
    if size != target.vocab_size:
        raise UsageError(
            f"Bad value drafter.model={name}: its vocabulary has {size} tokens and the target's {target.vocab_size}; "
            f"use the target's own model (a recorded stream takes target.vocab_size={size})."
        )
    tokenizer = load_tokenizer(path)
    if None not in (tokenizer, target.tokenizer) and tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise UsageError(
            f"Bad value drafter.model={name}: its tokenizer is not the target's; use the target's own model."
        )
    return ModelOf(model, name, describe_model(model, path), target.tokenizer or tokenizer)


def _own(dtype: Dtype, target: "Target") -> ModelOf | None:
    if dtype != "auto":
        raise UsageError(
            f"Bad value drafter.dtype={dtype}: it is of drafter.model; the target's own model has target.dtype."
        )
    model = getattr(target, "model", None)  # a table or a recorded stream has none
    if model is None:
        return None
    if model.config.is_encoder_decoder:
        raise UsageError(
            "Bad value drafter.model=null: the target is an encoder-decoder, which says nothing about a token on its "
            "own; use another drafter, such as ngram."
        )
    return ModelOf(model, "the target", target.describe(), target.tokenizer)

"""The contract of a target."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.models.memory import available_bytes
from specdec.records import Draft, Tree
from specdec.registry import Registry
from specdec.sampling import SamplingConfig
from specdec.structures.base import Structure
from specdec.theory.roofline import Product

if TYPE_CHECKING:
    from specdec.clock import Clock

_LAW_BYTES = 4  # of each chance in p, at least: float32


class Target(ABC):
    """The model whose law is decoded. Constructed once as `cls(config, sampling=sampling)`, then reused per prompt.

    Owns its cache: `start` prefills all of the prompt but its last token, which is the root of round 1; `verify`
    evaluates root and draft; `commit` keeps the accepted path. `p` leaves it standardised.

    Class attributes:
        structures: names of the structures that it can evaluate.
    """

    structures: ClassVar[frozenset[str]]

    vocab_size: int
    context_length: int
    end_tokens: frozenset[int]
    device: torch.device
    tokenizer: Any = None
    """A transformers tokenizer, or None where the target has none (the table)."""
    sampling: SamplingConfig

    evaluation: Literal["packed", "rows"] = "packed"
    """How a draft that branches is evaluated. "packed": its nodes in one row under a tree mask, over one prefix.
    "rows": each path from the root to a leaf in a row of a batch, over a copy of the prefix's cache for every row
    (N-Grammys, 2411.03786). Both give the same p, and chains take one row either way."""

    compilation: Literal["trace", "inductor"] | None = None
    """What `prepare` does; drafters that are models follow it."""

    states: Tensor | None = None
    """Hidden states, where `keep_states` asked for them: after `start` those of `prompt[:-1]`, [S-1, D]; after `commit`
    those of the root and the accepted nodes, [A+1, D]. So the last one is h_t of the next round (see `heads`)."""

    def room(self, tree: Tree) -> int:
        """Rows of the cache that the root and a draft take: for all nodes, or in each copy for the longest path."""
        return 1 + (tree.depth if self.evaluation == "rows" else len(tree))

    def prepare(self, rows: Collection[int], capacity: int, branches: int = 1) -> None:
        """Compile what can be compiled, before anything is timed; nothing where compilation was not asked for.

        Args:
            rows: numbers of rows of the calls to come: 1, and those of the primary draft with its root.
            capacity, branches: the largest that `start` will be given.
        """

    def check_memory(self, prompt: int, capacity: int, branches: int = 1) -> None:
        """Whether `start` with these arguments can have its key-value cache; to be asked before anything is decoded.

        Args:
            prompt: its number of tokens.
        Raises:
            UsageError: the bytes asked for are more than there are; says what to change.
        """

    def check_draft(self, structure: Structure) -> None:
        """Whether a call on a full draft can have its p and its mask; to be asked before a tree of that size is made.

        Raises:
            UsageError: the bytes asked for are more than there are.
        """
        batch = self.evaluation == "rows" and structure.branches > 1
        rows = structure.branches * (structure.gamma + 1) if batch else structure.nodes + 1
        asked = rows * self.vocab_size * _LAW_BYTES
        if structure.branches > 1 and not batch:
            asked += rows * rows  # who sees whom, a byte each
        free = available_bytes(self.device)
        if free is not None and asked > free:
            raise UsageError(
                f"Bad value structure={structure.name}: a call on a full draft ({structure.label}) takes at least "
                f"{asked:,} bytes, and {free:,} are free on {self.device}; lower {structure.sized_by}."
            )

    @abstractmethod
    def start(self, prompt: Sequence[int], capacity: int, branches: int = 1) -> None:
        """Begin a new text and prefill `prompt[:-1]`.

        Args:
            prompt: at least one token.
            capacity: rows that prompt, output and the largest draft need together.
            branches: paths from the root to a leaf in the largest draft, for a target that evaluates each in a row of
                its own.
        """

    @abstractmethod
    def verify(self, draft: Draft) -> Tensor:
        """One call over root and draft -> p [N+1, V], row 0 after the root.

        Raises:
            NumericsError: when the logits are not finite; names the position. On a GPU `commit` raises it, because
                looking any earlier would wait for the device.
        """

    @abstractmethod
    def commit(self, path: Sequence[int], next_token: int) -> None:
        """Keep root and the accepted nodes `path`; `next_token` becomes the root."""

    def standardise(self, sampling: SamplingConfig) -> None:
        """Give p at another temperature from the next `verify` on. What a drafter took from the last one stays there:
        it has to be made again.
        """
        self.sampling = sampling

    @abstractmethod
    def discard(self) -> None:
        """Forget the last `verify` without committing: the root stays where it was."""

    @abstractmethod
    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Teacher-forced logits of `text` after `prompt`, in float32 or better: [len(text) + 1, V], row i before
        token i, the last row after the text. Untimed.
        """

    def score_as_decoded(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Like `score`, in the arithmetic that the target decodes in: the difference is its rounding error."""
        return self.score(prompt, text)

    def clock(self) -> "Clock | None":
        """The clock of a target whose durations are simulated (a replay); None where they are measured."""
        return None

    def limit(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        """How many tokens may follow `prompt`: all of `max_new_tokens`, or what a recorded text has."""
        return max_new_tokens

    def keep_states(self, offset: int) -> None:
        """From now on `start` and `commit` leave hidden states in `states`; asked for before anything is compiled.

        Args:
            offset: layers below the last: 0 is what the output head reads, 1 the last layer's input, ..., `depth` the
                input embeddings.
        Raises:
            UsageError: this target has none, or has fewer layers.
        """
        raise UsageError(
            f"Target {type(self).__name__} gives no hidden states, which this drafter reads: use target=causal."
        )

    def sequence_states(self, tokens: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Teacher-forced, without the cache: hidden states [B, S, D] and logits [B, S, V] of tokens [B, S].

        Raises:
            UsageError: as `keep_states`.
        """
        raise UsageError(f"Target {type(self).__name__} gives no hidden states: use target=causal.")

    def kept_states(self) -> Tensor:
        """`states`, where something asked for them."""
        if self.states is None:
            raise RuntimeError("nothing asked the target for its hidden states: a drafter that reads them must")
        return self.states

    @property
    def depth(self) -> int:
        """Layers; 0 where there is no model."""
        return 0

    @property
    def embedding(self) -> Tensor:
        """[V, D] the input embeddings, for drafters that read them.

        Raises:
            UsageError: this target has none.
        """
        raise UsageError(f"Target {type(self).__name__} has no embeddings: use target=causal.")

    @property
    def output_layer(self) -> Tensor:
        """[V, D] from the last layer's states to logits.

        Raises:
            UsageError: this target has none.
        """
        raise UsageError(f"Target {type(self).__name__} has no output layer: use target=causal.")

    @property
    def identity(self) -> str:
        """Hash of the weights (a hub model's commit): what was trained on them belongs to no others."""
        return ""

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of one evaluated token, about 2 x parameters; 0 where there is no model."""
        return 0.0

    def products(self) -> list[Product]:
        """The matrix products of one call, for the roofline; empty where there is no model or they cannot be told."""
        return []

    @property
    def cache_bytes(self) -> int:
        """Size of the key-value cache of the current text; 0 where there is none."""
        return 0

    def describe(self) -> dict[str, Any]:
        """What to record about the model: hash, dtype, attention kind, parameters."""
        return {}


targets: Registry[Target] = Registry("targets", "target")

"""The contract of a target, and of the hidden states that it gives to drafters over heads and to their training."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from specdec.clock import Clock
from specdec.compiled.packages import PackageFolder
from specdec.errors import UsageError
from specdec.models.memory import available_bytes
from specdec.records import EMPTY, Acceptance, Draft, TextStart, Tree
from specdec.registry import Registry
from specdec.sampling import SamplingConfig
from specdec.structures.base import Structure
from specdec.theory.roofline import Product

_LAW_BYTES = 4  # of each chance in p, at least: float32


Evaluation = Literal["packed", "rows"]
"""How a draft that branches is evaluated. "packed": its nodes in one sequence under a tree mask, over one prefix.
"rows": each path from the root to a leaf in a sequence of its own, over a copy of the prefix's cache for each
(N-Grammys, 2411.03786). Both give the same p, and chains take one sequence either way."""


@dataclass(frozen=True)
class TargetCapabilities:
    """The abilities of a target."""

    structures: frozenset[str]  # names of those that it can evaluate
    evaluations: tuple[Evaluation, ...] = ("packed", "rows")  # how it can evaluate a draft that branches
    # It knows the tokens that were chosen and no law, so that only a rule that commits just these will do.
    recorded: bool = False


class HiddenStates(ABC):
    """The hidden states of a target's model, and the weights around them. A layer is named by its `offset`, counted
    down from the last: 0 is what the output head reads, 1 the last layer's input, ..., `layers` the input embeddings.
    """

    @property
    @abstractmethod
    def layers(self) -> int:
        """The number of layers; 0 where there is no network."""

    @property
    @abstractmethod
    def embedding(self) -> Tensor:
        """The input embeddings [V, D]."""

    @property
    @abstractmethod
    def output_layer(self) -> Tensor:
        """The weights [V, D] that make logits of the last layer's states."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Hash of the weights (a hub model's commit): what was trained on them belongs to no others."""

    @property
    @abstractmethod
    def kept(self) -> tuple[int, ...]:
        """The layers whose states stand side by side in `Target.states`: all that anything asked for."""

    @abstractmethod
    def _keep_also(self, offsets: tuple[int, ...]) -> None:
        """Check these layers, and keep those that are not kept yet behind the others."""

    def keep(self, *offsets: int) -> Callable[[Tensor], Tensor]:
        """Make `Target.start` and `commit` leave the states of these layers in `Target.states`; to be called before
        anything is compiled. Raises UsageError: the model has no such layer.

        The function that is returned takes `Target.states` [..., D of all kept layers] and returns those of `offsets`,
        side by side in this order [..., len(offsets) * D]: several parts of a run may read different layers.
        """
        self._keep_also(offsets)

        def own(states: Tensor) -> Tensor:
            kept = self.kept
            if kept == offsets:
                return states
            parts = states.unflatten(-1, (len(kept), -1))
            return torch.cat([parts[..., kept.index(offset), :] for offset in offsets], -1)

        return own

    @abstractmethod
    def sequence(self, tokens: Tensor, *offsets: int) -> tuple[Tensor, Tensor]:
        """Return states [B, S, D] of these layers, side by side, and logits [B, S, V] of tokens [B, S], teacher-forced
        and without the cache; UsageError if the model has no such layer.
        """


class Target(ABC):
    """The model whose law is decoded. Made once by the registry, with the run's `sampling`, then reused per prompt.

    Owns its cache: `start` prefills all of the prompt but its last token, which is the root of round 1; `verify`
    evaluates root and draft; `commit` keeps the accepted path. `p` leaves it standardised.
    """

    capabilities: TargetCapabilities  # the class can be asked before anything is loaded

    vocab_size: int
    context_length: int
    end_tokens: frozenset[int]
    device: torch.device
    sampling: SamplingConfig
    model: Any = None  # of transformers; None where there is none
    tokenizer: Any = None  # of transformers; None where there is none
    evaluation: Evaluation = "packed"
    compilation: Literal["trace", "inductor"] | None = None  # what `prepare` does; drafters that are models follow it
    # The folder that keeps passes compiled for a CPU, those of such drafters too; None: until the process ends.
    packages: PackageFolder | None = None
    # Hidden states, where something asked for them (`HiddenStates.keep`), else None: after `start` those of
    # `prompt[:-1]`, [S-1, D]; after `commit` those of the root and the accepted nodes, [A+1, D]. So the last one is h_t
    # of the next round (see `heads`).
    states: Tensor | None = None
    # After `verify` the logits [N+1, V] of the root and the nodes, as the model gave them; None where only a record of
    # tokens is known. On a GPU the next `verify` may overwrite them.
    logits: Tensor | None = None
    keeps_state = False  # layers keep a state that `commit` brings back, in time of its own (`Marks.restored`)

    def room(self, tree: Tree) -> int:
        """Return the cache slots that root and draft take: for all nodes, or in each copy for the longest path."""
        return 1 + (tree.depth if self.evaluation == "rows" else len(tree))

    def choose_compilation(self, calls: float, seconds: float | None = None) -> None:
        """Choose how calls are made by how long they are needed for, where that was left to it (`target.compile=auto`);
        to be called before drafters are made, which follow. What will be decoded takes as long as `calls` calls on one
        token, and at most `seconds`; None without a bound.
        """

    def prepare(self, sizes: Collection[int], capacity: int, branches: int = 1) -> None:
        """Compile what can be compiled, where that was asked for, before anything is timed. Calls to come have `sizes`
        tokens: 1, and the primary draft with its root; `capacity` and `branches` are the largest in any `start`.
        """

    @property
    def passes(self) -> Mapping[str, Mapping[str, Any]]:
        """Records of the passes that serve calls on each number of tokens since `prepare`; empty without any."""
        return {}

    def check_memory(self, prompt: int, capacity: int, branches: int = 1) -> None:
        """Check that there is memory for the key-value cache of a text (see `TextStart`) with so many tokens of prompt;
        to be called before anything is decoded. Raises UsageError: there is less memory; says what to change.
        """

    def check_draft(self, structure: Structure) -> None:
        """Check, before a full draft is made, that there is memory for its p and mask; UsageError for less."""
        batch = self.evaluation == "rows" and structure.branches > 1
        tokens = structure.branches * (structure.gamma + 1) if batch else structure.nodes + 1
        asked = tokens * self.vocab_size * _LAW_BYTES
        if structure.branches > 1 and not batch:
            asked += tokens * tokens  # the mask, a byte for each pair
        free = available_bytes(self.device)
        if free is not None and asked > free:
            raise UsageError(
                f"Bad value structure={structure.name}: a call on a full draft ({structure.label}) takes at least "
                f"{asked:,} bytes, and {free:,} are free on {self.device}; lower {structure.sized_by}."
            )

    @abstractmethod
    def start(self, text: TextStart) -> None:
        """Begin a new text and prefill all of its prompt but the last token."""

    @abstractmethod
    def verify(self, draft: Draft) -> Tensor:
        """Evaluate root and draft in one call; return p [N+1, V], in place 0 the law after the root. Raises
        NumericsError: the logits are not finite; names the position. On a GPU `commit` raises it, because an earlier
        look would wait for the device.
        """

    def verify_roots(self, sequences: int) -> Tensor:
        """Evaluate the root alone and return p [1, V]; where drafts that branch are evaluated in rows, in a batch of
        `sequences` roots. Nothing is decoded so: it is the call on rows of width 0, which is only timed.
        """
        return self.verify(EMPTY)

    @abstractmethod
    def commit(self, path: Sequence[int], next_token: int) -> None:
        """Keep the root and the accepted nodes `path` in the cache; `next_token` becomes the root. The host has waited
        for p since `verify`, as every acceptance does: what arrived beside it is read here.
        """

    def agreed(self, draft: Draft, acceptance: Acceptance) -> Acceptance:
        """Return the decision of a round that all processes of the target take: rank 0's where there are several.
        Raises EnvironmentFault: this process verified another draft than rank 0.
        """
        return acceptance

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about this target that a reader of a run's times has to know; most targets have none."""
        return ()

    @property
    def tags(self) -> dict[str, str]:
        """Tags by which runs on such a target are found, where there is something to beware of."""
        return {}

    def standardise(self, sampling: SamplingConfig) -> None:
        """Standardise p in another way from the next `verify` on. A drafter keeps the sampling that its target had when
        it was made, so it has to be made again.
        """
        self.sampling = sampling

    @abstractmethod
    def discard(self) -> None:
        """Forget the last `verify` without committing: the root stays where it was."""

    @abstractmethod
    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Return teacher-forced logits [len(text) + 1, V] of `text` after `prompt`, in float32 or better: in place i
        those before token i, in the last those after the text. Never timed.
        """

    def score_as_decoded(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Return what `score` does, computed in the arithmetic of decoding: the difference is its rounding error."""
        return self.score(prompt, text)

    def disagreement(self, longest: int, seconds: float | None = None, batched: bool = False) -> str | None:
        """Compare calls with plain forward passes around the lengths of the model's configuration that texts of
        `longest` tokens cross and that were not compared yet, `batched` where several texts are decoded in one call.
        Return what disagrees, in a sentence; None where nothing does, and where all is known already. Lengths that take
        longer than `seconds`, all together, are left for a later call; None for no limit.
        """
        return None

    def clock(self) -> Clock | None:
        """Return the clock of a target whose durations are simulated (a replay); None where they are measured."""
        return None

    def limit(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        """Return how many tokens may follow `prompt`: `max_new_tokens`, or fewer where a recorded text is shorter."""
        return max_new_tokens

    @property
    def hidden(self) -> HiddenStates:
        """The target's hidden states and weights, for what reads them; UsageError where it has none."""
        if isinstance(self, HiddenStates):
            return self
        raise UsageError(f"Target {type(self).__name__} gives no hidden states, which heads read: use target=causal.")

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of one evaluated token, about 2 x parameters; 0 where there is no model."""
        return 0.0

    def products(self) -> list[Product]:
        """Return the matrix products of one call, for the roofline; empty where they are not known."""
        return []

    @property
    def cache_bytes(self) -> int:
        """Size of the key-value cache of the current text; 0 where there is none."""
        return 0

    def describe(self) -> dict[str, Any]:
        """Return what is recorded about the model: hash, dtype, attention kind, parameters."""
        return {}


targets: Registry[Target] = Registry("targets", "target")

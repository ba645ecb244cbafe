"""A transformers decoder over our own cache: rows in, logits out. Shared by targets and by drafters that are models.

Masks and positions are explicit: a mask is a view, so a call allocates nothing but activations. Knows neither sampling
nor acceptance.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from specdec.errors import ModelLoadError
from specdec.models.attention import use_two_rows
from specdec.models.cache import KVCache
from specdec.models.compile import Mode, StaticStep, Step, TracedStep, only_row, run_model
from specdec.models.draft_loop import Choice, StaticLoop
from specdec.models.masks import Masks
from specdec.models.path_batch import row_batch
from specdec.records import Tree, chain_tree

if TYPE_CHECKING:
    from specdec.models.seq2seq import Seq2SeqDecoder

logger = logging.getLogger(__name__)

_BUCKET = 512  # rows: capacities of a compiled cache are multiples of it
_ANY = 0  # among numbers of rows: all from 2 on
_BATCH = -1  # batches
# Layer types whose state can be rolled back by forgetting rows, and what they may see.
_ATTENTION = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Compiled:
    """Compiled passes by their number of rows, and the cache that they write into."""

    cache: KVCache
    steps: dict[int, Step]

    def holds(self, capacity: int, copies: int) -> bool:
        return capacity <= self.cache.capacity and copies <= self.cache.allocated


class Decoder:
    """One decoder-only model and the cache of one text.

    Attributes:
        model: the transformers model, unpatched.
        vocab_size, context_length, end_tokens: of the model.
        depth: its number of layers.
        states: hidden states [N+1, D] of the rows of the last call, where `keep_states` asked for them.
    """

    states: Tensor | None = None
    _offset: int | None = None  # of the layer whose states are kept

    def __init__(self, model: Any, name: str, prefill_chunk: int) -> None:
        """
        Raises:
            ModelLoadError: layers whose state cannot be rolled back after a rejection.
        """
        self.model, self.name, self.prefill_chunk = model, name, prefill_chunk
        self.device: torch.device = model.device
        use_two_rows(model)
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.context_length: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.end_tokens = end_tokens_of(model)
        self.depth: int = config.num_hidden_layers
        self._windows = _windows(config, name)
        # The prefill needs no logits; models that can, compute one row instead of a vocabulary for each prompt token.
        lean = "logits_to_keep" in signature(model.forward).parameters
        self._no_logits: dict[str, int] = {"logits_to_keep": 1} if lean else {}
        self.cache = KVCache(self.depth, 1)
        self._masks = Masks(self._windows, model.dtype, self.device)
        self._steps: dict[int, Step] = {}
        self._compiled: Compiled | None = None

    def keep_states(self, offset: int) -> None:
        """From now on every call leaves the hidden states of a layer in `states`.

        Args:
            offset: layers below the last, 0 to `depth`: 0 is what the output head reads, `depth` the embeddings.
        """
        self._offset = offset
        self._steps, self._compiled = {}, None  # their passes were made without

    @torch.inference_mode()
    def compile(self, rows: Collection[int], capacity: int, mode: Mode, copies: int = 1) -> None:
        """From now on, drafts of these numbers of rows, root included, take a pass made for them (seconds for each):
        chains, and trees too except where it is a CUDA graph. What is traced for a draft serves all others as well.

        For texts of at most `capacity` rows, rounded up, in at most `copies`; others are decoded eagerly, and so is
        everything where the model cannot be traced, which is said. Batches are traced, never compiled.
        """
        try:
            self._compile(rows, capacity, mode, copies)
        except (torch._dynamo.exc.TorchDynamoException, ConstraintViolationError) as error:
            self._steps, self._compiled = {}, None
            reason = str(error).strip().splitlines()[0]
            logger.warning("%s cannot be traced, so its calls stay eager: %s", self.name, reason)

    def _compile(self, rows: Collection[int], capacity: int, mode: Mode, copies: int) -> None:
        wanted = set(rows)
        if mode == "trace" and rows:
            wanted = {1} if max(rows) == copies == 1 else {1, _ANY}
        wanted |= {_BATCH} if copies > 1 else set()
        made = self._compiled
        if made is not None and wanted <= set(made.steps) and made.holds(capacity, copies):
            return
        # The record of batches is made with two rows, and must not take that for the number of all copies.
        self.cache = KVCache(self.depth, -(-capacity // _BUCKET) * _BUCKET, 3 if copies == 2 else copies)
        self._steps = {}
        self.forward(torch.zeros(2, dtype=torch.long, device=self.device), chain_tree(1))  # makes the buffers
        for count in sorted(wanted - {_BATCH}):
            if self.device.type == "cuda" and mode == "inductor":
                graph = StaticStep(self.model, self.cache, count, self._windows, self._offset)
                graph.capture()
                self._steps[count] = graph
            else:
                any_or_count = None if count == _ANY else count
                self._steps[count] = TracedStep(self.model, self.cache, any_or_count, mode, self._offset)
            size = 3 if count == _ANY else count  # of 2, a mask fills its buffer, and the record would rely on that
            for prefix in (2, 3):  # the first call compiles, the second is the first of many
                self.cache.length = prefix
                self.forward(torch.zeros(size, dtype=torch.long, device=self.device), chain_tree(size - 1))
        if copies > 1:
            self._steps[_BATCH] = TracedStep(self.model, self.cache, None, "trace", self._offset)
            for prefix, batch in ((7, 2), (8, 2), (9, copies)):  # all sizes differ: equal ones would be taken for one
                self.cache.length = prefix
                tree = Tree((-1, 0, *[-1] * (batch - 1)))
                self.forward_rows(torch.zeros(batch + 2, dtype=torch.long, device=self.device), tree)
        self._compiled = Compiled(self.cache, self._steps)

    def static_loop(self, gamma: int, choose: Callable[[Tensor, Tensor], Choice]) -> StaticLoop:
        """A loop that drafts gamma tokens into the present cache, not captured yet."""
        return StaticLoop(self.model, self.cache, self._windows, gamma, choose)

    @property
    def compiled(self) -> tuple[int, ...]:
        """Numbers of rows that take a pass made for them; 0 stands for all from 2 on, -1 for batches."""
        return () if self._compiled is None else tuple(sorted(self._compiled.steps))

    @property
    def length(self) -> int:
        """Rows in the cache; setting it forgets the rows behind."""
        return self.cache.length

    @length.setter
    def length(self, value: int) -> None:
        self.cache.length = value

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text and prefill all of the prompt but its last token, which is returned: the root of round 1.

        `states` are then those of all that was prefilled [len(prompt) - 1, D], where they are kept.

        Args:
            prompt: at least one token.
            capacity: rows that prompt, output and the largest draft need together.
            copies: of the prefix, for batches of up to so many rows (see `forward_rows`).
        """
        if self._compiled is not None and self._compiled.holds(capacity, copies):
            self.cache, self._steps = self._compiled.cache, self._compiled.steps  # they write into these very buffers
            self.cache.restart(copies)
        else:
            self.cache, self._steps = KVCache(self.depth, capacity, copies), {}
        found: list[Tensor] = []
        for begin in range(0, len(prompt) - 1, self.prefill_chunk):
            end = min(begin + self.prefill_chunk, len(prompt) - 1)
            chunk = torch.tensor(prompt[begin:end], device=self.device)
            self.forward(chunk, chain_tree(len(chunk) - 1), **self._no_logits)
            if self.states is not None:
                found.append(self.states)
        if self._offset is not None:
            embedding = self.model.get_input_embeddings().weight
            self.states = torch.cat(found) if found else embedding.new_empty(0, embedding.shape[1])
        self.cache.broadcast()
        return prompt[-1]

    @staticmethod
    def rows_of(prompt: int, capacity: int, copies: int) -> int:
        """Rows of keys and values that `start` makes room for, all copies together, with a prompt of so many tokens."""
        return capacity * copies

    def forward(self, tokens: Tensor, tree: Tree, **options: int) -> Tensor:
        """Append `tokens` [N+1], the first the root of `tree` and the others its nodes, behind the cached rows.

        Returns:
            logits [N+1, V], or fewer rows where `options` ask for fewer.
        """
        prefix = self.cache.length
        mask = self._masks.view(tree, prefix, self.cache.capacity)
        step = None
        if self._steps and prefix and not options:
            step = self._steps.get(len(tokens)) or self._steps.get(_ANY)
        if step is not None and tree.is_chain:
            result = step(tokens, prefix, mask)
        elif isinstance(step, TracedStep):
            result = step(tokens, prefix, mask, tree.offsets.to(self.device, non_blocking=True))
        else:
            result = only_row(
                run_model(
                    self.model,
                    self._offset,
                    input_ids=tokens.unsqueeze(0),
                    attention_mask=mask,
                    position_ids=(tree.offsets.to(self.device, non_blocking=True) + prefix).unsqueeze(0),
                    past_key_values=self.cache,
                    **options,
                )
            )
        self.states = result.states
        return result.logits

    def forward_rows(self, tokens: Tensor, tree: Tree) -> Tensor:
        """Like `forward`, with every path from the root to a leaf in a row of its own, behind its own copy of the
        prefix. More rows than copies take a larger cache, whose making is part of this call.

        Returns:
            logits [N+1, V], each node's from a row that holds it.
        """
        batch = row_batch(tree)
        if len(batch) > self.cache.copies:
            self.cache, self._steps = self.cache.grown(len(batch)), {}
        prefix = self.cache.length
        rows = tokens[batch.index.to(self.device, non_blocking=True)]
        mask = self._masks.view(batch.chain, prefix, self.cache.capacity)
        step = self._steps.get(_BATCH)
        if prefix and isinstance(step, TracedStep):
            result = step(rows, prefix, mask)
        else:
            result = run_model(
                self.model,
                self._offset,
                input_ids=rows,
                attention_mask=mask,
                position_ids=(batch.chain.offsets.to(self.device, non_blocking=True) + prefix).expand(len(batch), -1),
                past_key_values=self.cache,
            )
        places = batch.places.to(self.device, non_blocking=True)
        self.states = None if result.states is None else result.states.flatten(0, 1)[places]
        return result.logits.flatten(0, 1)[places]

    def score(self, prompt: Sequence[int], text: Sequence[int], model: Any = None) -> Tensor:
        """Teacher-forced logits of `text` after `prompt`: [len(text) + 1, V], row i before token i.

        One forward pass without the cache, by `model` where another copy of the weights is given.
        """
        tokens = torch.tensor([[*prompt, *text]], device=self.device)
        return (model or self.model)(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 :]

    @property
    def flops_per_token(self) -> float:
        """About 2 x parameters: input embeddings are looked up, not multiplied; tied ones count as the output head."""
        embedding = self.model.get_input_embeddings().weight
        head = self.model.get_output_embeddings()
        tied = head is not None and head.weight is embedding
        return 2.0 * (sum(weight.numel() for weight in self.model.parameters()) - (0 if tied else embedding.numel()))


def end_tokens_of(model: Any) -> frozenset[int]:
    """The tokens that end a text, as the generation configuration or else the model's own says."""
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    if ends is None:
        ends = model.config.get_text_config().eos_token_id
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)


def _windows(config: Any, name: str) -> dict[str, int | None]:
    """The attention kinds of a model and their windows; refuses layers whose state cannot be rolled back."""
    kinds = set(getattr(config, "layer_types", None) or ())
    refused = sorted(kinds - set(_ATTENTION))
    if refused:
        raise ModelLoadError(
            f"Model {name} has {refused[0]} layers, whose state cannot be rolled back after a rejection; "
            "use a model with attention layers only."
        )
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"full_attention": window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


@torch.inference_mode()
def check_rollback(decoder: "Decoder | Seq2SeqDecoder") -> None:
    """Decode, roll back and decode again on a few tokens: a model whose state cannot forget gives itself away.

    Raises:
        ModelLoadError: the model cannot be used, and why.
    """
    who = f"Model {decoder.name} ({type(decoder.model).__name__})"
    tokens = [index % decoder.vocab_size for index in range(1, 5)]
    try:
        root = decoder.start(tokens[:2], 8)
        kept = decoder.length + 1
        decoder.forward(torch.tensor([root, tokens[0], tokens[0]], device=decoder.device), chain_tree(2))
        decoder.cache.commit(kept, [])
        again = decoder.forward(torch.tensor([tokens[2]], device=decoder.device), chain_tree(0))[-1]
        plain = decoder.score(tokens[:2], tokens[2:3])[-1]
    except torch.OutOfMemoryError:
        raise
    except (TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelLoadError(f"{who} does not work with a rolled-back key-value cache: {reason}") from None
    scale = plain.abs().amax().clamp_min(1.0)
    if not torch.isfinite(scale):
        raise ModelLoadError(f"{who} cannot be used: its logits are not finite; try another dtype, as float32.")
    tolerance = 0.1 if decoder.model.dtype in (torch.bfloat16, torch.float16) else 1e-3
    if not ((again - plain).abs().amax() <= tolerance * scale):
        raise ModelLoadError(
            f"{who} cannot be used: after rolling back its cache its logits differ from a plain forward pass."
        )

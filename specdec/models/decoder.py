"""A transformers decoder over our own cache: tokens in, logits out. Shared by targets and by drafters that are models.

Masks and positions are passed to the model explicitly; a mask is a view, so a call allocates only activations. Knows
neither sampling nor acceptance.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor

from specdec.errors import ModelLoadError
from specdec.models.attention import pin_attention, use_own_attention
from specdec.models.cache import KVCache, cache_name
from specdec.models.forward_pass import FIRST_POSITION, Pass, PathBatch, only_sequence, path_batch, run_model
from specdec.models.masks import AttentionChunk, MaskBuffers
from specdec.models.recurrent_cache import HYBRID, RECURRENT, LayerKind, RecurrentCache, record_calls
from specdec.records import Tree, chain_tree

_BUCKET = 512  # the capacity of a cache of passes is a multiple of this number of slots
# Kinds of layers whose state can be rolled back by forgetting slots.
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")
_BESIDE = ("moe", "mlp")  # kinds of layers that keep nothing
_WAYS = {
    "recorded": "After a rejection it is cut out of the inputs of the last call.",
    "replayed": "After a rejection those layers evaluate the accepted tokens again.",
    "stepped": "Those layers evaluate the tokens of a draft one after another and keep the state after each.",
}


@dataclass(frozen=True)
class Probed:
    """The kinds of calls that may be made on a model, because the probe found that it computes them as plain forward
    passes do. Chains are always among them, or the model is refused.
    """

    packed: bool = True  # trees in one sequence, under a tree mask
    rows: bool = True  # trees as a batch, with a sequence for every path
    batch: bool = True  # trees and chains of texts of different lengths in one call, each under a mask of its own
    pieces: bool = True  # a prefill in several calls
    static: bool = True  # calls that attend to the whole capacity of the cache, masked, as CUDA graphs make them
    context: int | None = None  # tokens of the longest text in which positions are computed in one way; None: any
    # Lengths of the configuration, in tokens, that a copy with short ones was compared around at most: the model itself
    # would take too long for that when it is opened.
    pending: tuple[int, ...] = ()
    attention: str | None = None  # the implementation that the model was switched to, because its own fails; None: none
    # Calls are made without our masks and positions, which the model does not take; its own are those of a chain behind
    # the cache.
    own_masks: bool = False
    # The way in which layers that keep a state get it back after a rejection: "recorded", "replayed" or "stepped" (see
    # `recurrent_cache`); "" for a model with attention only.
    states: str = ""
    # By check, how far logits were from those of a plain pass (see `comparison.logit_error`).
    errors: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> "Probed":
        """Read back what `asdict` gave before it went through JSON. Raises TypeError: other values."""
        return cls(**{**values, "pending": tuple(values.get("pending", ()))})  # type: ignore[arg-type]

    def sentences(self, who: str) -> tuple[str, ...]:
        """Return what a reader of a run has to know about the model `who`; most models need nothing."""
        found = []
        rows_only = "takes chains, and drafts that branch by rows only:"
        if self.attention is not None:
            found.append(
                f"{who} computes with target.attention={self.attention}: with the implementation that was chosen its "
                "calls behind a cache fail."
            )
        if self.states:
            found.append(f"{who} {rows_only} its layers keep a state, which follows one path. {_WAYS[self.states]}")
        elif self.own_masks:
            found.append(f"{who} {rows_only} it takes no mask but its own, which is that of one path.")
        elif not self.packed:
            found.append(
                f"{who} takes drafts that branch by rows only, as with target.evaluation=rows: under a tree mask "
                f"{self.differ('packed', 'branches')}."
            )
        if not self.pieces:
            found.append(f"{who} is prefilled in one call: in several calls {self.differ('pieces')}.")
        if self.context is not None:
            found.append(
                f"Texts of {who} may have {self.context:,} tokens: from there on it computes the positions of all "
                "earlier tokens anew, which a cache cannot follow."
            )
        return tuple(found)

    def differ(self, *checks: str) -> str:
        """Say how a model fails some checks: by how much its logits differ, where it can be asked at all."""
        if checks[0] not in self.errors:
            return "it cannot be evaluated"
        error = max(self.errors[check] for check in checks if check in self.errors)
        return f"its logits differ from those of plain forward passes, by {error:.2g} of their spread"


class CachedModel(ABC):
    """A transformers model, unpatched, and the cache of one text."""

    cache: KVCache
    layers: int  # that use the cache
    prefill_chunk: int = 1 << 30  # prompt tokens that one call of the prefill evaluates; an encoder reads all at once
    probed: Probed = Probed()  # the kinds of calls that may be made (see `probe.open_decoder`); all, until it is asked
    recurrent: tuple[LayerKind, ...] = ()  # the kinds of all layers, where some keep a state that cannot be cut; or ()
    stepping = False  # layers with a state evaluate a call's tokens one after another (see `recurrent_cache`)

    def __init__(self, model: Any, name: str, config: Any) -> None:
        self.model, self.name = model.eval().requires_grad_(False), name
        # Calls take their tokens there, and give their logits; weights on disk are "meta".
        devices = (weight.device for weight in model.parameters())
        self.device = next((device for device in devices if device.type != "meta"), torch.device("cpu"))
        self.vocab_size: int = config.vocab_size
        longest = getattr(config, "max_position_embeddings", None) or 0
        self.context_length: int = longest if longest > 0 else 1 << 30  # XLNet says -1
        self.end_tokens = end_tokens_of(model)
        self.prefill_options: dict[str, int] = {}  # arguments for a call whose logits nobody reads

    @property
    def length(self) -> int:
        """The number of slots in use; setting it forgets the slots behind."""
        return self.cache.length

    @length.setter
    def length(self, value: int) -> None:
        self.cache.length = value

    def follow(self) -> int:
        """Return how many slots hold the text so far because another model evaluated it, and may not be written to."""
        return 0

    def forward_paths(self, tokens: Tensor, tree: Tree) -> Tensor:
        """Append `tokens` [N+1], the root and the nodes of `tree`, behind the cached tokens, with every path from the
        root to a leaf as a sequence behind its own copy of the prefix; if there are more sequences than copies, first
        make a larger cache. Return logits [N+1, V], those of a node from the first sequence that holds it.
        """
        return self.forward_batch(tokens, path_batch(tree))

    @abstractmethod
    def forward_batch(self, tokens: Tensor, batch: PathBatch) -> Tensor:
        """Evaluate `tokens` [N+1] in the sequences of `batch`, as `forward_paths` does; return logits [N+1, V]."""


class Decoder(CachedModel):
    """One decoder-only model and the cache of one text."""

    states: Tensor | None = None  # hidden states [N+1, D] of the last call's tokens, the `kept` layers side by side
    kept: tuple[int, ...] = ()  # layers whose states are kept, counted down from the last

    def __init__(self, model: Any, name: str, prefill_chunk: int, states: bool = False) -> None:
        """With `states`, layers may keep a state in place of slots: the text is only ever cut within its last call.
        Raises ModelLoadError: the model has layers whose state cannot be rolled back after a rejection.
        """
        config = model.config.get_text_config()
        super().__init__(model, name, config)
        self.prefill_chunk = prefill_chunk
        use_own_attention(model)
        pin_attention(self.device)
        self.layers = config.num_hidden_layers
        self.recurrent = recurrent_kinds(config, name) if states else ()
        self.windows = attention_windows(config, name, self.recurrent)
        if self.recurrent:
            record_calls(model)
        if model.dtype == torch.float64 and getattr(model.config, "_experts_implementation", None) == "grouped_mm":
            model.set_experts_implementation("eager")  # torch groups no products in this format
        taken = signature(model.forward).parameters
        self._positioned = "position_ids" in signature(type(model).forward).parameters
        # The prefill needs no logits: models that can limit them compute those of one token only. Gemma 4 then leaves
        # out the states of the other tokens too, in layers that share keys, and masks, under an attention of ours.
        if "logits_to_keep" in taken and not getattr(config, "num_kv_shared_layers", 0):
            self.prefill_options = {"logits_to_keep": 1}
        # RoBERTa and its kin number positions from behind their padding token on, whose place in the table is empty.
        for part, module in model.named_modules():
            if part.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                setattr(model, FIRST_POSITION, module.padding_idx + 1)
                self.context_length -= module.padding_idx + 1
        self.cache = self._new_cache(1)
        self.masks = MaskBuffers(self.windows, model.dtype, self.device)
        # A `CompiledPasses`, of which nothing is known here: it serves calls on its cache in place of the modules.
        self.passes: Any = None

    def keep_states(self, offsets: Iterable[int]) -> None:
        """Leave the hidden states of these layers in `states` after every call from now on. Layers are counted down
        from the last: 0 is what the output head reads, `layers` the embeddings.
        """
        kept, self.kept = self.kept, tuple(offsets)
        if kept != self.kept:
            self.passes = None  # those made before return other states

    def cache_for_passes(self, capacity: int, copies: int) -> KVCache | None:
        """Return the cache for passes on texts of this capacity (`specdec.compiled`); None: no passes can be made."""
        if self.recurrent or self.probed.own_masks:
            return None
        # The record of batches is made with two sequences; with two copies it would take the two for the same number.
        return KVCache(self.layers, -(-capacity // _BUCKET) * _BUCKET, 3 if copies == 2 else copies)

    def _new_cache(self, capacity: int, copies: int = 1) -> KVCache:
        if self.recurrent:
            return RecurrentCache(self.recurrent, capacity, copies, self.stepping)
        return KVCache(self.layers, capacity, copies)

    @property
    def choices(self) -> dict[str, dict[str, Any]]:
        """The kind of pass that serves the calls on each number of tokens (see `CompiledPasses`)."""
        return {} if self.passes is None else self.passes.choices

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text: prefill the prompt (at least one token) except its last token, and return that token, the
        root of round 1. Where states are kept, `states` then holds those of the prefilled tokens [len(prompt) - 1, D].

        Prompt, output and the largest draft need `capacity` slots together; a batch of `forward_paths` needs a copy of
        the prefix for each sequence.
        """
        of_passes = None if self.passes is None else self.passes.cache
        if of_passes is not None and of_passes.over is None and of_passes.holds(capacity, copies):
            self.cache = of_passes
            self.cache.restart(copies)
        else:
            self.cache = self._new_cache(capacity, copies)

        def evaluate(chunk: Tensor) -> Tensor | None:
            self.forward(chunk, chain_tree(len(chunk) - 1), **self.prefill_options)
            return self.states

        with self.cache.prefilling():
            self.states = self.prefilled(prompt, evaluate)
        self.cache.broadcast()
        return prompt[-1]

    def prefilled(self, prompt: Sequence[int], evaluate: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """Evaluate all tokens of a prompt but the last, some at a time, by `evaluate`, which appends tokens [N] to the
        text and returns their states; return the states of all [len(prompt) - 1, D], where they are kept.
        """
        found = []
        for begin in range(0, len(prompt) - 1, self.prefill_chunk):
            end = min(begin + self.prefill_chunk, len(prompt) - 1)
            found.append(evaluate(torch.tensor(prompt[begin:end], device=self.device)))
        if not self.kept:
            return None
        embedding = self.model.get_input_embeddings().weight
        empty = embedding.new_empty(0, len(self.kept) * embedding.shape[1])
        return torch.cat([states for states in found if states is not None]) if found else empty

    def forward(self, tokens: Tensor, tree: Tree, **options: int) -> Tensor:
        """Append `tokens` [N+1], the root and the nodes of `tree`, behind the cached tokens; return logits [N+1, V], or
        of fewer tokens with `options`: `prefill_options`, for a call whose logits nobody reads.
        """
        result: Pass | None = None
        if self.passes is not None and self.cache is self.passes.cache:
            result = self.passes.evaluate(tokens, tree, bool(options))
        if result is None:
            result = self.plain(tokens, tree, **options)
        self.states = result.states
        return result.logits

    def plain(self, tokens: Tensor, tree: Tree, **options: int) -> Pass:
        """Evaluate the tokens of `forward` by the model's own modules."""
        return only_sequence(self._run(tokens.unsqueeze(0), tree, **options))

    def _run(self, sequences: Tensor, tree: Tree, **options: int) -> Pass:
        """Evaluate tokens [B, N+1], the root and the nodes of `tree` in each sequence, by the model's own modules."""
        prefix, batch = self.cache.length, len(sequences)
        self.cache.begin(*sequences.shape)
        if self.probed.own_masks:
            return run_model(self.model, self.cache, self.kept, sequences, None, {}, **options)
        masks: dict[str, Tensor | None] = {**self.masks.view(tree, prefix, self.cache.capacity, batch)}
        if self.recurrent and self._positioned:  # a model without attention takes neither positions nor masks by kind
            masks |= dict.fromkeys(RECURRENT)
        positions = tree.offsets.to(self.device, non_blocking=True) + prefix
        places = positions.expand(batch, -1) if self._positioned else None
        return run_model(self.model, self.cache, self.kept, sequences, places, masks, **options)

    def forward_batch(self, tokens: Tensor, batch: PathBatch) -> Tensor:
        if len(batch) > self.cache.copies:
            self.cache = self.cache.grown(len(batch))
        sequences = tokens[batch.index.to(self.device, non_blocking=True)]  # [B, L]
        result: Pass | None = None
        if self.passes is not None and self.cache is self.passes.cache and self.cache.length:
            result = self.passes.evaluate_batch(sequences, batch)
        if result is None:
            result = self._run(sequences, batch.chain)
        places = batch.places.to(self.device, non_blocking=True)
        self.states = None if result.states is None else result.states.flatten(0, 1)[places]
        return result.logits.flatten(0, 1)[places]

    def score(self, prompt: Sequence[int], text: Sequence[int], model: Any = None) -> Tensor:
        """Return the logits [len(text) + 1, V] of a given text after `prompt`; entry i predicts token i of the text.
        They come from one forward pass without the cache, by `model` where another copy of the weights is given.
        """
        tokens = torch.tensor([[*prompt, *text]], device=self.device)
        return (model or self.model)(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 :]

    @property
    def flops_per_token(self) -> float:
        return flops_per_token(self.model)


def flops_per_token(model: Any) -> float:
    """Return 2 x parameters, about, without input embeddings, which are looked up, unless tied to the output head."""
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is embedding
    return 2.0 * (sum(weight.numel() for weight in model.parameters()) - (0 if tied else embedding.numel()))


def end_tokens_of(model: Any) -> frozenset[int]:
    """Return the tokens that end a text, from the generation configuration or else from the model's own."""
    named = (getattr(each, "eos_token_id", None) for each in (model.generation_config, model.config.get_text_config()))
    ends = next((ends for ends in named if ends is not None), ())
    return frozenset([ends] if isinstance(ends, int) else ends)


def attention_windows(config: Any, name: str, recurrent: Sequence[LayerKind] = ()) -> dict[str, int | None]:
    """Return how many tokens back layers see, by kind (None: all; or an `AttentionChunk`); refuse layers whose state
    cannot be rolled back, unless the model's are kept as `recurrent`.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    refused = sorted(kinds - set((*_ATTENTION, *_BESIDE, *RECURRENT, *HYBRID) if recurrent else _ATTENTION))
    if refused:
        raise ModelLoadError(
            f"Model {name} has {refused[0]} layers, whose state cannot be rolled back after a rejection; "
            "use a model with attention layers only."
        )
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"full_attention": window}
    if kinds & set(HYBRID):  # models name the masks of their attention after the layer or after its window
        kinds |= {"full_attention"} | ({"sliding_attention"} if "hybrid_sliding" in kinds else set())
    of_kind = dict.fromkeys(("sliding_attention", "hybrid_sliding"), window)
    if "chunked_attention" in kinds:
        of_kind["chunked_attention"] = AttentionChunk(config.attention_chunk_size)
    return {kind: of_kind.get(kind) for kind in sorted(kinds & {*_ATTENTION, *HYBRID})}


def recurrent_kinds(config: Any, name: str) -> tuple[LayerKind, ...]:
    """Return the kind of each layer of a model that keeps states which cannot be cut; of any other model nothing. Raise
    ModelLoadError where the installed transformers is too old for such a model.
    """
    kinds = set(getattr(config, "layer_types", None) or ()) & {*RECURRENT, *HYBRID}
    if not kinds:
        return ()
    if cache_name(transformers.__version__) != "cache":  # older releases hand no such state to a cache of ours
        raise ModelLoadError(
            f"Model {name} has {sorted(kinds)[0]} layers, whose state transformers hands over from 5.24 on, and "
            f"{transformers.__version__} is installed: install a later one, or use a model with attention layers only."
        )
    from transformers.cache_utils import get_layer_types_and_kwargs

    found = zip(*get_layer_types_and_kwargs(config), strict=True)
    return tuple(LayerKind(kind, options.get("number_of_states", 1)) for kind, options in found)

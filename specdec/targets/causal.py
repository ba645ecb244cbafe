"""Any transformers decoder as a target: packed tree verification over our own cache, masks and positions explicit."""

from collections.abc import Sequence
from copy import deepcopy
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor

from specdec.config import AtLeastOne, typed
from specdec.errors import ModelLoadError, NumericsError
from specdec.kv_cache import KVCache
from specdec.records import Draft, Tree, chain_tree
from specdec.sampling import SamplingConfig, probabilities
from specdec.targets.base import Target, targets
from specdec.targets.loading import (
    Dtype,
    content_hash,
    load_model,
    load_tokenizer,
    model_path,
    resolve_device,
    resolve_dtype,
)

# Layer types whose state can be rolled back by forgetting rows, and what they may see.
_ATTENTION = ("full_attention", "sliding_attention")


@typed
class CausalConfig:
    name: Literal["causal"]
    model: str
    dtype: Dtype
    device: str
    attention: Literal["auto", "sdpa", "eager"]
    compile: Literal[False]
    evaluation: Literal["packed"]
    prefill_chunk: AtLeastOne


@targets.register("causal")
class Causal(Target):
    """A decoder-only transformers model. One call evaluates root and draft in one row with a tree mask."""

    structures = frozenset({"chain", "rows", "tree"})

    def __init__(self, config: CausalConfig, sampling: SamplingConfig) -> None:
        self.name = model_path(config.model)
        self.device = resolve_device(config.device)
        model = load_model(self.name, dtype=resolve_dtype(config.dtype), device=self.device, attention=config.attention)
        self._init(model, load_tokenizer(self.name), sampling, config.prefill_chunk)

    @classmethod
    def from_model(cls, model: Any, sampling: SamplingConfig, tokenizer: Any = None) -> "Causal":
        """Around a model that is already in memory: tests and notebooks make small ones on the spot."""
        target = cls.__new__(cls)
        target.name = type(model).__name__
        target.device = model.device
        target._init(model.eval().requires_grad_(False), tokenizer, sampling, prefill_chunk=512)
        return target

    def _init(self, model: Any, tokenizer: Any, sampling: SamplingConfig, prefill_chunk: int) -> None:
        self.model, self.tokenizer, self.sampling = model, tokenizer, sampling
        text_config = model.config.get_text_config()
        self.vocab_size = text_config.vocab_size
        self.context_length = getattr(text_config, "max_position_embeddings", None) or 1 << 30
        self.end_tokens = _end_tokens(model)
        self._prefill_chunk = prefill_chunk
        self._layers = text_config.num_hidden_layers
        self._windows = _windows(text_config, self.name)
        # The prefill needs no logits; models that can, compute one row instead of a vocabulary for each prompt token.
        lean = "logits_to_keep" in signature(model.forward).parameters
        self._no_logits: dict[str, int] = {"logits_to_keep": 1} if lean else {}
        self._eager = text_config._attn_implementation == "eager"
        self._scorer: Any = None
        self._cache = KVCache(self._layers, 1)
        self._root = 0
        self._check_rollback()

    def start(self, prompt: Sequence[int], capacity: int) -> None:
        self._cache = KVCache(self._layers, capacity)
        self._root = prompt[-1]
        for begin in range(0, len(prompt) - 1, self._prefill_chunk):
            chunk = torch.tensor(prompt[begin : min(begin + self._prefill_chunk, len(prompt) - 1)], device=self.device)
            self._forward(chunk, chain_tree(len(chunk) - 1), **self._no_logits)

    def verify(self, draft: Draft) -> Tensor:
        prefix = self._cache.length
        root = torch.tensor([self._root], device=self.device)
        logits = self._forward(torch.cat([root, draft.tokens]) if len(draft) else root, draft.tree)
        # The maximum carries any NaN or +inf of its row; -inf alone is a legitimate way to forbid a token.
        if not torch.isfinite(logits.amax(-1)).all():
            raise NumericsError(
                f"The target's logits are not finite after position {prefix}: the run stops here. "
                "Try target.dtype=float32, or check the model."
            )
        return probabilities(logits, self.sampling)

    def commit(self, path: Sequence[int], next_token: int) -> None:
        rows = self._cache.length - self._evaluated
        self._cache.commit(rows + 1, [rows + 1 + node for node in path])
        self._root = next_token

    def discard(self) -> None:
        self._cache.length -= self._evaluated

    def score(self, tokens: Sequence[int]) -> Tensor:
        if self._scorer is None:
            wide = self.model.dtype in (torch.float32, torch.float64)
            self._scorer = self.model if wide else deepcopy(self.model).float()
        return self._plain(self._scorer, tokens)

    def score_as_decoded(self, tokens: Sequence[int]) -> Tensor:
        return self._plain(self.model, tokens)

    @torch.inference_mode()
    def _plain(self, model: Any, tokens: Sequence[int]) -> Tensor:
        """A forward pass over a whole text without any cache of ours."""
        return model(input_ids=torch.tensor([list(tokens)], device=self.device), use_cache=False).logits[0]

    @property
    def flops_per_token(self) -> float:
        # Input embeddings are looked up, not multiplied; tied ones are multiplied once, as the output head.
        embedding = self.model.get_input_embeddings().weight
        head = self.model.get_output_embeddings()
        tied = head is not None and head.weight is embedding
        return 2.0 * (sum(weight.numel() for weight in self.model.parameters()) - (0 if tied else embedding.numel()))

    def describe(self) -> dict[str, Any]:
        return {
            "class": type(self.model).__name__,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "weight_bytes": sum(weight.numel() * weight.element_size() for weight in self.model.parameters()),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attention": self.model.config._attn_implementation,
            "sha256": content_hash(self.name),
            "commit": getattr(self.model.config, "_commit_hash", None),
        }

    def _forward(self, tokens: Tensor, tree: Tree, **options: int) -> Tensor:
        """Append root and nodes to the cache; logits [N+1, V], or fewer rows where `options` ask for fewer."""
        prefix = self._cache.length
        self._evaluated = len(tokens)
        output = self.model(
            input_ids=tokens.unsqueeze(0),
            attention_mask=self._mask(prefix, tree),
            position_ids=(tree.offsets.to(self.device) + prefix).unsqueeze(0),
            past_key_values=self._cache,
            use_cache=True,
            **options,
        )
        return output.logits[0]

    def _mask(self, prefix: int, tree: Tree) -> Tensor | dict[str, Tensor]:
        """4-D mask [1, 1, N+1, S + N+1]: every row sees the prefix, its ancestors and itself, within its window."""
        rows = len(tree) + 1
        full = torch.ones(rows, prefix + rows, dtype=torch.bool, device=self.device)
        full[:, prefix:] = tree.visible.to(self.device)
        masks = {kind: self._shaped(full, window, prefix, tree) for kind, window in self._windows.items()}
        # One kind of layer takes a plain mask; models that mix kinds take one by the name of each.
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _shaped(self, full: Tensor, window: int | None, prefix: int, tree: Tree) -> Tensor:
        if window is not None:
            offsets = tree.offsets.to(self.device)
            keys = torch.cat([torch.arange(prefix, device=self.device), offsets + prefix])
            full = full & (offsets[:, None] + prefix - keys < window)
        mask = full[None, None]
        if self._eager:
            # Eager attention adds the mask to its scores.
            dtype = self.model.dtype
            return torch.zeros(mask.shape, dtype=dtype, device=self.device).masked_fill_(~mask, torch.finfo(dtype).min)
        return mask

    @torch.inference_mode()
    def _check_rollback(self) -> None:
        """Decode, roll back and decode again on a few tokens: a model whose state cannot forget gives itself away."""
        tokens = [index % self.vocab_size for index in range(1, 5)]
        try:
            self.start(tokens[:2], 8)
            wrong = Draft(torch.tensor([tokens[0], tokens[0]], device=self.device), chain_tree(2))
            self.verify(wrong)
            self.commit((), tokens[2])
            again = self._forward(torch.tensor([tokens[2]], device=self.device), chain_tree(0))[-1]
            plain = self._plain(self.model, tokens[:3])[-1]
        except NumericsError:
            raise ModelLoadError(
                f"Model {self.name} ({type(self.model).__name__}) cannot be used: its logits are not finite; "
                "try target.dtype=float32."
            ) from None
        except torch.OutOfMemoryError:
            raise
        except (TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
            raise ModelLoadError(
                f"Model {self.name} ({type(self.model).__name__}) does not work with a rolled-back key-value cache: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None
        scale = plain.abs().amax().clamp_min(1.0)
        tolerance = 0.1 if self.model.dtype in (torch.bfloat16, torch.float16) else 1e-3
        if not ((again - plain).abs().amax() <= tolerance * scale):
            raise ModelLoadError(
                f"Model {self.name} ({type(self.model).__name__}) cannot be used: after rolling back its cache its "
                "logits differ from a plain forward pass."
            )


def _end_tokens(model: Any) -> frozenset[int]:
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

"""Any transformers decoder as a target: packed tree verification over our own cache, masks and positions explicit."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor

from specdec.config import AtLeastOne, typed
from specdec.decoder import Decoder
from specdec.errors import ModelLoadError, NumericsError
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
        self.decoder = Decoder(model, self.name, prefill_chunk)
        self.vocab_size, self.context_length = self.decoder.vocab_size, self.decoder.context_length
        self.end_tokens = self.decoder.end_tokens
        self._scorer: Any = None
        self._root = torch.zeros(1, dtype=torch.long, device=self.device)
        self._check_rollback()

    def start(self, prompt: Sequence[int], capacity: int) -> None:
        self.decoder.start(prompt[:-1], capacity)
        self._root = torch.tensor([prompt[-1]], device=self.device)

    def verify(self, draft: Draft) -> Tensor:
        self._prefix = self.decoder.length
        logits = self._forward(torch.cat([self._root, draft.tokens]) if len(draft) else self._root, draft.tree)
        # The maximum carries any NaN or +inf of its row; -inf alone is a legitimate way to forbid a token.
        if not torch.isfinite(logits.amax(-1)).all():
            raise NumericsError(
                f"The target's logits are not finite after position {self._prefix}: the run stops here. "
                "Try target.dtype=float32, or check the model."
            )
        return probabilities(logits, self.sampling)

    def _forward(self, tokens: Tensor, tree: Tree) -> Tensor:
        return self.decoder.forward(tokens, tree)

    def commit(self, path: Sequence[int], next_token: int) -> None:
        self.decoder.cache.commit(self._prefix + 1, [self._prefix + 1 + node for node in path])
        self._root = torch.tensor([next_token], device=self.device)

    def discard(self) -> None:
        self.decoder.length = self._prefix

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        if self._scorer is None:
            wide = self.model.dtype in (torch.float32, torch.float64)
            self._scorer = self.model if wide else deepcopy(self.model).float()
        return self.decoder.plain([*prompt, *text], self._scorer)[len(prompt) - 1 :]

    @torch.inference_mode()
    def score_as_decoded(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self.decoder.plain([*prompt, *text])[len(prompt) - 1 :]

    @property
    def flops_per_token(self) -> float:
        return self.decoder.flops_per_token

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

    @torch.inference_mode()
    def _check_rollback(self) -> None:
        """Decode, roll back and decode again on a few tokens: a model whose state cannot forget gives itself away."""
        tokens = [index % self.vocab_size for index in range(1, 5)]
        try:
            self.start(tokens[:2], 8)
            wrong = Draft(torch.tensor([tokens[0], tokens[0]], device=self.device), chain_tree(2))
            self.verify(wrong)
            self.commit((), tokens[2])
            again = self.decoder.forward(self._root, chain_tree(0))[-1]
            plain = self.decoder.plain(tokens[:3])[-1]
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

"""Any transformers decoder as a target: trees and batches of rows verified over our own cache, masks and positions
explicit.
"""

import hashlib
from collections.abc import Collection, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from specdec.config import AtLeastOne, typed
from specdec.errors import NumericsError, UsageError
from specdec.models.compile import mode_for
from specdec.models.decoder import Decoder
from specdec.models.load import (
    Dtype,
    describe_model,
    load_model,
    load_tokenizer,
    model_path,
    resolve_device,
    resolve_dtype,
)
from specdec.models.memory import available_bytes
from specdec.models.path_batch import path_batch
from specdec.models.products import matrix_products
from specdec.models.random_weights import check_shape, random_model, shape_hash
from specdec.models.rollback import check_rollback
from specdec.models.seq2seq import Seq2SeqDecoder
from specdec.records import Draft, Tree, chain_tree
from specdec.sampling import SamplingConfig, checked_probabilities
from specdec.targets.base import Target, targets
from specdec.theory.roofline import Product


@typed
class CausalConfig:
    name: Literal["causal"]
    model: str
    shape: dict[str, Any] | None
    dtype: Dtype
    device: str
    attention: Literal["auto", "sdpa", "eager"]
    compile: Literal[False, True, "trace", "auto"]
    evaluation: Literal["packed", "rows"]
    prefill_chunk: AtLeastOne


@targets.register("causal")
class Causal(Target):
    """A decoder-only transformers model. One call evaluates root and draft: in one row with a tree mask, or, with
    `evaluation=rows`, every path in a row of a batch. A call on a batch is traced at most, whatever `compile` says.
    """

    structures = frozenset({"chain", "rows", "tree", "dynamic"})
    _shape_hash = ""  # of random weights

    def __init__(self, config: CausalConfig, sampling: SamplingConfig) -> None:
        self.name = model_path(config.model)
        self.device = resolve_device(config.device)
        check_shape(config.model, config.shape)
        dtype = resolve_dtype(config.dtype)
        how: dict[str, Any] = {"dtype": dtype, "device": self.device, "attention": config.attention}
        if config.shape is not None:
            self._shape_hash = shape_hash(config.shape)
            model, tokenizer = random_model(config.shape, **how), None
        else:
            model, tokenizer = load_model(self.name, kind="causal", **how), load_tokenizer(self.name)
        self._init(model, tokenizer, sampling, Decoder(model, self.name, config.prefill_chunk))
        self.evaluation = config.evaluation
        self.compilation = mode_for(config.compile, self.device)

    @classmethod
    def from_model(cls, model: Any, sampling: SamplingConfig, tokenizer: Any = None) -> "Causal":
        """Around a model that is already in memory: tests and notebooks make small ones on the spot."""
        target = cls.__new__(cls)
        target.name = type(model).__name__
        target.device = model.device
        model.eval().requires_grad_(False)
        target._init(model, tokenizer, sampling, Decoder(model, target.name, prefill_chunk=512))
        return target

    def _init(self, model: Any, tokenizer: Any, sampling: SamplingConfig, decoder: Decoder | Seq2SeqDecoder) -> None:
        self.model, self.tokenizer, self.sampling = model, tokenizer, sampling
        self.decoder = decoder
        self.vocab_size, self.context_length = self.decoder.vocab_size, self.decoder.context_length
        self.end_tokens = self.decoder.end_tokens
        self._scorer: Any = None
        self._root = torch.zeros(1, dtype=torch.long, device=self.device)
        self._tree = chain_tree(0)  # of the last draft verified
        check_rollback(decoder)
        self._bytes_per_row = decoder.cache.nbytes() // decoder.cache.capacity
        self._keeps_states = False

    def prepare(self, rows: Collection[int], capacity: int, branches: int = 1) -> None:
        if self.compilation is not None:
            assert isinstance(self.decoder, Decoder)
            self.decoder.compile(rows, capacity, self.compilation, self._copies(branches))

    def _copies(self, branches: int) -> int:
        return branches if self.evaluation == "rows" else 1

    def check_memory(self, prompt: int, capacity: int, branches: int = 1) -> None:
        copies = self._copies(branches)
        asked = self.decoder.slots_for(prompt, capacity, copies) * self._bytes_per_row
        free = available_bytes(self.device)
        if free is None or asked <= free + self.cache_bytes:  # the present cache is given up for the next
            return
        fault = f"take {asked:,} bytes, and {free:,} are free on {self.device}"
        if copies == 1:
            raise UsageError(
                f"Bad value measurement.max_new_tokens: {capacity:,} rows of key-value cache {fault}; lower it, or use "
                "shorter prompts."
            )
        instead = ", or use target.evaluation=packed" if isinstance(self.decoder, Decoder) else ""
        raise UsageError(
            f"Bad value target.evaluation=rows: {copies} copies of a key-value cache of {capacity:,} rows {fault}; "
            f"lower structure.k or measurement.max_new_tokens{instead}."
        )

    def start(self, prompt: Sequence[int], capacity: int, branches: int = 1) -> None:
        root = self.decoder.start(prompt, capacity, self._copies(branches))
        self._root = torch.tensor([root], device=self.device)
        if self._keeps_states:
            assert isinstance(self.decoder, Decoder)
            self.states = self.decoder.states

    def verify(self, draft: Draft) -> Tensor:
        self._prefix, self._tree = self.decoder.length, draft.tree
        logits = self._forward(torch.cat([self._root, draft.tokens]) if len(draft) else self._root, draft.tree)
        p, finite = checked_probabilities(logits, self.sampling)
        # Arrives while the host waits for the acceptance, which is decided later.
        self._finite = finite.to("cpu", non_blocking=True)
        if self.device.type == "cpu":
            self._check_finite()
        return p

    def _check_finite(self) -> None:
        if not self._finite:
            raise NumericsError(
                f"The target's logits are not finite after position {self._prefix}: the run stops here. "
                "Try target.dtype=float32, or check the model."
            )

    def _forward(self, tokens: Tensor, tree: Tree) -> Tensor:
        if self.evaluation == "rows" and not tree.is_chain:
            return self.decoder.forward_paths(tokens, tree)
        return self.decoder.forward(tokens, tree)

    def commit(self, path: Sequence[int], next_token: int) -> None:
        if self.device.type != "cpu":
            self._check_finite()  # the acceptance has waited for the device: known by now
        if self.evaluation == "rows":
            # The path stands in one piece, from the root on: in the only row, or in one of the batch.
            row = 0 if self._tree.is_chain else path_batch(self._tree).sequence_of(path)
            self.decoder.cache.commit(self._prefix, range(self._prefix, self._prefix + 1 + len(path)), row)
        else:
            self.decoder.cache.commit(self._prefix + 1, [self._prefix + 1 + node for node in path])
        if self._keeps_states:
            assert isinstance(self.decoder, Decoder) and self.decoder.states is not None
            kept = torch.tensor([0, *(node + 1 for node in path)])
            self.states = self.decoder.states.index_select(0, kept.to(self.device, non_blocking=True))
        self._root = torch.full((1,), next_token, device=self.device)  # written there: copying would wait for it

    def discard(self) -> None:
        self.decoder.length = self._prefix

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        if self._scorer is None:
            wide = self.model.dtype in (torch.float32, torch.float64)
            self._scorer = self.model if wide else deepcopy(self.model).float()
        return self.decoder.score(prompt, text, self._scorer)

    @torch.inference_mode()
    def score_as_decoded(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self.decoder.score(prompt, text)

    def keep_states(self, offset: int) -> None:
        self._check_offset(offset)
        assert isinstance(self.decoder, Decoder)
        self.decoder.keep_states(offset)
        self._keeps_states = True

    def _check_offset(self, offset: int) -> None:
        if not isinstance(self.decoder, Decoder):
            raise UsageError("An encoder-decoder gives no hidden states to heads: use target=causal.")
        if not 0 <= offset <= self.depth:
            raise UsageError(
                f"Bad value heads.offset={offset}: the target has {self.depth} layers; count down from the last, 0 to "
                f"{self.depth}."
            )

    @torch.inference_mode()
    def sequence_states(self, tokens: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        self._check_offset(offset)
        output = self.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        return output.hidden_states[-1 - offset], output.logits

    @property
    def depth(self) -> int:
        return self.decoder.layers if isinstance(self.decoder, Decoder) else 0

    @property
    def embedding(self) -> Tensor:
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def output_layer(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def identity(self) -> str:
        described = self.describe()
        return str(described["sha256"] or described["commit"] or self._weights_hash)

    @cached_property
    def _weights_hash(self) -> str:
        """Of a model made in memory, which has neither file nor commit."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + weight.detach().cpu().double().numpy().tobytes())
        return digest.hexdigest()

    @property
    def flops_per_token(self) -> float:
        return self.decoder.flops_per_token

    @property
    def cache_bytes(self) -> int:
        return self.decoder.cache.nbytes()

    def products(self) -> list[Product]:
        return matrix_products(self.model)

    def describe(self) -> dict[str, Any]:
        described = describe_model(self.model, self.name)
        return {
            **described,
            "sha256": self._shape_hash or described["sha256"],
            "compilation": self.compilation,
            "evaluation": self.evaluation,
        }

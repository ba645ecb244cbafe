"""Decoder-only transformers models as targets: trees and batches of paths are verified over our own cache."""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from specdec import ranks
from specdec.compiled.packages import PackageFolder
from specdec.compiled.passes import AUTO_S, Mode, auto_mode, compile_decoder, mode_for
from specdec.config import AtLeastOne, Named, NonEmpty, typed
from specdec.errors import EnvironmentFault, UsageError
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import joined_states
from specdec.models.load import Dtype, load_model, load_tokenizer, model_path, resolve_device, resolve_dtype
from specdec.models.model_files import check_revision, is_gguf
from specdec.models.quantization import quantization_in_words, quantization_of, quantized_loading, recorded_quantization
from specdec.models.random_weights import RANDOM, random_model, shape_hash
from specdec.models.routing import Mixture, names_experts
from specdec.models.spread import DeviceMap, check_modules, mapped, placement, sharded, spread_in_words, whole
from specdec.records import Acceptance, Draft, TextStart
from specdec.sampling import SamplingConfig
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import Evaluation, HiddenStates, TargetCapabilities, targets
from specdec.targets.base.model_target import ModelTarget
from specdec.theory.roofline import Product

logger = logging.getLogger(__name__)

_COVERED = 0.9  # least share of the multiplied parameters that a list of matrix products must hold


@typed
class CausalConfig(Named):
    model: str
    shape: dict[str, Any] | None
    dtype: Dtype
    device: str
    attention: Literal["auto", "sdpa", "eager"]
    compile: Literal[False, True, "trace", "auto"]
    compile_cache: str | None
    evaluation: Literal["packed", "rows"]
    prefill_chunk: AtLeastOne
    tensor_parallel: AtLeastOne
    device_map: DeviceMap | None
    revision: NonEmpty | None
    quantization: dict[str, Any] | None


@targets.register("causal")
class Causal(ModelTarget, HiddenStates):
    """A decoder-only transformers model, and its hidden states. A call on a batch of paths is never compiled, at most
    traced, whatever `compile` says.
    """

    capabilities = TargetCapabilities(structures=EVERY_STRUCTURE)
    decoder: Decoder
    tensor_parallel = 1  # processes that hold a share of the weights each
    placed: Mapping[str, int] = {}  # modules on each device, where a device map put them there
    undecided = False  # whether `choose_compilation` decides between tracing and compiling
    _shape_hash = ""  # of random weights

    def __init__(
        self,
        model: Any,
        sampling: SamplingConfig,
        tokenizer: Any = None,
        *,
        name: str = "",
        evaluation: Evaluation = "packed",
        compilation: Mode | None = None,
        prefill_chunk: int = 512,
    ) -> None:
        """Take a model whose folder, or place on the hub, has this name; "" for one that was made in memory."""
        decoder = Decoder(model, name or type(model).__name__, prefill_chunk, states=True)
        super().__init__(decoder, sampling, tokenizer, evaluation)
        self.compilation = compilation

    @classmethod
    def from_config(cls, config: CausalConfig, sampling: SamplingConfig) -> "Causal":
        name, device = model_path(config.model), resolve_device(config.device)
        if config.model == RANDOM and config.shape is None:
            raise UsageError("Bad value target.model='random': it needs a target.shape, as target=random_110m has.")
        if config.model != RANDOM and config.shape is not None:
            raise UsageError(f"Bad value target.shape: it goes with target.model=random, not with {config.model!r}.")
        check_revision(name, config.revision, "target.revision")
        spread = _spread(config, name, device)
        how: dict[str, Any] = {"dtype": resolve_dtype(config.dtype), "device": device, "attention": config.attention}
        if config.shape is not None:
            model, tokenizer = random_model(config.shape, **how), None
        else:
            how |= {"kind": "causal", "spread": spread, "revision": config.revision}
            model, tokenizer = load_model(name, **how), load_tokenizer(name, config.revision)
        check_modules(model, (spread or {}).get("device_map"))
        placed = placement(model)
        apart = len(placed) > 1 or "disk" in placed
        undecided, chunk = config.compile == "auto", config.prefill_chunk
        # A layer that is fetched from elsewhere for every call cannot be recorded, and the kernels of quantised weights
        # are their library's own.
        mode = None if apart or quantization_of(model) else mode_for("trace" if undecided else config.compile, device)
        target = cls(
            model, sampling, tokenizer, name=name, evaluation=config.evaluation, compilation=mode, prefill_chunk=chunk
        )
        target.packages = PackageFolder(config.compile_cache, AUTO_S if undecided else math.inf)
        # On a GPU it stays with tracing: inductor takes most of a minute for each graph, and our own kernels, which are
        # made in seconds, were timed by themselves and in no run.
        target.undecided = undecided and target.compilation is not None and device.type == "cpu"
        target.tensor_parallel, target.placed = config.tensor_parallel, placed
        target.in_one_piece = not apart and config.tensor_parallel == 1
        if config.shape is not None:
            target._shape_hash = shape_hash(config.shape)
        return target

    def choose_compilation(self, calls: float, seconds: float | None = None) -> None:
        if self.undecided and self.packages is not None and not self.decoder.recurrent:
            self.compilation, why = auto_mode(self.decoder, self.packages, calls, seconds)
            if why:
                logger.info(why)

    def prepare(self, sizes: Collection[int], capacity: int, branches: int = 1) -> None:
        if self.compilation is not None:
            compile_decoder(self.decoder, sizes, capacity, self.compilation, self._copies(branches), self.packages)

    @property
    def passes(self) -> Mapping[str, Mapping[str, Any]]:
        return self.decoder.choices

    def start(self, text: TextStart) -> None:
        super().start(text)
        self.states = self.decoder.states

    def commit(self, path: Sequence[int], next_token: int) -> None:
        super().commit(path, next_token)
        if self.decoder.states is not None:
            kept = torch.tensor([0, *(node + 1 for node in path)])
            self.states = self.decoder.states.index_select(0, kept.to(self.device, non_blocking=True))

    def agreed(self, draft: Draft, acceptance: Acceptance) -> Acceptance:
        if self.tensor_parallel == 1:
            return acceptance
        drafted = hash((*acceptance.tokens, *draft.tree.parents))  # of integers: the same in every process
        same, token, rejected, accepted = ranks.agreed(
            [drafted, acceptance.next_token, acceptance.rejected, len(acceptance.path)]
        )
        if same != drafted:
            raise EnvironmentFault(
                f"Rank {ranks.rank()} drafted other tokens than rank 0, so that their calls would not belong together: "
                "their devices compute differently; use equal ones, or target.tensor_parallel=1."
            )
        own = [*acceptance.path, *[0] * accepted][:accepted]
        return replace(acceptance, path=tuple(ranks.agreed(own)), next_token=token, rejected=bool(rejected))

    @cached_property
    def mixture(self) -> Mixture | None:
        """The target's layers of experts; None for a dense model, one in several pieces, and a router unknown to us."""
        return Mixture.of(self.model) if self.in_one_piece else None

    def products(self) -> list[Product]:
        # The ceiling of one process or device is not that of a model on several, and quantised weights are unpacked.
        return matrix_products(self.model) if self.in_one_piece and self.quantization is None else []

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        shares = {"tensor_parallel": self.tensor_parallel} if self.tensor_parallel > 1 else {}
        places = {"device_map": dict(self.placed)} if self.placed else {}
        return {**described, **shares, **places, "sha256": self._shape_hash or described["sha256"]}

    @property
    def remarks(self) -> tuple[str, ...]:
        spread: tuple[str, ...] = ()
        if self.tensor_parallel > 1:
            spread = (
                f"The target's weights are shared out over {self.tensor_parallel} processes: every call waits for all "
                "of them. There is no cost model and no roofline, which are those of one device.",
            )
        elif not self.in_one_piece:
            spread = (
                f"The target's modules lie on several devices ({spread_in_words(self.placed)}): a call runs through "
                "them one after another and waits for what is moved, which a wide call pays once and plain decoding "
                "pays for every token. Speedups of this run are distorted and say nothing of a model in one piece.",
            )
        if names_experts(self.model.config.get_text_config()) and self.mixture is None:
            spread += (
                "The target is a mixture of experts whose choices are not recorded, because its layers are not those "
                "of transformers or lie on several devices: the account has no factor `experts`, and reading more "
                "experts is a part of `verify`.",
            )
        return (*super().remarks, *spread)

    @property
    def tags(self) -> dict[str, str]:
        served = {} if self.decoder.probed.packed else {"evaluation": "rows"}  # whatever was asked for
        if self.tensor_parallel > 1:
            return {**served, "tensor_parallel": str(self.tensor_parallel)}
        if (quantized := recorded_quantization(self.model)) is not None:
            served["quantization"] = quantization_in_words(quantized)
        placed = {**served, "device_map": spread_in_words(self.placed)} if self.placed else served
        return placed if self.in_one_piece else {**placed, "distorted": "device_map"}

    @property
    def layers(self) -> int:
        return self.decoder.layers

    @property
    def embedding(self) -> Tensor:
        return self._in_memory(self.model.get_input_embeddings().weight)

    @property
    def output_layer(self) -> Tensor:
        return self._in_memory(self.model.get_output_embeddings().weight)

    def _in_memory(self, weight: Tensor) -> Tensor:
        if weight.device.type == "meta":
            raise UsageError(
                "Bad value target.device_map: it puts the target's embeddings on disk, and heads read them; keep "
                "model.embed_tokens and lm_head on a device, or use a drafter without heads."
            )
        return whole(weight)

    @property
    def identity(self) -> str:
        described = self.describe()
        return str(described["sha256"] or described["commit"] or self._weights_hash)

    @cached_property
    def _weights_hash(self) -> str:
        """Hash of the weights of a model made in memory, which has neither file nor commit."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + weight.detach().cpu().double().numpy().tobytes())
        return digest.hexdigest()

    @property
    def kept(self) -> tuple[int, ...]:
        return self.decoder.kept

    def _keep_also(self, offsets: tuple[int, ...]) -> None:
        self._check(offsets)
        self.decoder.keep_states(dict.fromkeys((*self.kept, *offsets)))

    @torch.inference_mode()
    def sequence(self, tokens: Tensor, *offsets: int) -> tuple[Tensor, Tensor]:
        self._check(offsets)
        output = self.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        return joined_states(output.hidden_states, offsets), output.logits

    def _check(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if not 0 <= offset <= self.layers:
                raise UsageError(
                    f"Bad value heads.offset={offset}: the target has {self.layers} layers; count down from the last, "
                    f"0 to {self.layers}."
                )


def _spread(config: CausalConfig, name: str, device: torch.device) -> dict[str, Any] | None:
    """Return how the weights are laid out over several devices, and quantised as they are read; None for a model in one
    piece as it was trained. Raises UsageError: both ways at once, a way that does not fit the model or the machine.
    """
    other = "target.model=random" if config.shape is not None else ""
    if config.tensor_parallel > 1:
        other = f"target.tensor_parallel={config.tensor_parallel}"
    if config.device_map is not None and (other or config.device != "auto"):
        raise UsageError(
            "Bad value target.device_map: it says where every layer lies, which does not go with "
            f"{other or f'target.device={config.device}'}; use one of the two."
        )
    if is_gguf(name) and (config.tensor_parallel > 1 or config.quantization is not None):
        key = "target.tensor_parallel" if config.tensor_parallel > 1 else "target.quantization"
        raise UsageError(f"Bad value {key}: {name} is a GGUF file, whose weights are read by one process as they are.")
    if config.quantization is not None:
        if other:
            raise UsageError(f"Bad value target.quantization: it does not go with {other}; use one of the two.")
        placed = {} if config.device_map is None else mapped(config.device_map)
        return {**quantized_loading(config.quantization, device), **placed}
    if config.device_map is not None:
        return mapped(config.device_map)
    return sharded(name, config.tensor_parallel, device) if config.tensor_parallel > 1 else None


def matrix_products(model: Any) -> list[Product]:
    """List linear layers and stacks of experts grouped by name and shape, in the order of the model, then attention;
    nothing where they hold less than `_COVERED` of the weights (experts that are not recognised): a roofline without
    most of the weights would mislead.
    """
    weights: Counter[tuple[str, int, int, int, int, int]] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            # Conv1D, which GPT-2 uses, stores [inputs, outputs]; Linear stores the transpose.
            outputs, inputs = module.weight.shape if isinstance(module, nn.Linear) else module.weight.shape[::-1]
            weights[name.rpartition(".")[2], inputs, outputs, module.weight.element_size(), 1, 1] += 1
    if (mixture := Mixture.of(model)) is not None:
        for layer, chosen in zip(mixture.layers, mixture.chosen.tolist(), strict=True):
            for name, stack in layer.named_parameters(recurse=False):
                if stack.dim() == 3 and chosen:  # [E, outputs, inputs], or transposed
                    experts, outputs, inputs = stack.shape
                    weights[name, inputs, outputs, stack.element_size(), experts, chosen] += 1
    products = [
        Product(name, ins, outs, number, size, experts=experts, chosen=chosen)
        for (name, ins, outs, size, experts, chosen), number in weights.items()
    ]
    # A tied output head is multiplied too, though the same weight is looked up at the input.
    head = getattr(model.get_output_embeddings(), "weight", None)
    looked_up = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)} - {head}
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1 and weight not in looked_up)
    covered = sum(product.experts * product.values(0) for product in products)
    if covered < _COVERED * matrices:
        return []
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    number, value = config.num_hidden_layers * kv_heads, model.dtype.itemsize
    return [
        *products,
        Product("attention scores", size, None, number, value, queries=heads // kv_heads),
        Product("attention values", None, size, number, value, queries=heads // kv_heads),
    ]

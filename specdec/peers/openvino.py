"""OpenVINO GenAI on a copy of the weights as OpenVINO's own model: plain, with prompt lookup, or with the same small
model as drafter.

The copy is a float32 graph that holds keys and values as its state. Inputs and state stand as GenAI looks for them, and
attention stays one operation, which it replaces by its paged attention. The graph comes from OpenVINO's frontend for
PyTorch, and not from `openvino.convert_model`, which reports every conversion to its maker.
"""

import copy
import shutil
import time
import warnings
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from specdec.decode import cut
from specdec.drafters.small_model import SmallModel
from specdec.models.attention import stock_attention
from specdec.models.cache import CACHE
from specdec.models.decoder import attention_windows
from specdec.peers.base.contract import ASSISTED, GENERATE, PROMPT_LOOKUP, Engine, LeftOut, Peer, Setting, Work, engines
from specdec.prompts import Prompt
from specdec.sampling import SamplingConfig

# Names of OpenVINO for our dtypes: the arithmetic of a pipeline, and what a processor computes in natively.
_PRECISIONS = {torch.float32: ("f32", "FP32"), torch.bfloat16: ("bf16", "BF16"), torch.float16: ("f16", "FP16")}
_BLOCK = 16  # slots of a block of the paged cache; larger on some processors, which only makes the cache larger


class OpenVinoPeer(Peer):
    """A pipeline of OpenVINO GenAI, opened anew for every setting that is tried."""

    converted = True

    def __init__(self, name: str, kind: str, work: Work, root: Path) -> None:
        """Make a peer whose models are written into folders below `root`."""
        dtype = str(work.target.model.dtype).removeprefix("torch.")
        settings = [
            Setting(
                f"{words}, {'' if pinned else 'not '}pinned, {dtype}, {torch.get_num_threads()} threads",
                {"ATTENTION_BACKEND": backend, "ENABLE_CPU_PINNING": pinned},
            )
            for backend, words in (("PA", "paged cache"), ("SDPA", "cache as state"))
            if backend == "PA" or kind == GENERATE  # speculation needs the paged cache
            for pinned in (True, False)
        ]
        super().__init__(name, kind, work, settings)
        self._root = root
        self._pipeline: Any = None
        self._opened: Setting | None = None

    def prepare(self) -> None:
        """Write the small model beside the target, and the tokenizer that both share into both folders: GenAI drafts
        only where the tokenizers are the same, which it asks of them. Raises LeftOut: there is no tokenizer, or two.
        """
        if self._kind != ASSISTED:
            return
        import openvino
        from openvino_tokenizers import convert_tokenizer

        small = cast(SmallModel, self._work.drafter)
        if small.translation is not None:
            raise LeftOut("OpenVINO drafts with a small model of the same tokenizer only")
        if self._target.tokenizer is None:
            raise LeftOut("OpenVINO drafts with a small model only where the target has a tokenizer")
        _write(small.model, self._work, self._root / "drafter")
        tokenizer = convert_tokenizer(self._target.tokenizer)
        for folder in ("target", "drafter"):
            openvino.save_model(tokenizer, self._root / folder / "openvino_tokenizer.xml")

    def generate(self, prompt: Prompt, setting: Setting, sampling: SamplingConfig) -> tuple[tuple[int, ...], float]:
        if self._opened is not setting:
            self.close()  # before the next one: each holds the weights in its own layout
            self._pipeline, self._opened = self._open(setting), setting
            self._timed(prompt, sampling)  # the first call allocates
        return self._timed(prompt, sampling)

    def close(self) -> None:
        self._pipeline = self._opened = None

    def _timed(self, prompt: Prompt, sampling: SamplingConfig) -> tuple[tuple[int, ...], float]:
        import openvino
        import openvino_genai

        tokens = np.array([prompt.tokens], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(np.ones_like(tokens)))
        # Penalties keep their defaults, which change nothing. Without an end token, a pipeline takes the tokenizer's,
        # or -1 and refuses it: one that never comes stands in.
        ends = {token for token in self._target.end_tokens if token >= 0} or {self._target.vocab_size}
        fields: dict[str, Any] = {
            "max_new_tokens": self._work.max_new_tokens,
            "do_sample": not sampling.greedy,
            "eos_token_id": min(ends),
            "stop_token_ids": ends,
        }
        if not sampling.greedy:
            given = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
            fields |= {name: value for name, value in given.items() if value is not None}
            fields |= {"temperature": sampling.temperature, "rng_seed": self._work.seed}
        if self._kind != GENERATE:
            fields["num_assistant_tokens"] = self.ours[1]
        if self._kind == PROMPT_LOOKUP:
            fields["max_ngram_size"] = self._work.match_length
        config = openvino_genai.GenerationConfig(**fields)
        start = time.perf_counter()
        output = self._pipeline.generate(inputs, config)
        seconds = time.perf_counter() - start
        new = [int(token) for token in output.tokens[0]]
        return cut(new, self._work.max_new_tokens, self._target.end_tokens), seconds

    def _open(self, setting: Setting) -> Any:
        import openvino_genai

        options = {**_properties(self._target.model.dtype), **setting.options}
        if options["ATTENTION_BACKEND"] == "PA":
            # The paged cache is allocated at once, as ours is, and a prompt prefilled in one call. GenAI's default
            # keeps the keys and values of earlier prompts: a second generation would be timed without its prefill.
            config = options["scheduler_config"] = openvino_genai.SchedulerConfig()
            config.enable_prefix_caching = False
            slots = self._work.longest + self.ours[1] + 1
            config.max_num_batched_tokens = slots
            config.num_kv_blocks = -(-slots // _BLOCK) + 1
        if self._kind == ASSISTED:
            own = _properties(cast(SmallModel, self._work.drafter).model.dtype)
            own["ENABLE_CPU_PINNING"] = options["ENABLE_CPU_PINNING"]
            options["draft_model"] = openvino_genai.draft_model(self._root / "drafter", "CPU", **own)
        elif self._kind == PROMPT_LOOKUP:
            options["prompt_lookup"] = True
        return openvino_genai.LLMPipeline(self._root / "target", "CPU", **options)


@engines.register("openvino")
class OpenVino(Engine):
    needs = {"openvino_genai": "openvino-genai", "openvino_tokenizers": "openvino-tokenizers", "openvino": "openvino"}
    extra = "openvino"

    def peers(self, work: Work, held: ExitStack) -> list[OpenVinoPeer]:
        target, sampling = work.target, work.target.sampling
        if target.device.type != "cpu" or not target.in_one_piece:
            raise LeftOut("OpenVINO is set against a target in one piece on a CPU only: use target.device=cpu")
        cuts = [cut for cut in (sampling.top_k, sampling.top_p, sampling.min_p) if cut is not None]
        if not sampling.greedy and (sampling.typical_p is not None or len(cuts) > 1):
            raise LeftOut(
                "OpenVINO has no typical_p and combines cuts in another order than ours, so that it would sample from "
                "another law: compare with one of top_k, top_p and min_p at most"
            )
        root = Path(held.enter_context(TemporaryDirectory(prefix="specdec-openvino-")))
        _write(target.model, work, root / "target")
        return [OpenVinoPeer(f"{self.name}.{kind}", kind, work, root) for kind in work.kinds]


def _properties(dtype: torch.dtype) -> dict[str, Any]:
    """Return the properties that make a pipeline compute as we do: the arithmetic, the cache's too, and the threads."""
    precision, _ = _PRECISIONS[dtype]
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,  # 8 bits by default
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }


def _write(model: Any, work: Work, folder: Path) -> None:
    """Write a model into a new folder. Raises LeftOut: OpenVINO would silently compute its dtype as float32; its layers
    see less than the texts of the run, which the written model would not know; no space.
    """
    import openvino

    _, capability = _PRECISIONS.get(model.dtype, ("", ""))
    if capability not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        name = str(model.dtype).removeprefix("torch.")
        raise LeftOut(f"OpenVINO does not compute in {name} on this processor: use target.dtype=float32")
    windows = attention_windows(model.config.get_text_config(), model.name_or_path)
    narrow = min((window for window in windows.values() if window is not None), default=work.longest)
    if narrow < work.longest:
        raise LeftOut(
            f"OpenVINO's model is written without windows, and a layer sees {narrow} tokens back of texts of up to "
            f"{work.longest}: shorten prompts or measurement.max_new_tokens"
        )
    folder.mkdir()
    free, needed = shutil.disk_usage(folder).free, 4 * sum(weight.numel() for weight in model.parameters())
    if free < needed:
        raise LeftOut(
            f"{folder.parent} has {free / 2**20:,.0f} MB free, and OpenVINO's model takes {needed / 2**20:,.0f} MB: "
            "free some space, or set TMPDIR to another folder"
        )
    write_openvino(model, windows, folder)


_INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")
_SEQUENCES, _TOKENS, _PAST = 2, 5, 3  # of the example: all differ, or the graph would take equal ones for one size


def write_openvino(model: Any, kinds: Collection[str], folder: Path) -> None:
    """Write a decoder-only model, which itself stays as it is, into a folder that exists; its masks are keyed by the
    `kinds` of its attention layers. Every layer sees the whole text: windows are not written. 16-bit weights are
    written as float32, which holds them exactly; the arithmetic is chosen when the file is read. Raises exceptions of
    many types: OpenVINO has no operation for a part of the model.
    """
    import openvino
    from openvino import opset13 as operations
    from openvino._offline_transformations import apply_make_stateful_transformation, apply_moc_transformations
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    graph = _Graph(copy.deepcopy(model).float().eval(), kinds)
    with torch.no_grad(), warnings.catch_warnings(), stock_attention(graph.model):
        warnings.simplefilter("ignore")  # tracing warns of every branch that depends on a shape
        shapes = graph.state_shapes()
        frontend = FrontEndManager().load_by_framework("pytorch")
        traced = TorchScriptPythonDecoder(graph, example_input=_example(shapes))
        written = frontend.convert(frontend.load(traced))
    apply_moc_transformations(written, False)
    past = [f"past_key_values.{place // 2}.{('key', 'value')[place % 2]}" for place in range(len(shapes))]
    present = [name.replace("past_key_values", "present") for name in past]
    sizes = [(-1, -1), (-1, -1), (-1, -1), (-1,), *((-1, heads, -1, size) for heads, size in shapes)]
    for port, name, size in zip(written.inputs, (*_INPUTS, *past), sizes, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(openvino.PartialShape(list(size)))
    for port, name in zip(written.outputs, ("logits", *present), strict=True):
        port.get_tensor().set_names({name})
    written.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(written, dict(zip(past, present, strict=True)))
    # Every state begins with the call's number of sequences and no tokens.
    tokens = operations.shape_of(written.input("input_ids"), "i64")
    sequences = operations.gather(tokens, np.array([0]), np.array(0))
    for node in written.get_ops():
        if node.get_type_name() == "ReadValue":
            _, heads, _, width = node.get_output_partial_shape(0)
            rest = [np.array([length]) for length in (heads.get_length(), 0, width.get_length())]
            shape = operations.concat([sequences, *map(operations.constant, rest)], 0)
            node.set_arguments([operations.broadcast(np.float32(0), shape)])
    written.validate_nodes_and_infer_types()
    openvino.save_model(written, folder / "openvino_model.xml", compress_to_fp16=False)  # as GenAI looks for it


class _Graph(nn.Module):
    """A decoder as a function of tokens and of the keys and values before them."""

    def __init__(self, model: Any, kinds: Collection[str]) -> None:
        super().__init__()
        self.model, self._kinds = model, list(kinds)

    def state_shapes(self) -> list[tuple[int, int]]:
        """Return heads and size of a head for the keys and the values of every layer in turn."""
        layers = [DynamicLayer() for _ in range(self.model.config.get_text_config().num_hidden_layers)]
        token = torch.zeros(1, 1, dtype=torch.long)
        self._logits(token, torch.ones_like(token), token, layers)
        return [(states.shape[1], states.shape[3]) for layer in layers for states in (layer.keys, layer.values)]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, beam_idx: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Return logits [B, S, V], then keys and values of every layer, those of `past` in front: [B, H, P, head] in
        turn. `attention_mask` is ones [B, P + S], of which only the shape differs from call to call; `beam_idx` [B] is
        the sequence of `past` that each sequence continues.
        """
        layers = [DynamicLayer() for _ in past[::2]]
        for layer, keys, values in zip(layers, past[::2], past[1::2], strict=True):
            layer.keys, layer.values = (states.index_select(0, beam_idx) for states in (keys, values))
            layer.is_initialized = True
        logits = self._logits(input_ids, attention_mask, position_ids, layers)
        return logits, *(states for layer in layers for states in (layer.keys, layer.values))

    def _logits(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, layers: list[DynamicLayer]
    ) -> Tensor:
        slots = torch.arange(attention_mask.shape[1])
        own = slots[attention_mask.shape[1] - input_ids.shape[1] :]
        seen = (slots[None, :] <= own[:, None])[None, None] & attention_mask[:, None, None].bool()  # [B, 1, S, P + S]
        mask = seen if len(self._kinds) == 1 else dict.fromkeys(self._kinds, seen)
        inputs = {"input_ids": input_ids, "attention_mask": mask, "position_ids": position_ids}
        return self.model(**inputs, use_cache=True, **{CACHE: Cache(layers=layers)}).logits


def _example(shapes: list[tuple[int, int]]) -> tuple[Tensor, ...]:
    places = torch.arange(_PAST, _PAST + _TOKENS)
    tokens = torch.zeros(_SEQUENCES, _TOKENS, dtype=torch.long)
    return (
        tokens,
        torch.ones(_SEQUENCES, _PAST + _TOKENS, dtype=torch.long),
        places + tokens,
        torch.arange(_SEQUENCES, dtype=torch.int32),
        *(torch.zeros(_SEQUENCES, heads, _PAST, size) for heads, size in shapes),
    )

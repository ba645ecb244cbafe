"""llama.cpp through llama-cpp-python: plain generation, its prompt lookup, and a second model as its draft model.

The weights are written as GGUF from the loaded models into a temporary folder, in the format that ours are in. Only
token ids pass, so a file has no vocabulary. Architectures: those whose tensors llama.cpp knows by the same parts as
transformers; others are refused.
"""

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from specdec.decode import cut
from specdec.drafters.small_model import SmallModel
from specdec.peers.base.contract import ASSISTED, PROMPT_LOOKUP, Engine, LeftOut, Peer, Setting, Work, engines
from specdec.prompts import Prompt
from specdec.sampling import SamplingConfig

_PREFILL = 512  # tokens of a call of the prefill, as ours


@engines.register("llama_cpp")
class LlamaCpp(Engine):
    needs = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}
    extra = "llama-cpp"

    def peers(self, work: Work, held: ExitStack) -> list["LlamaPeer"]:
        import llama_cpp

        target, sampling = work.target, work.target.sampling
        cuts = (sampling.top_p, sampling.min_p, sampling.typical_p)
        if not sampling.greedy and cuts != (None, None, None):
            raise LeftOut(
                "llama.cpp cuts by top_p, min_p and typical_p before it applies the temperature, so that it would "
                "sample from another law: compare with sampling=greedy, or with temperature and top_k alone."
            )
        if target.device.type == "cuda" and not llama_cpp.llama_supports_gpu_offload():
            raise LeftOut("this llama-cpp-python was built without a GPU: reinstall it with CMAKE_ARGS=-DGGML_CUDA=on.")
        folder = Path(held.enter_context(TemporaryDirectory(prefix="specdec_gguf_")))
        write_gguf(target.model, folder / "target.gguf", work.longest)
        return [LlamaPeer(f"{self.name}.{kind}", kind, work, folder) for kind in work.kinds]


class LlamaPeer(Peer):
    """`llama_cpp.Llama.generate` on fresh texts: what is cached of the text before is forgotten, as in our engine."""

    converted = True

    def __init__(self, name: str, kind: str, work: Work, folder: Path) -> None:
        """Make a peer whose weights are written into a folder."""
        super().__init__(name, kind, work, settings(work))
        self._folder = folder
        # `llama_cpp.Llama`s: the drafter's if a model drafts, then the target's; and the setting that they are open in.
        self._engines: list[Any] = []
        self._opened: Setting | None = None

    def prepare(self) -> None:
        if self._kind == ASSISTED:
            small = cast(SmallModel, self._work.drafter)
            if small.translation is not None:
                raise LeftOut("llama-cpp-python has no drafter with another tokenizer than the target's.")
            write_gguf(small.model, self._folder / "drafter.gguf", self._work.longest)

    def generate(self, prompt: Prompt, setting: Setting, sampling: SamplingConfig) -> tuple[tuple[int, ...], float]:
        if self._opened is not setting:
            self.close()  # one setting is open at a time, so that others take no memory
            self._open(setting)
        limit, end_tokens = self._work.max_new_tokens, self._target.end_tokens
        for engine in self._engines:
            engine.reset()
        # Its own defaults cut by top_k, top_p and min_p.
        options = {"temp": sampling.temperature, "top_k": sampling.top_k or 0}
        options |= {"top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
        new: list[int] = []
        start = time.perf_counter()
        for token in self._engines[-1].generate(list(prompt.tokens), **options):
            new.append(token)
            if len(new) == limit or token in end_tokens:
                break
        seconds = time.perf_counter() - start
        return cut(new, limit, end_tokens), seconds

    def _open(self, setting: Setting) -> None:
        """Open the models. The target keeps the logits of all tokens with a draft model, of the last without one."""
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        gamma, draft_model = self.ours[1], cast(Any, None)
        if self._kind == PROMPT_LOOKUP:
            draft_model = LlamaPromptLookupDecoding(max_ngram_size=self._work.match_length, num_pred_tokens=gamma)
        elif self._kind == ASSISTED:
            drafter = llama_cpp.Llama(str(self._folder / "drafter.gguf"), **setting.options)
            self._engines.append(drafter)

            def continued(text: np.ndarray, /, **options: Any) -> np.ndarray:  # it evaluates what its cache lacks
                drafts = drafter.generate(text.tolist(), temp=0.0)
                return np.array([next(drafts) for _ in range(gamma)], dtype=np.intc)

            draft_model = continued
        target = llama_cpp.Llama(str(self._folder / "target.gguf"), draft_model=draft_model, **setting.options)
        self._engines.append(target)
        self._opened = setting

    def close(self) -> None:
        while self._engines:
            self._engines.pop().close()
        self._opened = None


def settings(work: Work) -> list[Setting]:
    """Return the settings: attention fused or not; a cache in the weights' format, or float16 where that is as wide."""
    from gguf import GGMLQuantizationType

    threads, dtype = torch.get_num_threads(), work.target.model.dtype
    shared = {
        "n_ctx": work.longest + work.structure.gamma + 2,  # drafts are evaluated to their end, beyond that of the text
        "n_batch": _PREFILL,
        "n_ubatch": _PREFILL,
        "n_threads": threads,
        "n_threads_batch": threads,
        "n_gpu_layers": -1 if work.target.device.type == "cuda" else 0,
        "seed": work.seed,
        "verbose": False,
    }
    kinds = {
        torch.float32: [("float32", GGMLQuantizationType.F32)],
        torch.bfloat16: [("bfloat16", GGMLQuantizationType.BF16), ("float16", GGMLQuantizationType.F16)],
        torch.float16: [("float16", GGMLQuantizationType.F16)],
    }
    dtype_name = str(dtype).removeprefix("torch.")
    return [
        Setting(
            f"{dtype_name}, {threads} threads, cache in {words}, flash attention {'on' if fused else 'off'}",
            {**shared, "flash_attn": fused, "type_k": int(kind), "type_v": int(kind)},
        )
        for words, kind in kinds[dtype]
        for fused in (True, False)
    ]


ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}  # by `model_type`

_FILE_TYPES = {torch.float32: "ALL_F32", torch.bfloat16: "MOSTLY_BF16", torch.float16: "MOSTLY_F16"}


def write_gguf(model: Any, path: Path, longest: int) -> None:
    """Write the weights and shape of a model that will be used for texts of at most `longest` tokens. Raises LeftOut:
    llama.cpp would compute it differently, or does not know it.
    """
    import gguf

    logging.getLogger("gguf").setLevel(logging.WARNING)  # it tells every file that it writes
    config = model.config.get_text_config()
    name = _checked(model, config, longest)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    factors = _rope_factors(model, config, name)
    writer = gguf.GGUFWriter(path, name)
    head = _head_size(config)
    writer.add_file_type(getattr(gguf.LlamaFileType, _FILE_TYPES[model.dtype]))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp takes the embeddings where there is no output matrix
        projection = key.split(".")[-2]
        if name == "llama" and projection in heads:
            # transformers rotates row i of a head with row i + D / 2, llama.cpp there row 2 i with row 2 i + 1.
            halves = weight.unflatten(0, (heads[projection], 2, -1))  # [heads, 2, D / 2, ...]
            weight = halves.transpose(1, 2).reshape(weight.shape)
        found = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise LeftOut(f"llama.cpp has no place for the weight {key} of model type {config.model_type}.")
        _add(writer, gguf, found, weight.detach().cpu())
    if factors is not None:
        _add(writer, gguf, "rope_freqs.weight", factors)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _checked(model: Any, config: Any, longest: int) -> str:
    """Return llama.cpp's name of the architecture. Raises LeftOut: it is unknown there, or computed in another way."""
    kind = config.model_type
    windowed = getattr(config, "use_sliding_window", True)
    window = (getattr(config, "sliding_window", None) if windowed else None) or longest
    dtypes = {weight.dtype for weight in model.parameters() if weight.dim() > 1}
    for fault, reason in (
        (kind not in ARCHITECTURES, f"the model type {kind} is not among those written as GGUF: "
         f"{', '.join(ARCHITECTURES)}"),
        (len(dtypes) != 1 or not dtypes <= set(_FILE_TYPES), f"GGUF has no place for weights in "
         f"{' and '.join(sorted(str(each).removeprefix('torch.') for each in dtypes))}: use target.dtype=float32, "
         "bfloat16 or float16"),
        (getattr(config, "hidden_act", "silu") != "silu", "llama.cpp computes this architecture with silu only"),
        (window < longest, f"texts are longer than the sliding window of {window} tokens, which "
         "llama.cpp's architecture llama ignores"),
        (any(weight.device.type == "meta" for weight in model.parameters()), "the target's weights are not in memory"),
    ):  # fmt: skip
        if fault:
            raise LeftOut(f"{reason}.")
    return ARCHITECTURES[kind]


def _rope_factors(model: Any, config: Any, name: str) -> Tensor | None:
    """Return what each frequency [D / 2] of the rotary embedding is divided by, or None for nothing. Raises LeftOut:
    frequencies that change with the text, scale the attention, or that the architecture does not take.
    """
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    rotary = next(module for module in model.modules() if hasattr(module, "inv_freq"))
    frequencies = rotary.inv_freq.detach().cpu().double()
    size = 2 * len(frequencies)
    plain = kind == "default"
    fits = size == _head_size(config) and rotary.attention_scaling == 1.0
    if not fits or not plain and (name != "llama" or kind not in ("linear", "llama3")):
        raise LeftOut(f"rotary embeddings of type {kind} over {size} dimensions are not written as GGUF.")
    if plain:
        return None
    steps = torch.arange(0, size, 2, dtype=torch.float64) / size
    return (1.0 / (frequencies * rope["rope_theta"] ** steps)).float()


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _add(writer: Any, gguf: Any, name: str, weight: Tensor) -> None:
    if weight.dim() == 1:
        weight = weight.float()  # llama.cpp has norms, biases and factors in float32
    if weight.dtype == torch.bfloat16:
        raw = weight.contiguous().view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, weight.contiguous().numpy())

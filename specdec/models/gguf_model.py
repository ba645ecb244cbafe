"""GGUF files as models: transformers reads them, and what it would silently leave out of a file is refused here.

Weights are dequantised to the number format of the run, so that from there on such a model is like any other;
tokenizer, chat template and end tokens are the file's. It is another model than the one that the file was made from.
"""

import mmap
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from specdec.errors import ModelLoadError, in_one_line
from specdec.models.model_files import check_gguf
from specdec.replaced import replaced

_FLOATS = {0: torch.float32, 1: torch.float16, 32: torch.bfloat16}  # values of `general.file_type` without blocks
_LONG = 4096  # elements: of an array of the vocabulary, not of the layers or experts
_END_TOKENS = ("eos", "eot", "eom")
# Keys that transformers does not take over and that change nothing: the shapes of the weights say them too, or another
# key that they only accompany.
_SIZES = re.compile(
    r"vocab_size|(attention\.)?(key|value)_length|rope\.dimension_count|expert.*_length|tensor_data_layout"
    r"|rope\.scaling\.(original_context_length|finetuned)|use_parallel_residual"
)
# How llama.cpp cuts a text before it merges bytes, by `tokenizer.ggml.pre`: digits one by one, then as GPT-2 does; or
# as GPT-2 does alone. transformers has a table of others, and takes GPT-2's rule for every name that it lacks.
_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"}


def gguf_metadata(name: str) -> dict[str, Any]:
    """Return the metadata of a GGUF file, whose arrays of texts are only counted. No weight is read. Raises
    ModelLoadError: no such file, a damaged one, one of several parts, an architecture that transformers does not read
    from GGUF, or too old a transformers.
    """
    check_gguf(Path(name))
    with _damage(name):
        status = Path(name).stat()
        metadata = dict(_read_metadata(name, status.st_mtime_ns, status.st_size))
    if metadata.get("split.count", 1) > 1:
        raise ModelLoadError(
            f"GGUF file {name} is one of {metadata['split.count']} parts of a model, which transformers reads as one "
            "file only: merge them first (llama-gguf-split --merge)."
        )
    from transformers.integrations import GGUF_CONFIG_MAPPING

    architecture, read = metadata["general.architecture"], (*GGUF_CONFIG_MAPPING, *_transformers().GGUF_CONFIG_ARCHS)
    known = {_bare(kind) for kind in read} - {"general", "tokenizer"}
    if _bare(architecture) not in known:
        raise ModelLoadError(
            f"GGUF file {name} has the architecture {architecture}, which transformers does not read from GGUF "
            f"({', '.join(sorted(known))} it does): give the folder or hub id of the original model."
        )
    return metadata


@lru_cache(maxsize=8)
def _read_metadata(name: str, *state: int) -> Mapping[str, Any]:
    """Read the metadata of a file in this state: a run asks for them some five times."""
    return _transformers().read_gguf_metadata(name)[0]


def stored_weights(metadata: Mapping[str, Any]) -> tuple[str, torch.dtype | None]:
    """Return in what form a file holds its weights ("Q4_1"), and their number format; None for quantised blocks. Raises
    ModelLoadError: the package gguf is not installed.
    """
    kind = metadata.get("general.file_type")
    try:
        name = _gguf().LlamaFileType(kind).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        name = "an unnamed form"
    return name, None if kind is None else _FLOATS.get(kind)


class GgufFile:
    """An open GGUF file. `folder` and `source` are how transformers' `from_pretrained` finds it; `dtype` is the number
    format for `dtype=auto`: its weights', or float32 where they are quantised blocks.
    """

    def __init__(self, name: str, metadata: dict[str, Any], reader: Any) -> None:
        path = Path(name)
        self.name, self.metadata, self._reader = name, metadata, reader
        self.folder, self.source = str(path.parent), {"gguf_file": path.name}
        self.dtype = stored_weights(metadata)[1] or torch.float32
        self.tensors = len(reader.tensors)

    def complete(self, config: Any) -> None:
        """Put into a configuration what transformers does not take over from the file: its end tokens, Llama 3's rope.
        Raises ModelLoadError: a value of the file that transformers would not compute with; tokens that the weights do
        not have.
        """
        ends = {self.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in _END_TOKENS}
        config.eos_token_id = sorted(ends - {None}) or None
        factors = next((tensor for tensor in self._reader.tensors if tensor.name == "rope_freqs.weight"), None)
        if factors is not None:
            self._llama3(config, torch.from_numpy(factors.data.copy()).double())
        for key in self._not_taken_over(config):
            raise ModelLoadError(
                f"GGUF file {self.name} has {key}={self.metadata[key]}, which transformers does not take over, so that "
                "it would compute another model: give the folder or hub id of the original model."
            )
        rows = next((int(each.shape[1]) for each in self._reader.tensors if each.name == "token_embd.weight"), 0)
        words = self.metadata.get("tokenizer.ggml.tokens", rows)
        if words != rows:
            raise ModelLoadError(
                f"GGUF file {self.name} is inconsistent: its tokenizer has {words} tokens and its weights are for "
                f"{rows}; get another conversion."
            )
        config.vocab_size = rows

    def settle(self, model: Any) -> None:
        """Make a model that was read from the file a plain one, under the file's name. Raises ModelLoadError: the file
        holds weights that the model does not.
        """
        held = sum(int(tensor.n_elements) for tensor in self._reader.tensors if tensor.name != "rope_freqs.weight")
        taken = sum({weight.data_ptr(): weight.numel() for weight in model.state_dict().values()}.values())
        if held > taken:
            raise ModelLoadError(
                f"GGUF file {self.name} holds {held - taken:,} numbers that transformers does not read from a file of "
                f"the architecture {self.metadata['general.architecture']}, so that it would compute another model: "
                "give the folder or hub id of the original model."
            )
        model.hf_quantizer.remove_quantization_config(model)  # the weights are dense now
        model.name_or_path = model.config.name_or_path = self.name
        _read_from[model] = self.metadata

    def _not_taken_over(self, config: Any) -> Iterator[str]:
        """Yield the keys of the architecture that change what is computed and do not reach the configuration."""
        from transformers.integrations import GGUF_CONFIG_MAPPING

        architecture = self.metadata["general.architecture"]
        kind = next((kind for kind in GGUF_CONFIG_MAPPING if _bare(kind) == _bare(architecture)), None)
        if kind is None or architecture in _transformers().GGUF_CONFIG_ARCHS:
            return  # transformers has a function of its own for each of these
        for key, value in self.metadata.items():
            group, _, rest = key.partition(".")
            last = rest.rpartition(".")[2]
            if group != architecture or rest in GGUF_CONFIG_MAPPING[kind] or _SIZES.fullmatch(rest):
                continue
            unbounded = last == "sliding_window" and value >= config.max_position_embeddings
            if not unbounded and value not in (0, 1, "none") and value != getattr(config, last, None):
                yield key

    def _llama3(self, config: Any, factors: torch.Tensor) -> None:
        """Set the rotary scaling of Llama 3.1 to 3.3 if frequencies are divided by these [D / 2]; refuse any other."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rope = {**config.rope_parameters, "rope_type": "llama3", "factor": float(factors.max())}
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        config.rope_parameters = rope
        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        steps = torch.arange(0, 2 * len(factors), 2, dtype=torch.float64) / (2 * len(factors))
        plain = rope["rope_theta"] ** -steps
        if len(frequencies) != len(factors) or not torch.allclose(plain / frequencies, factors, rtol=1e-3):
            raise ModelLoadError(
                f"GGUF file {self.name} scales its rotary embeddings (rope_freqs.weight) in another way than Llama 3, "
                "which transformers does not take over: give the folder or hub id of the original model."
            )


@contextmanager
def open_gguf(name: str) -> Iterator[GgufFile]:
    """Open a GGUF file, to be read by transformers within the block.

    transformers opens a file anew for the configuration and for the weights, reads its whole vocabulary each time, and
    makes a table of llama.cpp's names for every module. Here the file is opened and the table made once, and the
    vocabulary is for the tokenizer alone, which takes a file of 135 million weights from 19 s of a core to 7. Raises
    ModelLoadError: see `gguf_metadata`; the package gguf is not installed; a truncated file.
    """
    metadata, gguf = gguf_metadata(name), _gguf()
    from transformers import modeling_gguf_pytorch_utils as reading

    class Reader(gguf.GGUFReader):  # type: ignore[name-defined]
        """Reads a plain array, which is cut in a tenth of the time that a file in memory takes, and no vocabulary."""

        @property
        def data(self) -> Any:
            return self._array

        @data.setter
        def data(self, mapped: Any) -> None:
            self._mapped, self._array = mapped._mmap, mapped.view(np.ndarray)

        def each_once(self, tensors: list[Any], **_: Any) -> Iterator[Any]:
            """Yield all tensors, and let the pages of the file go behind each: they are not read again."""
            for tensor in tensors:
                yield tensor
                if hasattr(mmap, "MADV_DONTNEED"):  # Linux
                    self._mapped.madvise(mmap.MADV_DONTNEED)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            kind, size = gguf.GGUFValueType, self.gguf_scalar_to_np
            if raw_type == kind.ARRAY and self.byte_order == "I":
                of, length = int(self._get(orig_offs, np.uint32)[0]), int(self._get(orig_offs + 4, np.uint64)[0])
                place, raw = orig_offs + 12, memoryview(self._array)
                if length > _LONG and of in (kind.STRING, *size):
                    if of == kind.STRING:
                        for _ in range(length):
                            place += 8 + int.from_bytes(raw[place : place + 8], sys.byteorder)
                    else:
                        place += length * np.dtype(size[kind(of)]).itemsize
                    return place - orig_offs, [], [], [kind.ARRAY, kind(of)]
            return super()._get_field_parts(orig_offs, raw_type)

    with _damage(name):
        reader = Reader(name)
    for key in [key for key, field in reader.fields.items() if not field.data]:  # the vocabulary
        del reader.fields[key]
    with (
        replaced(gguf, GGUFReader=lambda path: reader, get_tensor_name_map=lru_cache(gguf.get_tensor_name_map)),
        replaced(reading, tqdm=reader.each_once),
    ):
        yield GgufFile(name, metadata, reader)


def load_gguf_tokenizer(name: str) -> Any:
    """Return the tokenizer of a GGUF file, with its chat template; None for a file without one. Raises ModelLoadError:
    a tokenizer of a kind that transformers does not read, or a damaged one.
    """
    metadata = gguf_metadata(name)
    kind = metadata.get("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab"):
        return None
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    with _damage(name):
        architecture, values, settings = _transformers().get_gguf_tokenizer(name)
        backend, _ = _transformers().convert_gguf_tokenizer(architecture, values)
        if kind == "gpt2" and metadata.get("tokenizer.ggml.pre") in _DIGITS:
            cuts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, name_or_path=name, **settings)
    if len(tokenizer) > len(values["tokens"]):
        raise ModelLoadError(
            f"GGUF file {name} names special tokens that its own vocabulary of {len(values['tokens'])} does not have; "
            "get another conversion."
        )
    return tokenizer


_read_from: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # metadata of the files, by model


def dequantised_form(model: Any) -> str | None:
    """Return the form of a model's weights in its GGUF file; None where they are as made, or from elsewhere."""
    metadata = _read_from.get(model)
    form, dtype = (None, None) if metadata is None else stored_weights(metadata)
    return form if dtype is None else None


def unknown_cuts(model: Any) -> str:
    """Return a sentence on the tokenizer of a model's GGUF file where transformers does not know how it cuts text."""
    metadata = _read_from.get(model) or {}
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return ""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    cuts = metadata.get("tokenizer.ggml.pre", "none")
    if cuts in {*_DIGITS, *_GPT2, *GGUF_PRE_TOKENIZER_SPLITS}:
        return ""
    return (
        f"The tokenizer of {model.name_or_path} names {cuts} as its rule of cutting text before bytes are merged, "
        "which is not known here: text is cut as for GPT-2, so that prompts may have other tokens than the model was "
        "trained on."
    )


def _gguf() -> ModuleType:
    try:
        import gguf
    except ImportError:
        raise ModelLoadError(
            "GGUF files are read with the package gguf, which is not installed: pip install 'gguf>=0.17,<1'"
        ) from None
    return gguf


def _transformers() -> ModuleType:
    """Return transformers' own reading of GGUF files."""
    from transformers import __version__
    from transformers.integrations import gguf

    if not hasattr(gguf, "convert_gguf_tokenizer"):
        raise ModelLoadError(
            f"GGUF files are read with transformers 5.24 or later, and this is {__version__}: update it."
        )
    return gguf


def _bare(architecture: str) -> str:
    """Return the name of an architecture as llama.cpp and transformers both have it: qwen2moe for qwen2_moe."""
    return re.sub("[-_]", "", architecture)


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn whatever a reader raises for a file that is cut short or is none into one sentence."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:  # numpy, struct, tokenizers and the readers raise some ten unrelated types here
        said = in_one_line(error)
        raise ModelLoadError(f"GGUF file {name} is damaged, cut short or not one ({said}): fetch it again.") from None

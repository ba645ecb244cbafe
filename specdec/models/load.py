"""Loads transformers models that can be trusted: safetensors or GGUF, no remote code, weights present and finite."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch

from specdec import hub
from specdec.errors import ModelLoadError, UsageError
from specdec.models import model_files
from specdec.models.arithmetic import ARITHMETIC, format_name, model_arithmetic
from specdec.models.gguf_model import load_gguf_tokenizer, open_gguf
from specdec.models.quantization import quantization_of, recorded_quantization
from specdec.models.spread import own_share
from specdec.text.writing import read_json

POCKET = "pocket"
Dtype = Literal["auto", "float64", "float32", "bfloat16", "float16"]
Kind = Literal["causal", "encoder_decoder"]  # registry name of the target that a model is for


def model_path(name: str, part: str = "target") -> str:
    """Return where a model lies: the folder of a pocket model that comes with specdec, the installed file of SmolLM2,
    the one GGUF file of a folder, or `name` itself (a folder, a GGUF file or a hub id), where a ~ stands for the user's
    own folder. Raises ModelLoadError: SmolLM2 is not installed, or a folder has several GGUF files.
    """
    if name == POCKET:
        return str(Path(__file__).resolve().parent.parent / "pocket" / part)
    if name == model_files.SMOLLM2:
        return model_files.installed_smollm2()
    path = Path(name).expanduser()
    return model_files.gguf_in(path) or (str(path) if name.startswith("~") else name)


def load_model(
    name: str,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    attention: str,
    kind: Kind | None = None,
    spread: Mapping[str, Any] | None = None,
    revision: str | None = None,
) -> Any:
    """Load a transformers model in evaluation mode.

    Args:
        name: a folder, a GGUF file or a hub id; files of the hub are taken from the local cache if it has them.
        dtype: None is the checkpoint's own where the device computes in it, else float32.
        attention: transformers' attention implementation, or "auto".
        kind: the only kind that is accepted; None accepts both.
        spread: how transformers lays the weights out over several devices (`models.spread`), or quantises them
            (`models.quantization`); None puts all on `device` as they are.
        revision: branch, tag or commit on the hub (see `check_revision`); None for the newest of the main branch.
    Raises:
        ModelLoadError: missing or truncated files, missing layers, mismatched shapes, NaN weights, remote code, a model
            of the wrong kind.
    """
    folder, held = Path(name), ExitStack()
    model_files.check_place(name, f"Model {name}")
    offline = "" if folder.exists() else hub.settle()  # before transformers asks it

    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    hub.quiet_loading()
    tensors = model_files.check_folder(folder) if folder.exists() and not model_files.is_gguf(name) else None
    try:
        file = held.enter_context(open_gguf(name)) if model_files.is_gguf(name) else None
        place, source = (name, {"revision": revision}) if file is None else (file.folder, file.source)
        config = AutoConfig.from_pretrained(place, **source, trust_remote_code=False)
        own_kind: Kind = "encoder_decoder" if config.is_encoder_decoder else "causal"
        if kind not in (None, own_kind):
            what = "an encoder-decoder" if config.is_encoder_decoder else "no encoder-decoder"
            raise ModelLoadError(f"Model {name} is {what} model ({config.model_type}): use it with target={own_kind}.")
        _check_layers(name, config, tensors if file is None else file.tensors)
        if file is not None:
            file.complete(config)
        if attention == "auto":
            attention = _attention_of(config)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        read = partial(
            auto.from_pretrained,
            place,
            **source,
            config=config,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below with the tensor's name; transformers points at a log
            **(spread or {}),
        )
        stored = config.dtype if file is None else file.dtype
        if dtype is None and not isinstance(stored, torch.dtype):
            stored = read(dtype="auto")[0].dtype  # this config does not say, its weights do
        arithmetic = model_arithmetic(dtype, stored if isinstance(stored, torch.dtype) else torch.float32, device)
        model, info = read(dtype=arithmetic.used)
        _check_weights(name, model, info)
        if file is not None:
            file.settle(model)
    except ModelLoadError:
        raise
    except Exception as error:  # transformers and safetensors raise some ten unrelated types here
        if offline:
            raise ModelLoadError(f"Model {name} cannot be loaded {hub.not_cached(name, offline)}") from None
        said = re.sub(r"For details look at .*?report!", "", " ".join(str(error).split())).strip()
        where = f"Model {name}" if folder.exists() else f"Model {name} is no folder here, and as a hub id it"
        raise ModelLoadError(f"{where} cannot be loaded: {said[:300]}") from None
    finally:
        held.close()
    ARITHMETIC[model] = arithmetic
    return (model if spread or quantization_of(model) else model.to(device)).eval().requires_grad_(False)


def _check_weights(name: str, model: Any, info: Mapping[str, Any]) -> None:
    """Refuse weights that are missing, not finite or of other shapes than the config's (by transformers' `info`)."""
    if info["missing_keys"]:
        some = ", ".join(sorted(str(key) for key in info["missing_keys"])[:3])
        raise ModelLoadError(
            f"Model {name} is incomplete: {len(info['missing_keys'])} missing keys ({some}); "
            "transformers would fill them with random weights; get the whole checkpoint."
        )
    for key, stored_shape, shape in sorted(info["mismatched_keys"], key=str):
        raise ModelLoadError(
            f"Model {name} does not fit its configuration: {key} is {list(stored_shape)} in the weights and "
            f"{list(shape)} by the config; get both from one checkpoint."
        )
    for key, weight in model.named_parameters():
        own = own_share(weight)
        if own is not None and not _finite(own):
            raise ModelLoadError(f"Model {name} is damaged: {key} holds NaN or infinite weights; fetch it again.")


def _finite(weight: torch.Tensor) -> bool:
    """Return True if no weight is NaN or infinite. Their sum tells it in one reading, unless it overflows."""
    if weight.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        wide = torch.promote_types(weight.dtype, torch.float32)
        if torch.isfinite(weight.sum(dtype=wide)):
            return True
    return bool(torch.isfinite(weight).all())


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """Load the model's tokenizer; None if the folder or the GGUF file has none, ModelLoadError if it is broken."""
    if model_files.is_gguf(name):
        return load_gguf_tokenizer(name)
    folder = Path(name)
    offline = "" if folder.exists() else hub.settle()

    from transformers import AutoTokenizer

    if folder.is_dir() and not model_files.has_tokenizer(folder):
        return None
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
    except Exception as error:
        if offline:
            raise ModelLoadError(f"The tokenizer of {name} cannot be loaded {hub.not_cached(name, offline)}") from None
        if folder.is_dir() and not model_files.has_vocabulary(folder):
            raise model_files.no_tokenizer(name) from None
        raise ModelLoadError(
            f"The tokenizer of {name} cannot be loaded: {' '.join(str(error).split())[:300]}"
        ) from None


def describe_model(model: Any, name: str) -> dict[str, Any]:
    """Describe a loaded model for the run's record: class, size, dtype (used and asked), attention, hash of weights."""
    arithmetic, quantized = ARITHMETIC.get(model), recorded_quantization(model)
    return {
        **describe_weights(model),
        "dtype": format_name(model.dtype),
        **({} if arithmetic is None else arithmetic.as_dict()),
        "attention": model.config._attn_implementation,
        "sha256": content_hash(name),
        "commit": getattr(model.config, "_commit_hash", None),
        **({} if quantized is None else {"quantization": quantized}),
        "training": recorded_training(name),
    }


def describe_weights(network: Any) -> dict[str, Any]:
    """Return the class of a torch module, the size of its weights, and the number format of the first of them."""
    weights = list(network.parameters())
    return {
        "class": type(network).__name__,
        "parameters": sum(weight.numel() for weight in weights),
        "weight_bytes": sum(weight.nbytes for weight in weights),
        "dtype": format_name(weights[0].dtype),
    }


def recorded_training(name: str) -> dict[str, float] | None:
    """Return tokens and seconds of a model's training if `specdec.train` left a summary beside it, else None."""
    folder = Path(name)
    for path in (folder.parent / "summary.json", folder.parent / f"summary_{folder.name}.json"):
        with suppress(ValueError, TypeError):  # somebody else's
            if (found := training_cost(read_json(path) or {})) is not None:
                return found
    return None


def training_cost(record: Mapping[str, Any]) -> dict[str, float] | None:
    """Return tokens and seconds of a trainer's record; None where it does not say them."""
    if not {"tokens", "seconds"} <= record.keys():
        return None
    return {name: float(record[name]) for name in ("tokens", "seconds")}


def content_hash(name: str) -> str:
    """Return the sha256 of a GGUF file or of a folder's safetensors files, sorted by name; "" for a hub id, whose
    commit is recorded. Files that have not changed since are not read again.
    """
    folder = Path(name)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder] if folder.is_file() else []
    stamps = [file.stat() for file in files]
    return _hash_of(tuple((file, stamp.st_size, stamp.st_mtime_ns) for file, stamp in zip(files, stamps, strict=True)))


@lru_cache(maxsize=16)
def _hash_of(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for file, _, _ in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)  # goes on with the same hash
    return digest.hexdigest() if files else ""


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; `auto` is the GPU where there is one. UsageError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"Bad value target.device={name!r}: it should be auto, cpu or cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"Bad value target.device={name!r}: no CUDA device is available; use target.device=cpu.")
    return device


def resolve_dtype(name: Dtype) -> torch.dtype | None:
    """Return the dtype of a name; None for "auto" (`load_model` says what that is)."""
    return None if name == "auto" else getattr(torch, name)


def _attention_of(config: Any) -> str:
    """Return the implementation of attention for a model: sdpa, except where the model needs eager."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

    if config.model_type == "gemma2":  # it caps its attention scores; only the eager implementation does that
        return "eager"
    models = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if config.is_encoder_decoder else MODEL_FOR_CAUSAL_LM_MAPPING
    kind = models[type(config)] if type(config) in models else None
    return "sdpa" if getattr(kind, "_supports_sdpa", True) else "eager"


def _check_layers(name: str, config: Any, tensors: int | None) -> None:
    """Refuse a number of layers that so many tensors cannot hold: transformers would first make them all."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if tensors is not None and isinstance(layers, int) and layers > tensors:
        raise ModelLoadError(
            f"Model {name} is incomplete: its configuration says {layers:,} layers, and its files hold {tensors} "
            "tensors; get the whole checkpoint."
        )

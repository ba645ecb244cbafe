"""Passes compiled for a CPU ahead of time, into packages that the next run loads within a second.

The pass is exported with the cache's buffers as inputs, and compiled by inductor with the settings that were fastest:
frozen weights, packed for products by C++ templates; q, k, v and gate, up as one product each; attention by a kernel of
ours. What calls it is C++ throughout. One package serves calls on one token, another one calls on any number from 2 on;
both serve every length of the prefix, and trees.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec.compiled.cache_attention import attention_by_kernel
from specdec.compiled.packages import PackageFolder, machine_identity, weights_hash
from specdec.models.cache import KVCache
from specdec.models.forward_pass import Pass, run_model
from specdec.models.masks import Masks

logger = logging.getLogger(__name__)

_VOLATILE = ("transformers_version", "name_or_path")
_FORMAT = 6  # changes whenever the passes below do
_SETTINGS: dict[str, Any] = {
    "freezing": True,
    "cpp.enable_concat_linear": True,
}
_TEMPLATES: dict[str, Any] = {
    "max_autotune_gemm": True,
    # The templates alone: they won most products in trials, and a comparison on a busy machine picks by chance.
    "max_autotune_gemm_backends": "CPP",
}
# Seconds that a package takes on a quiet AMD EPYC, beside the model's layers and for each of them; and about how many
# times as long as the export its compiling takes, on a busy machine too.
_COMPILED_S, _COMPILED_LAYER_S, _COMPILED_AN_EXPORT = 15.0, 2.5, 24.0
_EXAMPLE = (7, 40)  # tokens and prefix of the example call: sizes that occur nowhere else, as equal ones are merged


class PackagedStep:
    """A compiled pass that reads and writes one cache, whose buffers have to exist."""

    def __init__(self, package: Path, cache: KVCache, device: torch.device) -> None:
        loader: Any = torch._inductor.aoti_load_package(str(package)).loader
        self._run: Callable[[list[Tensor]], list[Tensor]] = loader.boxed_run
        self._cache, self._buffers = cache, _buffers(cache)
        self._offsets = torch.arange(cache.capacity, device=device)

    def __call__(self, tokens: Tensor, prefix: int, masks: Masks, offsets: Tensor | None = None) -> Pass:
        """Evaluate tokens [N].

        Args:
            offsets: [N] distances of the root and the nodes of a tree from its root; None for a chain.
        """
        size = len(tokens)
        places = (self._offsets[:size] if offsets is None else offsets) + prefix
        # Contiguous, because the strides of a view of the mask's buffer depend on the buffer.
        given = [
            tokens.unsqueeze(0),
            places.unsqueeze(0),
            *(mask.contiguous() for mask in masks.values()),
            *self._buffers,
        ]
        found = self._run(given)
        self._cache.length = prefix + size
        return Pass(found[0][0], found[1][0] if len(found) > 1 else None)


def packaged_step(
    model: Any,
    cache: KVCache,
    windows: Mapping[str, int | None],
    kept: Sequence[int],
    any_number: bool,
    packages: PackageFolder,
) -> PackagedStep:
    """Load the pass on one token, or on any number from 2 on, from the folder; compile it there first where it is new.

    Args:
        cache: has its buffers.
        windows: for each kind of attention layer, how many tokens back it sees; None for all.
        kept: layers whose states are wanted (see `run_model`).
    Raises:
        Exception: the pass cannot be exported or compiled; torch and the compiler raise some ten unrelated types.
    """
    buffers = _buffers(cache)
    # Less where it was read from and by what.
    config = {key: value for key, value in model.config.to_dict().items() if key[0] != "_" and key not in _VOLATILE}
    depends = {
        "format": _FORMAT,
        "settings": _settings(model.dtype),
        "model": {"class": type(model).__name__, "config": config, "weights": weights_hash(model)},
        "attention": model.config._attn_implementation,
        "shapes": {
            "tokens": "any" if any_number else 1,
            "windows": dict(windows),
            "kept": list(kept),
            "buffers": [(tuple(buffer.shape), str(buffer.dtype)) for buffer in buffers],
        },
        "machine": machine_identity(),
    }
    number = "any number of tokens" if any_number else "one token"
    name = f"{model.config.model_type}-{'any' if any_number else 'one'}"
    from specdec.progress import stage  # on demand: the GPU script runs where rich is not installed

    def make(path: Path) -> None:
        expected = _COMPILED_S + _COMPILED_LAYER_S * len(cache.layers)
        shorter = "target.compile=trace starts in seconds"
        with stage("Compile", f"calls on {number}", expected=expected, shorter=shorter) as under_way:

            def exported() -> None:
                under_way.expected = (1 + _COMPILED_AN_EXPORT) * under_way.elapsed

            _write_package(model, cache, tuple(windows), kept, any_number, path, exported)
        logger.info(
            "Compiled in %.0f s: %.0f MB; all packages in %s: %.0f MB, safe to delete.",
            under_way.elapsed,
            path.stat().st_size / 1e6,
            packages.path,
            (packages.size) / 1e6,
        )

    path = packages.package(name, depends, make)
    try:
        return PackagedStep(path, cache, model.device)
    except RuntimeError:  # a damaged file
        path.unlink(missing_ok=True)
        return PackagedStep(packages.package(name, depends, make), cache, model.device)


class _Exported(nn.Module):
    """The pass as a function of tensors alone: the cache's buffers are arguments, which it writes into."""

    def __init__(self, model: Any, cache: KVCache, kinds: Sequence[str], kept: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        # A cache for the time of the export: its layers will hold tensors without values.
        self._cache = KVCache(len(cache.layers), cache.capacity)
        self._kinds, self._kept = kinds, kept

    def forward(self, tokens: Tensor, places: Tensor, masks: list[Tensor], buffers: list[Tensor]) -> list[Tensor]:
        for index, layer in enumerate(self._cache.layers):
            layer.keys, layer.values = buffers[2 * index : 2 * index + 2]
            layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True
        self._cache.length = masks[0].shape[-1] - tokens.shape[-1]
        of_kinds = dict(zip(self._kinds, masks, strict=True))
        result = run_model(self.model, self._cache, self._kept, tokens, places, of_kinds)
        return [result.logits] if result.states is None else [result.logits, result.states]


def _write_package(
    model: Any,
    cache: KVCache,
    kinds: Sequence[str],
    kept: Sequence[int],
    any_number: bool,
    path: Path,
    exported: Callable[[], None],
) -> None:
    for name in ("attention_kernel", "dot_products"):  # kernels of ours, which inductor uses from their import on
        import_module(f"specdec.compiled.{name}")
    size, prefix = (_EXAMPLE[0] if any_number else 1), _EXAMPLE[1]
    dynamic = torch.export.Dim.DYNAMIC
    count = {1: dynamic} if any_number else None
    columns = {2: dynamic, 3: dynamic} if any_number else {3: dynamic}
    with torch.inference_mode(False), torch.no_grad(), attention_by_kernel(model):
        # New tensors, because those of the cache may be marked as made for inference, which cannot be exported.
        buffers = [torch.zeros(buffer.shape, dtype=buffer.dtype) for buffer in _buffers(cache)]
        places = torch.arange(size).unsqueeze(0)
        masks = [torch.zeros(1, 1, size, prefix + size, dtype=model.dtype) for _ in kinds]
        program = torch.export.export(
            _Exported(model, cache, kinds, kept),
            (places + 1, places + prefix, masks, buffers),
            dynamic_shapes=(count, count, [columns for _ in masks], [None for _ in buffers]),
            strict=False,
        )
        exported()
        settings = _settings(model.dtype)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)


def _settings(dtype: torch.dtype) -> dict[str, Any]:
    """Return inductor's settings; float64 has no templates."""
    return _SETTINGS | ({} if dtype == torch.float64 else _TEMPLATES)


def _buffers(cache: KVCache) -> list[Tensor]:
    return [buffer for layer in cache.layers for buffer in (layer.keys, layer.values)]

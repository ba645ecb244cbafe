"""Passes compiled for a CPU ahead of time: a program for a pass's head, for each kind of layer and for its tail.

A program holds no weight, so it serves every model of its shape, and is a file of a few megabytes that the next run
loads within a second. A pass serves every number of tokens, every length of the prefix, and trees.
"""

import logging
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from specdec.compiled.call_sequence import SOURCE, CallSequence, ProgramCall, write_sequence
from specdec.compiled.compiler_calls import two_at_a_time
from specdec.compiled.layers import Call, cut, made_of, product, with_tensors
from specdec.compiled.packages import PackageFolder, machine_identity
from specdec.compiled.weight_layout import lay_out
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass
from specdec.models.masks import Masks

logger = logging.getLogger(__name__)

_FORMAT = 10  # changes whenever the kernels do
# Operations between products stay on one thread: on few tokens there is too little of them to share.
_SETTINGS: dict[str, Any] = {"cpp.min_chunk_size": 1 << 20}
# Seconds on two cores of a Xeon that are not quite quiet: what torch's headers and its import take, and a program.
_ONCE_S, _PROGRAM_S = 12.0, 9.0


class CompilesLong(Exception):
    """Compiling would take longer than is allowed; the message is a clause."""


class PackagedStep:
    """A compiled pass on any number of tokens that reads and writes one cache."""

    def __init__(self, walk: CallSequence, calls: int, states: Sequence[str], cache: KVCache) -> None:
        """
        Args:
            calls: number of the calls of the walk; the last one makes the logits and nothing else.
            states: names of the values that are the states of the layers that are kept.
        """
        self._walk, self._calls, self._states, self._cache = walk, calls, states, cache

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Masks, unread: bool = False) -> Pass:
        """Evaluate tokens [N] at positions [N]; with `unread`, nobody reads the logits, which are then empty."""
        # Contiguous, because the strides of a view of the mask's buffer depend on the buffer.
        given = [tokens.contiguous(), positions, *(mask.contiguous() for mask in masks.values())]
        self._walk(given, self._calls - unread)
        self._cache.length = given[-1].shape[-1]
        logits = tokens.new_empty(0, 0) if unread else self._walk.take("logits")[0]
        states = [self._walk.take(name)[0] for name in self._states]
        return Pass(logits, None if not states else states[0] if len(states) == 1 else torch.cat(states, -1))


def making_s(decoder: Decoder, packages: PackageFolder) -> float:
    """Return the seconds that compiling a pass takes, as reckoned: none where one of its shape was made before."""
    if packages.recall(_shape(decoder)):
        return 0.0
    return _ONCE_S + _PROGRAM_S * (2 + len(decoder.windows))  # a head, a layer of each kind, a tail


def _shape(decoder: Decoder) -> dict[str, Any]:
    """Return what a pass depends on as far as it is known before it is cut."""
    weights = sorted({(str(each.dtype), *each.shape) for each in decoder.model.parameters()})  # whatever the depth
    return {"format": _FORMAT, "weights": weights, "windows": decoder.windows, "machine": machine_identity()}


def packaged_step(
    decoder: Decoder, cache: KVCache, packages: PackageFolder
) -> tuple[PackagedStep, Callable[[], None] | None]:
    """Load a decoder's pass over a cache, which has its buffers, from the folder: the calls that it is made of, and
    their programs. What is not there is made now.

    Returns:
        The pass, and what keeps its calls in the folder once they were found right; None where they are kept.
    Raises:
        CompilesLong: see `PackageFolder.seconds`.
        Exception: the pass cannot be cut, exported or compiled; torch and the compiler raise some ten unrelated types.
    """
    model, windows, kept = decoder.model, decoder.windows, decoder.kept
    with torch.inference_mode(False):
        lay_out(model)
    shape = _shape(decoder)
    depends = {**shape, "made of": made_of(model, kept)}
    calls: Sequence[tuple[str, Sequence[Any], Sequence[str]]] | None = packages.recall(depends)
    trust = None
    if calls is None or not all(packages.has(file) for file in {file for file, _, _ in calls}):
        made = cut(model, decoder.name, cache, windows, kept)
        files = _packages({id(call.program): call for call in made}, model.config.model_type, packages)
        calls = [(files[id(call.program)].name, call.inputs, call.outputs) for call in made]
        constants = any(not isinstance(each, str) for _, inputs, _ in calls for each in inputs)
        trust = partial(packages.remember, depends, None if constants else calls)
    library = packages.package("walk", {"source": SOURCE, "machine": machine_identity()}, write_sequence)
    opened = [
        ProgramCall(packages.path / file, with_tensors(model, cache, inputs), outputs)
        for file, inputs, outputs in calls
    ]
    walk = CallSequence(library, opened, list(windows), model.dtype)
    packages.remember(shape, True)
    layers = len(calls) - 2 - (0 in kept)
    states = ["states" if offset == 0 else f"states {layers - offset}" for offset in kept]
    return PackagedStep(walk, len(calls), states, cache), trust


def packaged_product(weight: Tensor, packages: PackageFolder) -> Callable[[Tensor, Tensor], Tensor]:
    """Load (vectors [..., D], weight [V, D]) -> their products [..., V], for weights of this shape, as `packaged_step`
    loads a pass.
    """
    file = _packages({0: product(weight)}, "output", packages)[0]
    program = torch._C._aoti.AOTIModelContainerRunnerCpu(str(file), 1)

    def multiply(vectors: Tensor, weight: Tensor) -> Tensor:
        (found,) = program.run([weight, vectors.reshape(1, -1, vectors.shape[-1]).contiguous()])
        return found.view(*vectors.shape[:-1], len(weight))

    return multiply


def _packages(programs: Mapping[int, Call], kind: str, packages: PackageFolder) -> dict[int, Path]:
    """Return the files of programs, by their keys; those that are new are compiled now.

    Raises:
        CompilesLong: that would take longer than the folder allows.
    """
    from specdec.progress import stage  # on demand: the GPU script runs where rich is not installed

    wanted = {key: (f"{kind}-{call.name}", _depends(call)) for key, call in programs.items()}
    new = [key for key, package in wanted.items() if packages.lacks(*package)]
    expected = _PROGRAM_S * len(new)
    if new and kind != "output":  # which is compiled behind a pass
        expected += _ONCE_S
    if expected > packages.seconds:
        raise CompilesLong(
            f"compiling takes about {expected:.0f} s, once, so calls are traced instead; target.compile=true compiles."
        )

    def file(key: int) -> Path:
        return packages.package(*wanted[key], lambda path: shutil.copyfile(compiled(programs[key].program), path))

    if new:
        what = "a drafter's output layer" if kind == "output" else "a layer of each kind"
        about, shorter = f"{what}, kept in {packages.path}", "target.compile=trace starts in seconds"
        with stage("Compile", about, len(new), expected=expected, shorter=shorter) as under_way:
            for key in new:
                file(key)
                under_way.advance()
        took, megabytes = under_way.elapsed, packages.size / 1e6
        logger.info("Compiled in %.0f s; all packages in %s: %.0f MB, safe to delete.", took, packages.path, megabytes)
    return {key: file(key) for key in wanted}


def _depends(call: Call) -> dict[str, Any]:
    """Return all that the machine code of a program depends on."""
    return {
        "format": _FORMAT,
        "settings": _SETTINGS,
        "code": call.program.code,
        "inputs": [(str(each.shape), str(each.stride()), str(each.dtype)) for each in _given(call.program)],
        "machine": machine_identity(),
    }


def compiled(program: GraphModule, **options: Any) -> str:
    """Compile an exported program, by further settings `options` of inductor, into a library whose path is returned."""
    # On demand, because inductor takes seconds to import: from then on it compiles both operations as kernels of ours.
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    from torch._inductor.exc import CppCompileError

    from specdec.compiled import attention_kernel, products_kernel  # noqa: F401

    def with_settings(**settings: Any) -> str:
        return str(torch._inductor.aot_compile(program, _given(program), options=_SETTINGS | options | settings))

    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(), two_at_a_time():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch of its own
        try:
            # inductor would first ask the compiler which of the processor's instructions it knows, for up to 15 s.
            return with_settings(**{"cpp.vec_isa_ok": True})
        except CppCompileError:
            valid_vec_isa_list.cache_clear()
            return with_settings()


def _given(program: GraphModule) -> tuple[Any, ...]:
    """Return the inputs of a program as they were in its example call."""
    return tuple(node.meta["val"] for node in program.graph.find_nodes(op="placeholder"))

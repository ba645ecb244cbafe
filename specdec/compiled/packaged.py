"""Passes compiled for a CPU ahead of time: a program for a pass's head, for each kind of layer and for its tail.

A program holds no weight, so it serves every model of its shape, and is a file of a few megabytes that the next run
loads within a second. A pass serves every number of tokens, every length of the prefix, and trees.
"""

import ctypes
import gc
import linecache
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.weak import WeakTensorKeyDictionary

from specdec.compiled.call_sequence import SOURCE, PackagedStep, torch_library, write_sequence
from specdec.compiled.layers import Call, cut, made_of, product, weights_cached, with_tensors
from specdec.compiled.packages import PackageFolder, machine_identity
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.replaced import replaced

logger = logging.getLogger(__name__)

_FORMAT = 16  # changes whenever the kernels do
# Operations between products stay on one thread: on few tokens there is too little of them to share.
_SETTINGS: dict[str, Any] = {"cpp.min_chunk_size": 1 << 20}
# Seconds on two cores of a Xeon that are not quite quiet: what torch's headers and its import take, and a program.
_ONCE_S, _PROGRAM_S = 12.0, 9.0
_LINE, _PAGE = 64, 2 << 20  # bytes
_HELD = 16 << 20  # bytes of freed weights that the C library may hold before it is asked to give them back
_LARGE = 64 << 20  # bytes of a weight that is not held twice
_HUGE_PAGES, _COLLAPSE = 14, 25  # as `madvise` of Linux calls them

_laid_at: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # the address of each weight that was laid out


class CompilesLong(Exception):
    """Compiling would take longer than is allowed; the message is a clause."""


def making_s(decoder: Decoder, packages: PackageFolder) -> float:
    """Return the seconds that compiling a pass takes, as reckoned: none where one of its shape was made before."""
    if packages.recall(_shape(decoder)):
        return 0.0
    return _ONCE_S + _PROGRAM_S * (2 + len(decoder.windows))  # a head, a layer of each kind, a tail


def _shape(decoder: Decoder) -> dict[str, Any]:
    """Return what a pass depends on as far as it is known before it is cut."""
    weights = sorted({(str(each.dtype), *each.shape) for each in decoder.model.parameters()})  # whatever the depth
    pairs = (decoder.layers % 2 == 0, any(decoder.kept))  # on which it depends whether two layers are a program
    known = {"weights": weights, "windows": decoder.windows, "pairs": pairs, "machine": machine_identity()}
    return {"format": _FORMAT, "cached": weights_cached(decoder.model.parameters()), **known}


def packaged_step(
    decoder: Decoder, cache: KVCache, packages: PackageFolder
) -> tuple[PackagedStep, Callable[[], None] | None]:
    """Load a decoder's pass over a cache, which has its buffers, from the folder: the calls that it is made of, and
    their programs. What is not there is made now. Return with it what keeps its calls in the folder once they were
    found right; None where they are kept.

    Raises CompilesLong (see `PackageFolder.seconds`), and any Exception where the pass cannot be cut, exported or
    compiled: torch and the compiler raise some ten unrelated types.
    """
    model = decoder.model
    with torch.inference_mode(False):
        lay_out(model)
    shape = _shape(decoder)
    depends = {**shape, "made of": made_of(model, decoder.kept)}
    calls: Sequence[tuple[str, Sequence[Any], Sequence[str]]] | None = packages.recall(depends)
    trust = None
    if calls is None or not all(packages.has(file) for file in {file for file, _, _ in calls}):
        made = cut(decoder, cache)
        files = _packages({id(call.program): call for call in made}, model.config.model_type, packages)
        calls = [(files[id(call.program)].name, call.inputs, call.outputs) for call in made]
        constants = any(not isinstance(each, str) for _, inputs, _ in calls for each in inputs)
        trust = partial(packages.remember, depends, None if constants else calls)
        del made
        _collect()
    library = packages.package("walk", {"source": SOURCE, "machine": machine_identity()}, write_sequence)
    opened = [
        Call(packages.path / file, with_tensors(model, cache, inputs), outputs) for file, inputs, outputs in calls
    ]
    step = PackagedStep(library, opened, decoder, cache)
    packages.remember(shape, True)
    return step, trust


def packaged_product(weight: Tensor, packages: PackageFolder) -> Callable[[Tensor, Tensor], Tensor]:
    """Load (vectors [..., D], weight [V, D]) -> products [..., V] for weights of this shape (see `packaged_step`)."""
    file = _packages({0: product(weight)}, "output", packages)[0]
    program = torch._C._aoti.AOTIModelContainerRunnerCpu(str(file), 1)

    def multiply(vectors: Tensor, weight: Tensor) -> Tensor:
        if not vectors.numel():  # by whose number the kernel divides
            return vectors.new_empty(*vectors.shape[:-1], len(weight))
        (found,) = program.run([weight, vectors.reshape(1, -1, vectors.shape[-1]).contiguous()])
        return found.view(*vectors.shape[:-1], len(weight))

    return multiply


def _packages(programs: Mapping[int, Call], kind: str, packages: PackageFolder) -> dict[int, Path]:
    """Return the files of programs, by their keys; those that are new are compiled now. Raises CompilesLong: that would
    take longer than the folder allows.
    """
    from specdec.progress import stage  # on demand: the GPU script runs where rich is not installed

    machine, wanted = machine_identity(), dict[int, tuple[str, dict[str, Any]]]()
    for key, call in programs.items():
        inputs = [(str(each.shape), str(each.stride()), str(each.dtype)) for each in _given(call.program)]
        depends = {"format": _FORMAT, "settings": _SETTINGS, "code": call.program.code, "inputs": inputs}
        wanted[key] = f"{kind}-{call.name}", depends | {"machine": machine}
    new = [key for key, package in wanted.items() if not packages.has(packages.file(*package))]
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
                _collect()  # of the export, then of the program before
                file(key)
                under_way.advance()
        took, megabytes = under_way.elapsed, packages.size / 1e6
        logger.info("Compiled in %.0f s; all packages in %s: %.0f MB, safe to delete.", took, packages.path, megabytes)
    return {key: file(key) for key in wanted}


def compiled(program: GraphModule, **options: Any) -> str:
    """Compile an exported program, by further settings `options` of inductor, into a library whose path is returned."""
    # On demand, because inductor takes seconds to import: from then on it compiles both operations as kernels of ours.
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    from torch._inductor.exc import CppCompileError
    from torch._inductor.fx_passes import joint_graph

    from specdec.compiled import attention_kernel, products_kernel  # noqa: F401

    def with_settings(**settings: Any) -> str:
        return str(torch._inductor.aot_compile(program, _given(program), options=_SETTINGS | options | settings))

    with (
        torch.inference_mode(False),
        torch.no_grad(),
        warnings.catch_warnings(),
        two_at_a_time(),
        replaced(joint_graph, lazy_init=lambda device: None),  # 15 MB of patterns, for training and unfused attention
    ):
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


@contextmanager
def two_at_a_time() -> Iterator[None]:
    """Have `torch._inductor.aot_compile` make a program's headers, and then its sources, side by side in this context:
    by itself torch makes one after another, on one core, of seven seconds each and eight for the longer source, on two
    cores of a Xeon. A torch that calls the compiler in another way still does.
    """
    from torch._inductor import codecache
    from torch._inductor.cpp_builder import CppBuilder

    build, precompile = CppBuilder.build, codecache._precompile_header
    sources = list[Future[None]]()

    def start(*call: Any, **options: Any) -> Future[Any]:
        return others.submit(copy_context().run, *call, **options)  # inductor's settings belong to a context

    def build_beside(builder: CppBuilder) -> None:
        file = builder.get_target_file_path()
        if file.endswith(".wrapper.o"):
            sources.append(start(build, builder))
            return
        if file.endswith(".so"):  # of which it is a part
            while sources:
                sources.pop().result()
        build(builder)

    def precompile_beside(header: str, command: str, **options: Any) -> str:
        other = codecache._get_cpp_prefix_header(options["device_type"])
        if other is not None and header != other:
            # torch asks for the other one next, waits for it then, and meets what goes wrong with it.
            start(precompile, other, command, **{key: options[key] for key in options if key != "min_optimize"})
        return precompile(header, command, **options)

    with (
        ThreadPoolExecutor(1) as others,
        replaced(CppBuilder, build=build_beside),
        replaced(codecache, _precompile_header=precompile_beside),
    ):
        yield


def lay_out(model: nn.Module) -> None:
    """Move all weights of a model on a CPU that were not moved yet, in their order, into one piece of memory in the
    largest pages that the system has. They stay the same objects. A call on one token reads all weights once, and from
    pieces in pages of 4 KB that takes up to half as long again, on a virtual machine: 135 million float32 weights 26 ms
    a call instead of 13.

    Each is freed when it was moved and given back to the system, and one too large to be held twice stays where it is
    if the system can make large pages there (Linux 6.1), so that no second copy of the model is held.
    """
    weights = [each for each in model.parameters() if _laid_at.get(each) != each.data_ptr() and each.is_contiguous()]
    _give_back()  # what loading the model has freed
    large = {each.data_ptr() for each in weights if each.nbytes > _LARGE and _advise(each, _COLLAPSE)}
    sizes = {(each.data_ptr(), each.nbytes): -(-each.nbytes // _LINE) * _LINE for each in weights}
    sizes = {key: size for key, size in sizes.items() if key[0] not in large}
    memory = torch.empty(sum(sizes.values()) + 2 * _PAGE, dtype=torch.uint8)
    _advise(memory, _HUGE_PAGES)
    place, freed = -memory.data_ptr() % _PAGE, 0
    moved = dict[tuple[int, int], Tensor]()  # several weights may share memory
    for weight in weights:
        key = (weight.data_ptr(), weight.nbytes)
        if key in sizes:
            if key not in moved:
                piece = memory[place : place + weight.nbytes].view(weight.dtype).view(weight.shape)
                moved[key] = piece.copy_(weight.data)
                place += sizes[key]
            weight.data = moved[key].view(weight.shape)
            freed += weight.nbytes
        _laid_at[weight] = weight.data_ptr()
        if freed > _HELD:
            _give_back()
            freed = 0
    _give_back()


def _advise(memory: Tensor, advice: int) -> bool:
    """Tell the system how the whole large pages of a tensor are to be held; return whether it did so."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    start, end = -(-memory.data_ptr() // _PAGE) * _PAGE, (memory.data_ptr() + memory.nbytes) // _PAGE * _PAGE
    return advise is not None and advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice) == 0


def _collect() -> None:
    """Give back what torch leaves of an export or a compilation: 25 MB in cycles, and the lines of its sources."""
    for name, (_, *time) in list(linecache.cache.items()):
        if time and time[0] is not None:  # a file, which is read again when its lines are wanted
            del linecache.cache[name]
    gc.collect()
    _give_back()


def _give_back() -> None:
    """Give memory that was freed, and what MKL keeps for its next products, back to the system."""
    if free := getattr(torch_library(), "mkl_serv_free_buffers", None):
        free()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(ctypes.c_size_t(0))

"""The calls of a compiled pass, made one after another in C: from Python, thirty calls of a layer cost a small model a
tenth of its time.
"""

import ctypes
import subprocess
import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from specdec.compiled.layers import Call
from specdec.models.arithmetic import format_name
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass
from specdec.models.masks import Masks

# A program takes its inputs away, so each is given as a new handle. The first values are tokens and places, [1, N]
# integers, and masks, [1, 1, N, S].
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

typedef void* tensor;
struct functions {
    int32_t (*copy)(tensor, tensor*);
    int32_t (*drop)(tensor);
    int32_t (*view)(
        const void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, tensor*
    );
};
typedef int32_t (*program)(void*, tensor*, size_t, tensor*, size_t, void*, void*);

int32_t walk(
    const struct functions* torch, const int64_t* calls, int64_t number, tensor* values, const void** given,
    int64_t masks, int32_t integer, int32_t floating, int64_t tokens, int64_t seen
) {
    const int64_t line[] = {1, tokens}, line_strides[] = {tokens, 1};
    const int64_t mask[] = {1, 1, tokens, seen}, mask_strides[] = {tokens * seen, tokens * seen, seen, 1};
    int32_t fault = 0;
    for (int64_t i = 0; i < 2; i++) {
        fault |= torch->view(given[i], 2, line, line_strides, 0, integer, 0, 0, values + i);
    }
    for (int64_t i = 2; i < masks + 2; i++) {
        fault |= torch->view(given[i], 4, mask, mask_strides, 0, floating, 0, 0, values + i);
    }
    for (; number > 0 && !fault; number--) {
        const program run = (program) calls[0];
        void* const instance = (void*) calls[1];
        const int64_t inputs = calls[2], outputs = calls[3];
        tensor input[inputs], output[outputs];
        calls += 4;
        for (int64_t i = 0; i < inputs; i++) {
            fault |= torch->copy(values[*calls++], input + i);
        }
        fault |= run(instance, input, inputs, output, outputs, NULL, NULL);
        for (int64_t i = 0; i < outputs && !fault; i++, calls++) {
            if (values[*calls]) {
                torch->drop(values[*calls]);
            }
            values[*calls] = output[i];
        }
    }
    for (int64_t i = 0; i < masks + 2; i++) {
        torch->drop(values[i]);
        values[i] = NULL;
    }
    return fault;
}
"""


class PackagedStep:
    """A decoder's pass on any number of tokens that reads and writes one cache: the calls of compiled programs, tensors
    that stay, and what the calls have made.
    """

    def __init__(self, library: Path, calls: Sequence[Call], decoder: Decoder, cache: KVCache) -> None:
        """Take the compiled walk (see `write_sequence`) and calls of files, with tensors in place of their names (see
        `with_tensors`); the last makes the logits and nothing else.
        """
        self._number, self._cache, kinds, kept = len(calls), cache, list(decoder.windows), decoder.kept
        layers = len(calls) - 2 - (0 in kept)
        self._states = ["states" if offset == 0 else f"states {layers - offset}" for offset in kept]
        names = ["tokens", "places", *kinds, *(name for call in calls for name in call.outputs)]
        tensors = [each for call in calls for each in call.inputs if isinstance(each, Tensor)]
        self._slots = {name: slot for slot, name in enumerate(names)}
        self._values = (ctypes.c_void_p * (len(names) + len(tensors)))()
        for slot, handle in enumerate(torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(tensors), len(names)):
            self._values[slot] = _address(handle, None)
        weakref.finalize(self, _drop, cast(Iterable[int | None], self._values))
        numbers, fixed = list[int](), iter(range(len(names), len(self._values)))
        for call in calls:
            numbers += (*_loaded(call.program), len(call.inputs), len(call.outputs))
            numbers += [self._slots[each] if isinstance(each, str) else next(fixed) for each in call.inputs]
            numbers += [self._slots[each] for each in call.outputs]
        self._calls = (ctypes.c_int64 * len(numbers))(*numbers)
        self._given = (ctypes.c_void_p * (2 + len(kinds)))()
        formats = ("int64", format_name(decoder.model.dtype))  # of tokens and places, and of masks
        types = [getattr(torch_library(), f"aoti_torch_dtype_{name}")() for name in formats]
        self._walk = ctypes.CDLL(str(library)).walk
        pointer, short, long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._walk.argtypes = (pointer, pointer, long, pointer, pointer, long, short, short, long, long)
        self._options = (len(kinds), *types)

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Masks, unread: bool = False) -> Pass:
        """Evaluate tokens [N] at positions [N]; with `unread`, nobody reads the logits, which are then empty. Raises
        RuntimeError: a program failed.
        """
        # Contiguous, because the strides of a view of the mask's buffer depend on the buffer.
        given = [tokens.contiguous(), positions, *(mask.contiguous() for mask in masks.values())]
        self._given[:] = [each.data_ptr() for each in given]
        number, sizes = self._number - unread, given[-1].shape[2:]
        if self._walk(_functions(), self._calls, number, self._values, self._given, *self._options, *sizes):
            raise RuntimeError("a compiled program failed")
        self._cache.length = given[-1].shape[-1]
        logits = tokens.new_empty(0, 0) if unread else self.take("logits")[0]
        states = [self.take(name)[0] for name in self._states]
        return Pass(logits, None if not states else states[0] if len(states) == 1 else torch.cat(states, -1))

    def take(self, name: str) -> Tensor:
        """Return a value that the last calls made, which is then gone."""
        slot = self._slots[name]
        address, self._values[slot] = self._values[slot], None
        # The function for a single handle never frees it, and so keeps every tensor that was taken (torch 2.13).
        (value,) = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([_capsule(address, None, None)])
        return value


def write_sequence(path: Path) -> None:
    """Compile the walk into a library."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    command = [get_cpp_compiler(), "-x", "c", "-O2", "-shared", "-fPIC", "-o", str(path), "-"]
    subprocess.run(command, input=SOURCE, text=True, check=True, capture_output=True)


_address, _capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
_address.argtypes, _address.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_capsule.argtypes, _capsule.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object


@cache
def torch_library() -> ctypes.CDLL:
    """Return torch's library for CPUs, opened for calls of its C functions."""
    return ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))


@cache
def _functions() -> Any:
    """Return the walk's `struct functions`, of three pointers."""
    names = ("new_tensor_handle", "delete_tensor_object", "create_tensor_from_blob")
    pointers = [ctypes.cast(getattr(torch_library(), f"aoti_torch_{name}"), ctypes.c_void_p) for name in names]
    return (ctypes.c_void_p * 3)(*pointers)


@cache
def _loaded(program: Path) -> tuple[int, int]:
    """Return the addresses of a program's function and of its instance, one of which serves all passes."""
    library, instance = ctypes.CDLL(str(program)), ctypes.c_void_p()
    if library.AOTInductorModelContainerCreateWithDevice(ctypes.byref(instance), ctypes.c_size_t(1), b"cpu", None):
        raise RuntimeError(f"{program.name} cannot be loaded")
    run = ctypes.cast(library.AOTInductorModelContainerRun, ctypes.c_void_p).value
    assert run is not None and instance.value is not None
    return run, instance.value


def _drop(values: Iterable[int | None]) -> None:
    drop = torch_library().aoti_torch_delete_tensor_object
    for value in values:
        if value:
            drop(ctypes.c_void_p(value))

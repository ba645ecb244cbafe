"""Torch's calls of the C++ compiler: those that do not wait for one another overlap, those that do come behind."""

import threading

import pytest
import torch
from torch._inductor import codecache
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.exc import CppCompileError

from specdec.compiled.compiler_calls import two_at_a_time
from specdec.compiled.layers import product
from specdec.compiled.packaged import compiled


class Builder(CppBuilder):
    """A call of the compiler that makes a file of this name."""

    def __init__(self, file: str) -> None:
        self.file = file

    def get_target_file_path(self) -> str:
        return self.file


def test_the_sources_of_a_program_are_compiled_side_by_side(monkeypatch):
    both, made = threading.Barrier(2, timeout=30), []

    def build(builder):
        if builder.file.endswith(".o"):
            both.wait()  # one after another, the first would wait in vain
        made.append(builder.file)

    monkeypatch.setattr(CppBuilder, "build", build)
    with two_at_a_time():
        for file in ("a.wrapper.o", "a.kernel.o", "a.so"):
            Builder(file).build()
    assert sorted(made[:2]) == ["a.kernel.o", "a.wrapper.o"] and made[2:] == ["a.so"]
    assert CppBuilder.build is build


def test_what_a_compiler_says_of_a_source_is_raised_before_it_is_linked(monkeypatch):
    made = []

    def build(builder):
        if builder.file == "a.wrapper.o":
            raise RuntimeError("no such instruction")
        made.append(builder.file)

    monkeypatch.setattr(CppBuilder, "build", build)
    with pytest.raises(RuntimeError, match="no such instruction"), two_at_a_time():
        for file in ("a.wrapper.o", "a.kernel.o", "a.so"):
            Builder(file).build()
    assert made == ["a.kernel.o"]


def test_the_headers_of_both_sources_are_made_side_by_side(monkeypatch):
    both, asked = threading.Barrier(2, timeout=30), []

    def precompile(header, command, **options):
        asked.append((header, command, options))
        if len(asked) < 3:
            both.wait()
        return header

    monkeypatch.setattr(codecache, "_precompile_header", precompile)
    options = {"device_type": "cpu", "aot_mode": True}
    of_kernels = codecache._get_cpp_prefix_header("cpu")
    with two_at_a_time():
        assert codecache._precompile_header("wrapper.h", "command", min_optimize=True, **options) == "wrapper.h"
        codecache._precompile_header(of_kernels, "command", **options)
    assert asked[2] == (of_kernels, "command", options) and asked[2] in asked[:2]


def test_a_compiler_older_than_the_processor_is_asked_what_it_knows_once_it_fails(monkeypatch):
    asked = []

    def aot_compile(program, given, options):
        asked.append(options.get("cpp.vec_isa_ok"))
        if asked == [True]:
            raise CppCompileError(["g++"], "unrecognized option")
        return "library"

    monkeypatch.setattr(torch._inductor, "aot_compile", aot_compile)
    assert compiled(product(torch.ones(4, 2)).program) == "library" and asked == [True, None]

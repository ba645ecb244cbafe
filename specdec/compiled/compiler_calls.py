"""The C++ compiler at work on two files at a time: torch has it make one after another, on one core.

A program is two sources, and the first one on a machine needs two precompiled headers besides: seven seconds each, and
eight for the longer source, on two cores of a Xeon.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from specdec.replaced import replaced


@contextmanager
def two_at_a_time() -> Iterator[None]:
    """Have `torch._inductor.aot_compile` make a program's headers, and then its sources, side by side in this context.

    A torch that calls the compiler in another way makes them one after another.
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

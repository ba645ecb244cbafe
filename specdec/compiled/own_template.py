"""C++ kernels of ours within inductor's programs."""

from typing import Any

import torch._inductor.compile_fx  # noqa: F401, first because inductor's modules import each other
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.cpp_template import CppTemplate


class OwnTemplate(CppTemplate):
    """A kernel that computes one operation and nothing behind it."""


_fuses = CppScheduling.can_fuse_vertical


def _can_fuse(scheduling: Any, node1: Any, node2: Any) -> bool:
    # Inductor would leave an operation behind a kernel to its template, and ours do not write one.
    return not isinstance(getattr(node1.node, "template", None), OwnTemplate) and _fuses(scheduling, node1, node2)


# From the import of this module on.
CppScheduling.can_fuse_vertical = _can_fuse  # type: ignore[method-assign]

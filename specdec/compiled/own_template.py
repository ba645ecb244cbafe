"""C++ kernels of ours within inductor's programs."""

from collections.abc import Sequence
from typing import Any

import torch
import torch._inductor.compile_fx  # noqa: F401, first because inductor's modules import each other
from torch._inductor import ir
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.cpp_template import CppTemplate
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP


class OwnTemplate(CppTemplate):
    """A kernel that computes one operation and nothing behind it."""

    def __init__(self, name: str, code: str, nodes: Sequence[Any], size: Sequence[Any], **values: Any) -> None:
        """Take a template of jinja, where `output` is the result's node, `number` the type in which sums are made, and
        `values` further names; the inputs, in memory, the first of which has the result's type; and the result's size.
        """
        layout = ir.FixedLayout(nodes[0].get_device_or_error(), nodes[0].get_dtype(), list(size))
        super().__init__(name, list(nodes), layout, torch.get_num_threads())
        self._code, self._values = code, values

    def render(self, **given: Any) -> str:
        """Return the code, with names in place of the nodes that inductor gives."""
        double = self.layout.dtype == torch.float64
        return self._template_from_string(self._code).render(
            template=self,
            kernel=given["kernel"],
            output=given.get("template_buffer_node") or self.output_node,
            number=DTYPE_TO_CPP[torch.float64 if double else torch.float32],
            threads=self.num_threads,
            **self._values,
        )


_fuses = CppScheduling.can_fuse_vertical


def _can_fuse(scheduling: Any, node1: Any, node2: Any) -> bool:
    # Inductor would leave an operation behind a kernel to its template, and ours do not write one.
    return not isinstance(getattr(node1.node, "template", None), OwnTemplate) and _fuses(scheduling, node1, node2)


# From the import of this module on.
CppScheduling.can_fuse_vertical = _can_fuse  # type: ignore[method-assign]

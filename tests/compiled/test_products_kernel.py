"""Products of a few tokens with weights as they lie in the model: the operation, and the kernel that programs have."""

import pytest
import torch
from torch import nn

from specdec.compiled import few_products, products_kernel
from specdec.compiled.packaged import compiled

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TOKENS = (1, 2, 5, 8, 9, 17, products_kernel.FEW, products_kernel.FEW + 1)


class TwoOfEach(nn.Module):
    """Two products of the same tokens, one with a number of rows that four does not divide, and one behind them."""

    def __init__(self, width, bias):
        super().__init__()
        self.one, self.other = nn.Linear(width, 36, bias=bias), nn.Linear(width, 27, bias=bias)
        self.last = nn.Linear(27, width, bias=False)

    def forward(self, tokens):
        return self.one(tokens) * 2, self.last(self.other(tokens).relu())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width", "bias", "threads", "options"),
    [(torch.bfloat16, 70, True, 7, {}), (torch.float16, 4096, False, 2, {"cpp.simdlen": 256})],
    ids=["parts of vectors, many threads", "shorter vectors"],
)
@torch.no_grad()
def test_the_kernel_gives_linear_products(dtype, width, bias, threads, options):
    """In float32 it is held against plain modules in `test_packaged.py`, as it is wherever a pass is compiled."""
    torch.manual_seed(4)
    model = TwoOfEach(width, bias).to(dtype).requires_grad_(False)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        example = torch.randn(1, 3, width, dtype=dtype)
        program = torch.export.export(model, (example,), dynamic_shapes=({1: torch.export.Dim.DYNAMIC},), strict=False)
        graph = program.graph_module
        few_products.use_products(graph)
        assert graph.code.count("specdec.products") == 2 and "linear" not in graph.code
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(compiled(graph, **options), 1)
        for count in TOKENS:
            tokens = torch.randn(1, count, width, dtype=dtype)
            found = runner.run([*model.state_dict().values(), tokens])
            wanted = model.double()(tokens.double())
            model.to(dtype)
            for each, right in zip(found, wanted, strict=True):
                assert each.dtype == dtype
                assert (each - right).abs().max() < TOLERANCES[dtype] * right.abs().max().clamp_min(1)
    finally:
        torch.set_num_threads(before)

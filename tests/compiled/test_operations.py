"""Operations of ours, and the kernels that packages have in their place: attention of a few tokens over a cache, and
products of a few tokens with weights as they lie in the model.

In float32 both kernels are also held against plain modules in `test_packaged.py`, as wherever a pass is compiled.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from specdec.compiled import products_kernel
from specdec.compiled.operations import attend, cache_attention, use_products
from specdec.compiled.packaged import compiled

SCALING = 0.3
TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Tokens and keys: less than a vector, one block of keys, blocks and rows with something left.
SIZES = ((2, 2), (3, 7), (5, 40), (8, 64), (17, 33), (9, 130))
CAPACITY = 160
TOKENS = (1, 2, 5, 8, 9, 12, 17, products_kernel.FEW, products_kernel.FEW + 1)


@pytest.fixture
def threads():
    """`threads(7)` has torch compute on so many threads until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def given(tokens, keys, heads, groups, head, value, dtype, least=None):
    """A query, keys and values as views of longer buffers, and a mask that hides two of five keys, but never the last:
    by the least number of the type, or by another one.
    """
    query = torch.randn(1, heads, tokens, head).to(dtype)
    key, value = (torch.randn(1, groups, CAPACITY, size).to(dtype)[:, :, :keys] for size in (head, value))
    hidden = (torch.rand(tokens, keys) < 0.4) & (torch.arange(keys) < keys - 1)
    hidden[0, : keys - 1] = True
    mask = torch.zeros(1, 1, tokens, keys, dtype=dtype)
    return query, key, value, mask.masked_fill(hidden, torch.finfo(dtype).min if least is None else least)


def expected(query, key, value, mask, scaling):
    query, key, value, mask = (each.double() for each in (query, key, value, mask))
    return scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scaling", [None, SCALING])
def test_the_operation_is_attention(dtype, scaling):
    torch.manual_seed(0)
    tensors = given(3, 11, 4, 2, 8, 6, dtype)
    found, _ = attend(nn.Module(), *tensors, **({} if scaling is None else {"scaling": scaling}))
    assert found.dtype == dtype and found.shape == (1, 3, 4, 6)
    assert (found - expected(*tensors, scaling)).abs().max() < TOLERANCES[dtype]


def test_without_a_mask_for_all_heads_it_is_that_of_transformers():
    torch.manual_seed(0)
    query, key, value, mask = given(3, 11, 4, 4, 8, 6, torch.float64)
    of_heads = mask + torch.rand(1, 4, 3, 11)
    for each in (None, of_heads):
        found, _ = attend(nn.Module(), query, key, value, each, is_causal=False)
        right = scaled_dot_product_attention(query, key, value, each).transpose(1, 2)
        assert (found - right).abs().max() < TOLERANCES[torch.float64]


class Halved(nn.Module):
    """Attention over the first keys of buffers, with values that lie column by column, followed by what inductor could
    take into the kernel; of two layers in one program.
    """

    def forward(self, *tensors):
        return [self.of_layer(*tensors[:4]), self.of_layer(*tensors[4:])]

    def of_layer(self, query, key, value, mask):
        keys = mask.shape[-1]
        value = value[:, :, :keys].mT.contiguous().mT
        return cache_attention(query + 0, key[:, :, :keys], value, mask, SCALING) / 2


@pytest.mark.slow
@torch.no_grad()
def test_the_kernel_is_attention(threads):
    """With more threads than keys, and vectors that are whole or not; shorter ones are those of the products."""
    torch.manual_seed(0)
    layers = [(4, 2, 64, 72, torch.bfloat16), (4, 1, 20, 12, torch.float16)]  # heads, groups, head, value
    threads(7)
    example, dynamic = [], []
    for layer in layers:
        query, key, values, mask = given(5, CAPACITY, *layer)
        length, number = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
        dynamic += [{2: number}, None, None, {2: number, 3: length}]
        example += [query, key, values, mask[..., : CAPACITY - 1].contiguous()]
    program = torch.export.export(Halved(), tuple(example), dynamic_shapes=(tuple(dynamic),), strict=False)
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(compiled(program.graph_module), 1)
    for tokens, keys in SIZES:
        for least in (None, -torch.inf):
            tensors = [given(tokens, keys, *layer, least) for layer in layers]
            whole = []
            for query, key, values, mask in tensors:
                shape = (1, key.shape[1], CAPACITY)
                whole += [query, *(each.as_strided((*shape, each.shape[3]), each.stride()) for each in (key, values))]
                whole.append(mask)
            for found, (heads, _, _, value, dtype), each in zip(runner.run(whole), layers, tensors, strict=True):
                assert found.dtype == dtype and found.shape == (1, tokens, heads, value)
                assert (found - expected(*each, SCALING) / 2).abs().max() < TOLERANCES[dtype]


class TwoOfEach(nn.Module):
    """Two products of the same tokens, with numbers of rows that 16 does not divide and one that four does not, and one
    behind them.
    """

    def __init__(self, width, bias):
        super().__init__()
        self.one, self.other = nn.Linear(width, 100, bias=bias), nn.Linear(width, 27, bias=bias)
        self.last = nn.Linear(27, width, bias=False)

    def forward(self, tokens):
        return self.one(tokens) * 2, self.last(self.other(tokens).relu())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width", "bias", "number", "cached", "options"),
    [
        (torch.bfloat16, 70, True, 7, True, {}),
        (torch.bfloat16, 96, True, 1, False, {}),
        (torch.float16, 4096, False, 2, True, {"cpp.simdlen": 256}),
        (torch.float32, 70, True, 2, False, {}),
    ],
    ids=["parts of vectors, many threads", "tiles of AMX where there is one", "shorter vectors", "twelve at a time"],
)
@torch.no_grad()
def test_the_kernel_gives_linear_products(threads, dtype, width, bias, number, cached, options):
    torch.manual_seed(4)
    model = TwoOfEach(width, bias).to(dtype).requires_grad_(False)
    threads(number)
    example = torch.randn(1, 3, width, dtype=dtype)
    program = torch.export.export(model, (example,), dynamic_shapes=({1: torch.export.Dim.DYNAMIC},), strict=False)
    graph = program.graph_module
    use_products(graph, cached)
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

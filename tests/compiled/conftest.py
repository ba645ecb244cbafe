"""A traced model that is held against the plain one."""

from copy import deepcopy

import pytest
import torch

from specdec.compiled.passes import compile_decoder
from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree


@pytest.fixture
def traced_opt(tiny_model):
    """`traced_opt(dtype)`: a traced decoder of an OPT, which has biases. It returns the bits of the plain one, for
    chains of several lengths and a tree; weights are read and not written.
    """

    @torch.inference_mode()
    def make(dtype):
        model = deepcopy(tiny_model("opt")).to(dtype)
        plain, traced = Decoder(deepcopy(model), "opt", 512), Decoder(model, "opt", 512)
        compile_decoder(traced, {1, 5}, 120, "trace")
        for decoder in (plain, traced):
            decoder.start(list(range(3, 20)), 120)
        for tree in (chain_tree(0), chain_tree(4), Tree((-1, -1, 0, 1)), chain_tree(70)):
            roots = torch.arange(len(tree) + 1) % 50 + 3
            assert torch.equal(plain.forward(roots, tree), traced.forward(roots, tree))
            plain.length = traced.length = 16
        return traced, [module for module in model.modules() if isinstance(module, torch.nn.Linear)]

    return make

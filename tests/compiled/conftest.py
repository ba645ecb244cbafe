"""Fixtures of the tests of models."""

from collections.abc import Callable

import pytest
import torch

from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree


@pytest.fixture
def check_same_bits() -> Callable[[Decoder, Decoder], None]:
    """A check that two decoders of one model return the same bits, for chains of several lengths and a tree."""

    @torch.inference_mode()
    def check(one: Decoder, other: Decoder) -> None:
        for decoder in (one, other):
            decoder.start(list(range(3, 20)), 120)
        for tree in (chain_tree(0), chain_tree(4), Tree((-1, -1, 0, 1)), chain_tree(70)):
            roots = torch.arange(len(tree) + 1) % 50 + 3
            assert torch.equal(one.forward(roots, tree), other.forward(roots, tree))
            one.length = other.length = 16

    return check

"""Masks against the definition: a token sees the prefix, its ancestors and itself, within its window or its chunk."""

import pytest
import torch

from specdec.models import masks
from specdec.models.masks import AttentionChunk, MaskBuffers
from specdec.records import Tree, chain_tree

HIDDEN = torch.finfo(torch.float64).min
LARGE, AS_LARGE = Tree((-1, 0, 1, -1, 3, 0)), Tree((-1, 0, 0, -1, 3, 3))
TREES = [chain_tree(0), chain_tree(1), chain_tree(5), Tree((-1, -1)), LARGE, AS_LARGE, LARGE, chain_tree(6)]


def made(window: int | None) -> MaskBuffers:
    """The buffers of a model with one kind of layers."""
    return MaskBuffers({"full_attention": window}, torch.float64, torch.device("cpu"))


def view(buffers: MaskBuffers, *given) -> torch.Tensor:
    return buffers.view(*given)["full_attention"]


def defined(tree: Tree, prefix: int, window: int | None) -> torch.Tensor:
    rows = len(tree) + 1
    mask = torch.full((1, 1, rows, prefix + rows), HIDDEN, dtype=torch.float64)
    for row in range(rows):
        seen = [0, *(node + 1 for node in tree.path(row - 1))]
        place = prefix + int(tree.offsets[row])
        own = [(prefix + index, prefix + int(tree.offsets[index])) for index in seen]
        for column, key in [*((slot, slot) for slot in range(prefix)), *own]:
            if window is None or (
                key // window == place // window if isinstance(window, AttentionChunk) else place - key < window
            ):
                mask[0, 0, row, column] = 0
    return mask


CHUNKS = [pytest.param(AttentionChunk(size), id=f"chunk_{size}") for size in (1, 3, 7)]


@pytest.mark.parametrize("window", [None, 1, 7, 1000, *CHUNKS])
def test_a_mask_is_what_its_definition_says(window):
    """Chains and trees of changing sizes in turn: no draft leaves anything of itself in the next one's mask."""
    ours = made(window)
    for capacity, prefix in ((40, 9), (40, 0), (40, 33), (300, 9), (300, 200)):
        for tree in TREES:
            assert torch.equal(view(ours, tree, prefix, capacity), defined(tree, prefix, window)), (prefix, tree)


def test_buffers_are_few_and_none_is_kept_for_a_long_prefill():
    ours, tree = made(None), chain_tree(100)
    assert torch.equal(view(ours, tree, 20, 150), defined(tree, 20, None))
    assert not ours._buffers
    for capacity in range(1, 100 * 512, 512):
        view(ours, chain_tree(2), 0, capacity)
    assert 0 < len(ours._buffers) <= masks._KEPT


def test_changing_trees_share_a_buffer_and_an_unchanged_one_is_not_written_again(monkeypatch):
    written = []
    write = masks._Buffer._write
    monkeypatch.setattr(masks._Buffer, "_write", lambda buffer, tree: written.append(tree) or write(buffer, tree))
    ours = made(None)
    first, second = Tree((-1, 0, 0, 1)), Tree((-1, 0, 1, -1, -1))
    addresses = {view(ours, tree, 5, 100)[..., -1:].data_ptr() for tree in (first, first, Tree((-1, 0, 0, 1)))}
    assert len(addresses) == 1 and written == [first]
    for prefix in (5, 9):
        view(ours, second, prefix, 100 + prefix)
        view(ours, chain_tree(4), prefix, 100)
    assert written == [first, second] and len(ours._buffers) == 2, "one for chains, one for trees of up to 8 rows"


def test_rows_of_one_size_are_equally_long_at_every_call():
    """What compiled passes were made for, whatever tree was seen before."""
    ours = made(None)
    strides = {view(ours, tree, prefix, 512).stride() for prefix in (3, 90) for tree in (*TREES[4:7], chain_tree(6))}
    assert len({stride[2] for stride in strides}) == 1


def test_a_buffer_made_in_inference_mode_can_be_written_outside():
    ours = made(None)
    with torch.inference_mode():
        view(ours, Tree((-1, -1)), 3, 10)
    assert torch.equal(view(ours, Tree((-1, 0, 0)), 3, 10), defined(Tree((-1, 0, 0)), 3, None))

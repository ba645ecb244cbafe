"""The preallocated cache: writing, forgetting, moving a path, batching rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.kv_cache import KVCache

HEADS, SIZE = 2, 3


def rows(start, count, batch=1):
    """Recognisable keys [B, H, n, size]: row i holds i; values hold -i."""
    keys = torch.arange(start, start + count, dtype=torch.float64).view(1, 1, -1, 1).expand(batch, HEADS, count, SIZE)
    return keys, -keys


def filled(length, capacity=16, layers=2):
    cache = KVCache(layers, capacity)
    for layer in range(layers):
        cache.update(*rows(0, length), layer)
    return cache


def held(cache, layer=0):
    stored = cache.layers[layer]
    assert (stored.values[:, :, : stored.length] == -stored.keys[:, :, : stored.length]).all()
    return stored.keys[0, 0, : stored.length, 0].tolist()


def test_update_returns_all_rows_so_far():
    cache = filled(3)
    keys, values = cache.update(*rows(3, 2), 0)
    assert keys.shape == (1, HEADS, 5, SIZE) and keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(values, -keys)
    assert cache.layers[1].length == 3, "layers are written one after the other"


def test_writing_never_reallocates():
    cache = filled(1)
    address = cache.layers[0].keys.data_ptr()
    for row in range(1, 16):
        keys, _ = cache.update(*rows(row, 1), 0)
        assert keys.data_ptr() == address
    assert held(cache) == list(range(16))


def test_more_than_the_capacity_is_an_error():
    cache = filled(15)
    with pytest.raises(IndexError, match="holds 16 rows, 17 were written"):
        cache.update(*rows(15, 2), 0)


def test_free_rows_are_zero():
    """Attention multiplies masked rows by 0, and 0 * NaN would be NaN."""
    layer = filled(4).layers[0]
    assert (layer.keys[:, :, 4:] == 0).all() and (layer.values[:, :, 4:] == 0).all()


def test_forgetting_is_setting_a_length():
    cache = filled(6)
    cache.length = 4
    assert cache.length == 4 and held(cache) == held(cache, 1) == [0, 1, 2, 3]
    cache.update(*rows(9, 1), 0)
    assert held(cache) == [0, 1, 2, 3, 9]


@given(st.integers(0, 5), st.integers(0, 8), st.data())
@settings(max_examples=80)
def test_commit_keeps_the_prefix_and_the_path(prefix, nodes, data):
    cache = filled(prefix + nodes)
    path = sorted(data.draw(st.sets(st.integers(prefix, prefix + nodes - 1)))) if nodes else []
    addresses = [layer.keys.data_ptr() for layer in cache.layers] if prefix + nodes else []
    cache.commit(prefix, path)
    assert held(cache) == held(cache, 1) == [*range(prefix), *path]
    assert addresses == ([layer.keys.data_ptr() for layer in cache.layers] if prefix + nodes else [])


def test_commit_with_overlapping_moves():
    """Rows 4..7 move to 3..6: each target but one is itself a source."""
    cache = filled(9)
    cache.commit(3, [4, 5, 6, 7])
    assert held(cache) == [0, 1, 2, 4, 5, 6, 7]


def test_commit_of_a_cache_that_was_never_written():
    cache = KVCache(2, 8)
    cache.commit(0, [])
    assert cache.length == 0


def test_sizes_that_transformers_asks_for():
    cache = filled(5)
    layer = cache.layers[0]
    assert layer.get_seq_length() == cache.get_seq_length() == 5
    assert layer.get_mask_sizes(3) == (8, 0)
    assert layer.get_max_length() == layer.get_max_cache_shape() == cache.capacity == 16


def test_broadcast_then_keep_one_row():
    cache = filled(3)
    cache.broadcast(4)
    assert cache.layers[0].keys.shape[0] == 4
    keys = torch.arange(4, dtype=torch.float64).view(4, 1, 1, 1).expand(4, HEADS, 1, SIZE) + 10
    for layer in range(2):
        cache.update(keys, -keys, layer)
    cache.keep(2)
    assert held(cache) == held(cache, 1) == [0, 1, 2, 12]
    cache.update(*rows(13, 1), 0)
    assert held(cache) == [0, 1, 2, 12, 13], "it grows on as a single text"


def test_bytes_are_those_of_the_capacity():
    assert KVCache(2, 16).nbytes() == 0, "nothing is reserved before the first write"
    assert filled(3).nbytes() == 2 * 2 * HEADS * 16 * SIZE * 8


def test_keys_and_values_may_differ_in_size():
    cache = KVCache(1, 4)
    keys, values = cache.update(torch.ones(1, 4, 2, 6), torch.ones(1, 1, 2, 3), 0)
    assert keys.shape == (1, 4, 2, 6) and values.shape == (1, 1, 2, 3)

"""The preallocated cache: writing, forgetting, moving a path, copies for batches."""

from inspect import signature

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.models.cache import CACHE, KVCache, cache_name

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
    with pytest.raises(IndexError, match="has 16 slots, 17 were written"):
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


def copies_of(length, copies, capacity=16, layers=2):
    """A text written once and broadcast."""
    cache = KVCache(layers, capacity, copies)
    for layer in range(layers):
        cache.update(*rows(0, length), layer)
    cache.broadcast()
    return cache


def held_by(cache, layer=0):
    """What every copy in use holds."""
    stored = cache.layers[layer]
    kept = slice(0, stored.length)
    assert (stored.values[: cache.copies, :, kept] == -stored.keys[: cache.copies, :, kept]).all()
    return stored.keys[: cache.copies, 0, kept, 0].tolist()


def write_batch(cache, batch, count, start=100):
    """`count` rows in each of `batch` texts: 100, 101, ... in the first, 200, 201, ... in the second."""
    ids = torch.arange(start, start * (batch + 1), start)[:, None] + torch.arange(count)
    keys = ids.double().view(batch, 1, count, 1).expand(batch, HEADS, count, SIZE)
    for layer in range(len(cache.layers)):
        read, _ = cache.update(keys, -keys, layer)
        assert read.shape == (batch, HEADS, cache.layers[layer].length, SIZE)


def test_what_is_written_once_is_broadcast_once():
    cache = copies_of(3, 4)
    assert cache.allocated == cache.copies == 4
    assert held_by(cache) == held_by(cache, 1) == [[0, 1, 2]] * 4


def test_a_round_writes_behind_the_prefix_and_all_copies_take_the_winners_rows():
    cache = copies_of(3, 4)
    buffers = [layer.keys.data_ptr() for layer in cache.layers]
    for taken in (2, 0):
        before = held_by(cache)[0]
        write_batch(cache, 3, 4)  # fewer texts than copies
        cache.commit(len(before), range(len(before), len(before) + 2), taken)
        first = 100 * (taken + 1)
        assert held_by(cache) == held_by(cache, 1) == [[*before, first, first + 1]] * 4
    assert [layer.keys.data_ptr() for layer in cache.layers] == buffers


def test_a_single_row_between_batches_reaches_all_copies():
    cache = copies_of(3, 3)
    for layer in range(2):
        cache.update(*rows(7, 2), layer)
    cache.commit(3, [3])
    assert held_by(cache) == held_by(cache, 1) == [[0, 1, 2, 7]] * 3


def test_a_batch_can_be_forgotten():
    cache = copies_of(3, 2)
    write_batch(cache, 2, 4)
    cache.length = 3
    assert held_by(cache) == [[0, 1, 2]] * 2


def test_the_prefix_is_never_copied_again():
    """Only the new rows: what stands before them in another copy stays, right or wrong."""
    cache = copies_of(3, 2)
    cache.layers[0].keys[1, :, 0] = 55.0
    cache.layers[0].values[1, :, 0] = -55.0
    write_batch(cache, 2, 1)
    cache.commit(3, [3], 1)
    assert held_by(cache) == [[0, 1, 2, 200], [55, 1, 2, 200]]


def test_more_texts_than_copies_take_a_larger_cache():
    cache = copies_of(3, 2)
    grown = cache.grown(5)
    assert grown is not cache and grown.copies == 5 and grown.length == 3 and grown.capacity == cache.capacity
    assert held_by(grown) == held_by(grown, 1) == [[0, 1, 2]] * 5
    assert held_by(cache) == [[0, 1, 2]] * 2, "what compiled passes write into stays where it is"
    unwritten = KVCache(2, 16).grown(3)
    assert unwritten.length == 0 and unwritten.nbytes() == 0


def test_a_text_may_use_fewer_copies_than_there_are():
    cache = copies_of(3, 4)
    cache.restart(1)
    assert cache.length == 0 and cache.allocated == 4
    for layer in range(2):
        cache.update(*rows(20, 3), layer)
    cache.commit(0, [0, 2])
    assert held_by(cache) == [[20, 22]]
    assert cache.layers[0].keys[1, 0, :3, 0].tolist() == [0, 1, 2], "no work on what is not in use"


def test_rows_that_stay_appear_in_every_text_without_copies():
    cache = filled(3)
    address, size = cache.layers[0].keys.data_ptr(), cache.layers[0].keys.untyped_storage().nbytes()
    for batch in (4, 2, 1, 3):
        cache.read_by(batch)
        for layer in cache.layers:
            assert layer.keys.shape == layer.values.shape == (batch, HEADS, 16, SIZE)
            assert layer.keys[:, 0, :3, 0].tolist() == [[0, 1, 2]] * batch
        assert cache.layers[0].keys.data_ptr() == address
        assert cache.layers[0].keys.untyped_storage().nbytes() == size


def test_bytes_are_those_of_the_capacity():
    assert KVCache(2, 16).nbytes() == 0, "nothing is reserved before the first write"
    assert filled(3).nbytes() == 2 * 2 * HEADS * 16 * SIZE * 8
    assert copies_of(3, 5).nbytes() == 5 * filled(3).nbytes()


def test_keys_and_values_may_differ_in_size():
    cache = KVCache(1, 4)
    keys, values = cache.update(torch.ones(1, 4, 2, 6), torch.ones(1, 1, 2, 3), 0)
    assert keys.shape == (1, 4, 2, 6) and values.shape == (1, 1, 2, 3)


@pytest.mark.parametrize("model", ["LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_the_cache_has_the_name_that_models_know(model):
    assert CACHE in signature(getattr(transformers, model).forward).parameters


@pytest.mark.parametrize(
    ("release", "name"),
    [("5.17.0", "past_key_values"), ("5.23.1", "past_key_values"), ("5.24.0", "cache"), ("6.0.0.dev0", "cache")],
)
def test_each_release_has_its_name_of_the_cache(release, name):
    assert cache_name(release) == name

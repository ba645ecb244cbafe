"""The preallocated cache: writing, forgetting, moving a path, copies for batches."""

from inspect import signature

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.models.cache import CACHE, KVCache, cache_name

HEADS, SIZE = 2, 3


def rows(ids):
    """Recognisable keys [B, H, n, size] of `ids` [B][n]: row i holds i; values hold -i."""
    numbers = torch.tensor(ids, dtype=torch.float64)
    keys = numbers[:, None, :, None].expand(len(ids), HEADS, numbers.shape[1], SIZE)
    return keys, -keys


def write(cache, ids):
    """Write the rows `ids` [B][n] into every layer, which return all that these sequences hold."""
    for index, layer in enumerate(cache.layers):
        keys, values = cache.update(*rows(ids), index)
        assert keys.shape == (len(ids), HEADS, layer.length, SIZE) and torch.equal(values, -keys)
        assert keys[:, 0, layer.length - len(ids[0]) :, 0].tolist() == ids
        assert {one.length for one in cache.layers[index + 1 :]} <= {layer.length - len(ids[0])}, "one after the other"


def filled(length, copies=1, capacity=16):
    """A text written once and broadcast."""
    cache = KVCache(2, capacity, copies)
    write(cache, [list(range(length))])
    cache.broadcast()
    return cache


def held(cache):
    """Contents of every copy in use, in every layer."""
    found = []
    for layer in cache.layers:
        kept = slice(0, layer.length)
        assert torch.equal(layer.values[: cache.copies, :, kept], -layer.keys[: cache.copies, :, kept])
        found.append(layer.keys[: cache.copies, 0, kept, 0].tolist())
    assert all(copies == found[0] for copies in found)
    return found[0]


@given(st.integers(1, 4), st.integers(0, 5), st.data())
@settings(max_examples=40)
def test_every_copy_holds_what_was_committed(copies, prefix, data):
    """Rounds of a row or of a batch, which are forgotten or committed along a path, beside the text as a list."""
    cache, text = filled(prefix, copies, capacity=40), list(range(prefix))
    addresses = [layer.keys.data_ptr() for layer in cache.layers]
    for number in range(1, data.draw(st.integers(1, 4)) + 1):
        batch, nodes = data.draw(st.integers(1, copies)), data.draw(st.integers(1, 8))
        written = [[1000 * number + 100 * row + node for node in range(nodes)] for row in range(batch)]
        write(cache, written)
        if data.draw(st.booleans()):
            taken = data.draw(st.integers(0, batch - 1))
            path = sorted(data.draw(st.sets(st.integers(0, nodes - 1))))
            cache.commit(len(text), [len(text) + node for node in path], taken)
            text += [written[taken][node] for node in path]
        else:
            cache.length = len(text)
        assert cache.length == len(text) and held(cache) == [text] * copies
    assert [layer.keys.data_ptr() for layer in cache.layers] == addresses, "writing never reallocates"


def test_more_than_the_capacity_is_an_error():
    cache = filled(15)
    with pytest.raises(IndexError, match="has 16 slots, 17 were written"):
        write(cache, [[15, 16]])


def test_free_rows_are_zero():
    """Attention multiplies masked rows by 0, and 0 * NaN would be NaN."""
    layer = filled(4).layers[0]
    assert (layer.keys[:, :, 4:] == 0).all() and (layer.values[:, :, 4:] == 0).all()


def test_sizes_that_transformers_asks_for():
    cache = filled(5)
    layer = cache.layers[0]
    assert layer.get_seq_length() == cache.get_seq_length() == 5
    assert layer.get_mask_sizes(3) == (8, 0)
    assert layer.get_max_length() == layer.get_max_cache_shape() == cache.capacity == 16


def test_the_prefix_is_never_copied_again():
    """Only the new rows: what stands before them in another copy stays, right or wrong."""
    cache = filled(3, 2)
    for layer in cache.layers:
        layer.keys[1, :, 0], layer.values[1, :, 0] = 55.0, -55.0
    write(cache, [[100], [200]])
    cache.commit(3, [3], 1)
    assert held(cache) == [[0, 1, 2, 200], [55, 1, 2, 200]]


def test_more_texts_than_copies_take_a_larger_cache():
    cache = filled(3, 2)
    grown = cache.grown(5)
    assert grown is not cache and grown.copies == 5 and grown.length == 3 and grown.capacity == cache.capacity
    assert held(grown) == [[0, 1, 2]] * 5
    assert held(cache) == [[0, 1, 2]] * 2, "what compiled passes write into stays where it is"
    unwritten = KVCache(2, 16).grown(3)
    unwritten.commit(0, [])
    assert unwritten.length == 0 and unwritten.nbytes() == 0


def test_a_text_may_use_fewer_copies_than_there_are():
    cache = filled(3, 4)
    cache.restart(1)
    assert cache.length == 0 and cache.allocated == 4
    write(cache, [[20, 21, 22]])
    cache.commit(0, [0, 2])
    assert held(cache) == [[20, 22]]
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
    assert filled(3, 5).nbytes() == 5 * filled(3).nbytes()


def test_keys_and_values_may_differ_in_size():
    cache = KVCache(1, 4)
    keys, values = cache.update(torch.ones(1, 4, 2, 6), torch.ones(1, 1, 2, 3), 0)
    assert keys.shape == (1, 4, 2, 6) and values.shape == (1, 1, 2, 3)


def test_the_cache_has_the_name_that_models_of_the_release_know():
    for model in ("LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"):
        assert CACHE in signature(getattr(transformers, model).forward).parameters
    assert {cache_name(release) for release in ("5.17.0", "5.23.1")} == {"past_key_values"}
    assert {cache_name(release) for release in ("5.24.0", "6.0.0.dev0")} == {"cache"}

"""Attention over the cache: as with repeated heads, and without a copy of the prefix in any call on a CPU."""

import copy
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from fixtures.loaded_models import random_model
from torch.profiler import ProfilerActivity, profile

from specdec.certification.tiny_models import load_tiny_model
from specdec.compiled.operations import attention_by_kernel
from specdec.compiled.passes import compile_decoder
from specdec.models.attention import grouped_queries, plain_products
from specdec.models.decoder import Decoder
from specdec.models.ragged_decoder import RaggedDecoder
from specdec.records import Tree, chain_tree

SIZE = 8  # of a head
CAPACITY, SHORT, LONG = 1600, 600, 1400  # slots; the kernel's own buffers have reached their size at the short prefix
TREE = Tree((-1, -1, -1, 0, 0, 1, 1, 2, 3, 3, 4, 8))
ANY = dict(vocab_size=61, bos_token_id=None, eos_token_id=None, pad_token_id=None)
SIZES = dict(ANY, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=8, head_dim=SIZE)
SIZES |= dict(max_position_embeddings=2048)
WINDOW = dict(SIZES, num_key_value_heads=2, sliding_window=100)
KINDS = ["sliding_attention", "full_attention"]
# The classes of configurations, their values and the query heads that share a head of keys.
MODELS = {
    "llama": ("LlamaConfig", dict(SIZES, num_key_value_heads=8), 1),
    "grouped": ("LlamaConfig", dict(SIZES, num_key_value_heads=2), 4),
    "mixed": ("Gemma3TextConfig", dict(WINDOW, layer_types=KINDS, tie_word_embeddings=False), 4),
    "gpt2": ("GPT2Config", dict(ANY, n_embd=64, n_layer=2, n_head=8, n_positions=2048), 1),
}


@cache
def decoder_of(name, dtype=torch.float64):
    return Decoder(random_model(*MODELS[name][:2], seed=7).to(dtype), name, 512)


def attended(query, key, value, mask, scale):
    """Softmax attention by its definition, over keys and values that are repeated."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    weights = (query @ key.transpose(-1, -2) * scale + mask).softmax(-1)
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("attend", [grouped_queries, plain_products])
@pytest.mark.parametrize(("queries", "batch", "heads"), [(1, 3, 1), (2, 1, 1), (5, 1, 8), (300, 3, 1), (300, 1, 8)])
def test_grouped_heads_attend_as_repeated_ones(queries, batch, heads, attend):
    """A mask for all texts, one for each, one for each head; and more queries than are put side by side."""
    torch.manual_seed(queries)
    query = torch.randn(batch, queries, 8, SIZE, dtype=torch.float64).transpose(1, 2)
    buffers = torch.randn(2, batch, 2, 150, SIZE, dtype=torch.float64)
    key, value = buffers[:, :, :, :130]
    mask = torch.randn(batch, heads, queries, 130, dtype=torch.float64)
    mask[..., 100] = torch.finfo(mask.dtype).min
    found, _ = attend(SimpleNamespace(num_key_value_groups=4), query, key, value, mask, scaling=0.3)
    assert found.shape == (batch, queries, 8, SIZE)
    torch.testing.assert_close(found, attended(query, key, value, mask, 0.3), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("name", "kept"), [("deepseek_v32", True), ("llama", False)])
def test_a_model_that_asks_for_the_name_of_its_attention_keeps_it(name, kept):
    """DeepSeek V3.2 masks what its indexer left out for `sdpa` alone; in 16 bits it was switched, and read all keys."""
    model = load_tiny_model(name)
    own = Decoder(copy.deepcopy(model).bfloat16(), name, 64).model
    assert (own.config._attn_implementation == "sdpa") is kept
    with attention_by_kernel(model):
        assert (model.config._attn_implementation != "cache_attention") is kept


def test_without_a_mask_a_pass_is_causal():
    query, key, value = (torch.randn(1, heads, 6, SIZE, dtype=torch.float64) for heads in (8, 2, 2))
    mask = torch.full((6, 6), -torch.inf, dtype=torch.float64).triu(1)
    module = SimpleNamespace(num_key_value_groups=4, is_causal=True)
    found, _ = grouped_queries(module, query, key, value, None, scaling=0.3)
    torch.testing.assert_close(found, attended(query, key, value, mask, 0.3), rtol=0, atol=1e-13)


def bytes_of(call):
    """Count all bytes that the second of two equal calls allocates, those inside of kernels included."""
    with torch.inference_mode():
        call()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            call()
    sizes = [event.nbytes() for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert any(size > 0 for size in sizes), "the profiler has seen no allocation"
    return sum(size for size in sizes if size > 0)


def growth(at):
    """Return the bytes that a call allocates for each further slot of the prefix; `at` makes the call at a length."""
    short, long = (bytes_of(at(length)) for length in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


def call_at(decoder, tree, paths=False):
    tokens = torch.zeros(len(tree) + 1, dtype=torch.long)

    def at(prefix):
        def call():
            decoder.length = prefix
            (decoder.forward_paths if paths else decoder.forward)(tokens, tree)

        return call

    return at


def mask_bytes(name, dtype, tokens, texts=1):
    """Return the bytes for each slot of the masks of two layers, where the queries of a group are lines of one."""
    groups = MODELS[name][2]
    return 0 if groups == 1 or tokens == 1 else 2 * texts * groups * tokens * dtype.itemsize


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float64) for name in MODELS), ("llama", torch.float32), ("grouped", torch.bfloat16)],
    ids=str,
)
def test_no_call_copies_the_prefix(name, dtype):
    """A token, a chain, a tree, the paths of a tree as a batch."""
    decoder = decoder_of(name, dtype)
    decoder.start([1], CAPACITY, copies=len(TREE.leaves))
    for tree, paths in ((chain_tree(0), False), (chain_tree(4), False), (TREE, False), (TREE, True)):
        tokens = TREE.depth + 1 if paths else len(tree) + 1
        assert growth(call_at(decoder, tree, paths)) == mask_bytes(name, dtype, tokens), (tree, paths)


@pytest.mark.parametrize("name", ["llama", "grouped"])
def test_no_call_on_many_texts_copies_their_prefixes(name):
    """All texts, two that do not stand side by side, one: only masks grow, made in one piece for the call."""
    ragged = RaggedDecoder(decoder_of(name), 3)
    ragged.reserve(CAPACITY)
    for slot in range(3):
        ragged.start(slot, [1])
    for slots in ((0, 1, 2), (0, 2), (1,)):
        tokens = [torch.zeros(3, dtype=torch.long)] * len(slots)

        def at(prefix, slots=slots, tokens=tokens):
            def call():
                ragged.cache.lengths.update(dict.fromkeys(range(3), prefix))
                ragged.forward(slots, tokens)

            return call

        made = len(slots) * 3 * 8  # lines of the mask, in float64
        assert growth(at) <= made + mask_bytes(name, torch.float64, 3, len(slots)), slots


@pytest.mark.slow
def test_a_traced_step_copies_nothing_either():
    """transformers repeats the heads for one token too, when a call is recorded."""
    decoder = Decoder(decoder_of("grouped").model, "grouped", 512)
    with torch.inference_mode():
        compile_decoder(decoder, {1, 5}, CAPACITY, "trace")
        decoder.start([1], CAPACITY)
    assert 1 in decoder.passes.sizes
    for tree in (chain_tree(0), chain_tree(4)):
        assert growth(call_at(decoder, tree)) == mask_bytes("grouped", torch.float64, len(tree) + 1)

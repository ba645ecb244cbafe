"""Several texts in one call: each has the logits of a plain forward pass over its own tokens, wherever it stands."""

import pytest
import torch

from specdec.models.decoder import Decoder
from specdec.models.ragged_decoder import RaggedDecoder
from specdec.records import Tree, chain_tree

PROMPTS = {0: [7, 3, 19, 44, 3, 19, 52, 7, 3, 19, 44, 8], 1: [5], 2: [40, 12, 33, 12, 40, 12, 33, 2]}
TREES = {0: Tree((-1, 0, -1, 1, 0)), 1: chain_tree(0), 2: chain_tree(3)}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=["gemma3", "gpt2", "llama", "mistral_window"])
def decoder(request, tiny_model):
    return Decoder(tiny_model(request.param), request.param, prefill_chunk=5)


def started(decoder, slots=3, prompts=PROMPTS):
    ragged = RaggedDecoder(decoder, slots)
    ragged.reserve(40)
    texts = {slot: [*prompt[:-1], ragged.start(slot, prompt)] for slot, prompt in prompts.items()}
    return ragged, texts


def offered(tree, slot):
    return [(11 * node + 5 * slot) % 61 for node in range(len(tree))]


def plain(decoder, tokens):
    """Logits after the last of the tokens, without any cache."""
    return decoder.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


def check(decoder, ragged, texts, trees, kept=False):
    """Evaluate the roots and a draft of each text in one call; every node sees its own text and path. What is not kept
    is discarded.
    """
    drafts = {slot: offered(trees[slot], slot) for slot in texts}
    tokens = [torch.tensor([texts[slot][-1], *drafts[slot]]) for slot in texts]
    found = ragged.forward(list(texts), tokens, [trees[slot] for slot in texts])
    for slot, logits in zip(texts, found, strict=True):
        assert len(logits) == len(trees[slot]) + 1
        torch.testing.assert_close(logits[0], plain(decoder, texts[slot]), **CLOSE)
        for node in range(len(trees[slot])):
            path = [drafts[slot][each] for each in trees[slot].path(node)]
            torch.testing.assert_close(logits[node + 1], plain(decoder, [*texts[slot], *path]), **CLOSE)
        if not kept:
            ragged.discard(slot)
    return drafts


def test_logits_are_those_of_plain_passes(decoder):
    """Accepted paths stay and everything else is forgotten."""
    ragged, texts = started(decoder)
    drafts = check(decoder, ragged, texts, TREES, kept=True)
    for slot, path in {0: (0, 1, 3), 1: (), 2: (0, 1)}.items():
        ragged.commit(slot, path)
        texts[slot] += [*(drafts[slot][node] for node in path), 9 + slot]
        assert ragged.length(slot) == len(texts[slot]) - 1
    check(decoder, ragged, texts, {0: chain_tree(2), 1: Tree((-1, -1)), 2: TREES[0]})
    check(decoder, ragged, texts, {0: TREES[0], 1: chain_tree(4), 2: chain_tree(0)})


def test_a_slot_given_back_leaves_nothing_and_moves_nobody(decoder):
    """The last text in the buffers takes the free row; the next text in the slot begins from nothing."""
    ragged, texts = started(decoder)
    check(decoder, ragged, texts, TREES)
    ragged.release(0)
    del texts[0]
    check(decoder, ragged, texts, TREES)
    prompt = [60, 2, 2, 60]
    texts[0] = [*prompt[:-1], ragged.start(0, prompt)]
    check(decoder, ragged, texts, TREES)


def test_some_texts_may_be_left_out_of_a_call(decoder):
    """Two texts are read in place wherever they stand, three at unequal distances as copies."""
    prompts = {**PROMPTS, 3: [9, 60, 21]}
    ragged, texts = started(decoder, 4, prompts)
    trees = {**TREES, 3: chain_tree(1)}
    for chosen in ((2, 0), (0, 3), (0, 1, 3)):
        check(decoder, ragged, {slot: texts[slot] for slot in chosen}, trees)
    assert {slot: ragged.length(slot) for slot in prompts} == {0: 11, 1: 0, 2: 7, 3: 2}


def test_states_are_those_of_plain_passes(tiny_model):
    decoder = Decoder(tiny_model("llama"), "llama", prefill_chunk=5)
    decoder.keep_states((0, 1))
    ragged, texts = started(decoder)
    output = decoder.model(input_ids=torch.tensor([texts[0]]), use_cache=False, output_hidden_states=True)
    wanted = torch.cat([output.hidden_states[-1], output.hidden_states[-2]], -1)[0]
    torch.testing.assert_close(ragged.states[0], wanted[:-1], **CLOSE)
    assert ragged.states[1].shape == (0, 64)
    ragged.forward([0, 2], [torch.tensor([texts[slot][-1]]) for slot in (0, 2)])
    torch.testing.assert_close(ragged.states[0], wanted[-1:], **CLOSE)


def test_the_cache_is_allocated_once_and_has_an_end(tiny_model):
    ragged, _ = started(Decoder(tiny_model("llama"), "llama", prefill_chunk=64))
    keys = ragged.cache.layers[0].keys
    ragged.forward([0, 1], [torch.zeros(28, dtype=torch.long), torch.zeros(1, dtype=torch.long)])
    ragged.reserve(39)
    ragged.start(1, PROMPTS[0])
    assert ragged.cache.layers[0].keys is keys and len(keys) == 3
    with pytest.raises(IndexError, match="40 places, 41 were written"):
        ragged.forward([1], [torch.zeros(30, dtype=torch.long)])
    with pytest.raises(ValueError, match="slot 3 is not one of the 3 slots"):
        ragged.start(3, [1])

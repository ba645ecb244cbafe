"""Drafts evaluated as batches of rows: the same p as packed and as plain forward passes, the same cache, in float64."""

from copy import deepcopy

import pytest
import torch
from fixtures.plain_laws import EXACT, PROMPT, VOCABULARY, assert_like_plain, check_slots, random_chain, tolerance_of

from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, TextStart, Tree, chain_tree
from specdec.structures.base import structures
from specdec.targets.base import contract as base
from specdec.targets.base import model_target, targets
from specdec.targets.causal import Causal

CAPACITY, BRANCHES = 64, 8


def uneven(seed):
    """Rows of 1, 4, 2 and 3 tokens, the last two of which begin alike."""
    generator = torch.Generator().manual_seed(seed)
    return Draft(torch.randint(VOCABULARY, (9,), generator=generator), Tree((-1, -1, 1, 2, 3, -1, 5, 5, 7)))


def assert_rounds_agree(rows, packed, random_draft):
    """Rounds of trees, rows of unequal length, chains and nothing, which accept nothing, a first child, all of the
    deepest path, a late branch: p by p, copy by copy.
    """
    text: list[int] = []
    first, second = random_draft(4, VOCABULARY, 0), random_draft(9, VOCABULARY, 2)
    for number, draft in enumerate([first, EMPTY, uneven(1), random_chain(3, 0), second, uneven(3), EMPTY]):
        p = assert_like_plain(rows, PROMPT, text, draft)
        if packed is not None:
            assert (p - packed.verify(draft)).abs().max() < tolerance_of(rows)
        deepest = draft.tree.depths.index(draft.tree.depth) if len(draft) else -1
        path = draft.tree.path((deepest, -1, len(draft) - 1, deepest, 0, deepest, -1)[number])
        token = (11 * number + 1) % VOCABULARY
        for target in (rows, packed):
            if target is not None:
                target.commit(path, token)
        text += [*draft.tokens[list(path)].tolist(), token]
    return text


def test_rows_give_the_p_of_packed_trees_and_of_plain_passes(architecture, target_of, random_draft):
    rows, packed = target_of(architecture, "rows"), target_of(architecture, "packed")
    rows.start(TextStart(PROMPT, CAPACITY, branches=BRANCHES))
    packed.start(TextStart(PROMPT, CAPACITY, branches=BRANCHES))
    buffers = [layer.keys.data_ptr() for layer in rows.decoder.cache.layers if layer.is_initialized]
    text = assert_rounds_agree(rows, packed, random_draft)
    used, single = rows.decoder.cache, packed.decoder.cache
    made = [layer.keys.data_ptr() for layer in used.layers if layer.is_initialized]
    assert made == buffers, "no round makes a cache"
    assert single.copies == 1 and rows.cache_bytes == BRANCHES * packed.cache_bytes
    # Afterwards every copy of either is what a fresh prefill of the text would write.
    packed.start(TextStart([*PROMPT, *text], CAPACITY + len(text)))
    check_slots(used, packed.decoder.cache, tolerance_of(rows), BRANCHES)
    check_slots(single, packed.decoder.cache, tolerance_of(rows))


def test_rows_of_an_encoder_decoder_are_its_paths(encoder_decoder, target_of, random_draft):
    """One encoder output and one cross-attention cache serve all rows, whose number changes from round to round."""
    target = target_of(encoder_decoder, "rows")
    target.start(TextStart(PROMPT, len(PROMPT) + CAPACITY, branches=BRANCHES))
    cross = target.decoder._caches.cross_attention_cache.layers[0]
    size = cross.keys.untyped_storage().nbytes()
    text = assert_rounds_agree(target, None, random_draft)
    assert cross.keys.untyped_storage().nbytes() == size, "views"
    used = target.decoder.cache
    target.start(TextStart(PROMPT, len(PROMPT) + CAPACITY))
    target.verify(Draft(torch.tensor(text[:-1]), chain_tree(len(text) - 1)))
    check_slots(used, target.decoder.cache, EXACT, BRANCHES)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_more_rows_than_were_announced_are_evaluated_too(target_of, random_draft, name):
    target = target_of(name, "rows")
    target.start(TextStart(PROMPT, CAPACITY, branches=2))
    assert target.decoder.cache.copies == 2
    text = assert_rounds_agree(target, None, random_draft)
    assert target.decoder.cache.copies > 2
    assert_like_plain(target, PROMPT, text, uneven(9))


def test_a_prompt_of_one_token_needs_no_prefill(target_of):
    target = target_of("llama", "rows")
    target.start(TextStart([4], CAPACITY, branches=BRANCHES))
    first, second = uneven(0), uneven(1)
    for draft, text in ((first, []), (second, [int(first.tokens[0]), 7])):
        assert_like_plain(target, [4], text, draft)
        target.commit([0], 7)


def test_a_chain_takes_one_row(target_of, monkeypatch):
    """And so does the baseline, through compiled passes where there are any."""
    target = target_of("llama", "rows")
    monkeypatch.setattr(target.decoder, "forward_paths", lambda *_: pytest.fail("a batch"))
    target.start(TextStart(PROMPT, CAPACITY, branches=BRANCHES))
    for draft in (EMPTY, random_chain(2, 0)):
        assert_like_plain(target, PROMPT, [], draft)
        target.discard()


def test_16_bit_rows_are_finite_and_near(tiny_model, sampling):
    """One prefix per copy in bfloat16, and the attention that takes a lone row twice."""
    model = deepcopy(tiny_model("llama")).bfloat16()
    rows, packed = (Causal(model, sampling(temperature=1.0)) for _ in range(2))
    rows.evaluation = "rows"
    p = []
    for target in (rows, packed):
        target.start(TextStart(PROMPT, CAPACITY, branches=BRANCHES))
        target.verify(EMPTY)
        target.commit([], 3)
        p.append(target.verify(uneven(0)))
    assert (p[0] - p[1]).abs().max() < 0.1


@pytest.mark.slow
def test_the_evaluation_comes_from_the_configuration(tiny_model, tmp_path, group_values, sampling):
    tiny_model("llama").save_pretrained(tmp_path)
    for evaluation in ("packed", "rows"):
        values = group_values("target", "causal", model=str(tmp_path), device="cpu", evaluation=evaluation)
        target = targets.build(values, sampling=sampling())
        assert target.evaluation == target.describe()["evaluation"] == evaluation


def test_copies_that_do_not_fit_are_refused_with_the_bytes(target_of, monkeypatch):
    rows, packed, t5 = target_of("llama", "rows"), target_of("llama", "packed"), target_of("t5", "rows")
    for target in (rows, packed, t5):
        target.start(TextStart(PROMPT, 12))
        target.verify(EMPTY)
    row = packed.cache_bytes // 12
    assert row == 2 * 2 * 2 * 8 * 8  # keys and values, layers, heads, head size, bytes
    monkeypatch.setattr(model_target, "available_bytes", lambda device: 100 * row - packed.cache_bytes)
    packed.check_memory(len(PROMPT), 100, 25)
    rows.check_memory(len(PROMPT), 100)
    rows.check_memory(len(PROMPT), 50, 2)
    with pytest.raises(UsageError) as refused:
        rows.check_memory(len(PROMPT), 1000, 25)
    sentence = str(refused.value)
    assert f"25 copies of a key-value cache of 1,000 slots take {25_000 * row:,} bytes" in sentence
    assert f"{88 * row:,} are free" in sentence and "\n" not in sentence and refused.value.exit_code == 2
    assert all(remedy in sentence for remedy in ("structure.k", "max_new_tokens", "target.evaluation=packed"))
    with pytest.raises(UsageError, match=r"measurement\.max_new_tokens: 101 slots"):
        packed.check_memory(len(PROMPT), 101, 25)
    with pytest.raises(UsageError) as refused:
        t5.check_memory(len(PROMPT), 1000, 25)
    assert "packed" not in str(refused.value)
    monkeypatch.setattr(model_target, "available_bytes", lambda device: None)
    rows.check_memory(len(PROMPT), 10**9, 25)


def test_a_draft_too_large_for_a_call_is_refused_before_its_tree_is_made(target_of, monkeypatch):
    rows = structures.build({"name": "rows", "k": 32, "w": 31, "budget": 32**2})
    monkeypatch.setattr(type(rows), "tree", property(lambda self: pytest.fail("made its nodes")))
    monkeypatch.setattr(base, "available_bytes", lambda device: 200_000)
    for evaluation, evaluated, mask in (("packed", 32 * 31 + 1, (32 * 31 + 1) ** 2), ("rows", 32 * 32, 0)):
        with pytest.raises(UsageError) as refused:
            target_of("llama", evaluation).check_draft(rows)
        sentence = str(refused.value)
        assert f"{evaluated * VOCABULARY * 4 + mask:,} bytes, and 200,000 are free" in sentence
        assert "structure=rows" in sentence and "lower structure.k or structure.w." in sentence
        target_of("llama", evaluation).check_draft(structures.build({"name": "rows", "k": 10, "w": 10, "budget": 999}))
    monkeypatch.setattr(base, "available_bytes", lambda device: None)
    target_of("llama", "packed").check_draft(rows)


def test_the_bytes_asked_for_are_those_that_the_caches_take(target_of, monkeypatch):
    monkeypatch.setattr(model_target, "available_bytes", lambda device: -(10**12))
    for name in ("llama", "t5"):
        target = target_of(name, "rows")
        with pytest.raises(UsageError) as refused:
            target.check_memory(len(PROMPT), CAPACITY, 3)
        target.start(TextStart(PROMPT, CAPACITY, branches=3))
        taken = target.cache_bytes
        if name == "t5":
            taken += target.decoder._caches.cross_attention_cache.nbytes()
        assert f"take {taken:,} bytes" in str(refused.value)

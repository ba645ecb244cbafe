"""Standardisation against that of transformers, drawing, the residual, and generators."""

import pytest
import torch
from fixtures.small_parts import _sampling as config
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from specdec.sampling import drawn, generator_for, probabilities, residual, sample

LAWS = st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(sum).map(lambda x: [v / sum(x) for v in x])


def law(logits, **how):
    return probabilities(torch.tensor(logits, dtype=torch.float64), config(**how)).tolist()


def test_top_p_ends_where_its_mass_is_reached_exactly():
    """Quarters are exact in binary; among equals the first tokens stay."""
    for kept in (1, 2, 3):
        assert law([1.0] * 4, top_p=kept / 4) == [1 / kept] * kept + [0.0] * (4 - kept)


WARPERS = [
    (TopKLogitsWarper, "top_k", (1, 2, 7, 29, 30, 40), None),
    (TopPLogitsWarper, "top_p", (0.0, 0.05, 0.3, 0.5, 0.9, 0.99, 1.0), None),
    (MinPLogitsWarper, "min_p", (0.0, 0.01, 0.1, 0.5, 1.0), None),
    *((TypicalLogitsWarper, "typical_p", (0.01, 0.2, 0.5, 0.9, 0.999), levels) for levels in (None, 5, 2)),
]


@pytest.mark.parametrize(("warper", "option", "values", "levels"), WARPERS)
def test_a_cut_is_that_of_transformers(warper, option, values, levels):
    """On random logits, of few levels too: tokens that are equally typical stay or go together."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(200, 30, generator=generator, dtype=torch.float64) * 2
    if levels:
        logits = torch.randint(levels, (200, 30), generator=generator).double()
    torch.testing.assert_close(probabilities(logits, config(typical_p=1.0)), logits.softmax(-1), atol=1e-12, rtol=0)
    for value in values:
        theirs = warper(value)(None, logits).softmax(-1)
        torch.testing.assert_close(probabilities(logits, config(**{option: value})), theirs, atol=1e-12, rtol=0)


def test_all_cuts_together_are_those_of_transformers_in_its_order():
    """The processors that `generate` itself makes of the same options, in its order."""
    logits = torch.randn(200, 40, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3
    options = {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.6}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gpt2", n_embd=4, n_layer=1, n_head=1, vocab_size=40, n_positions=8)
    )
    warpers = model._get_logits_processor(GenerationConfig(do_sample=True, **options), 1)
    assert any(isinstance(each, TypicalLogitsWarper) for each in warpers)
    theirs = warpers(torch.zeros(200, 1, dtype=torch.long), logits).softmax(-1)
    ours = probabilities(logits, config(**options))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    assert (probabilities(logits, config(**options | {"typical_p": None})) > 0).sum() > (ours > 0).sum()


def test_greedy_is_one_hot_at_the_first_maximum():
    assert law([1.0, 3.0, 3.0, 0.0], temperature=0.0) == [0.0, 1.0, 0.0, 0.0]
    assert law([1.0, 3.0, 3.0, 0.0], temperature=0.0, top_k=1, top_p=0.1) == [0.0, 1.0, 0.0, 0.0]


CUTS = ({"top_k": 7}, {"top_p": 0.5}, {"top_k": 20, "top_p": 0.9}, {"top_p": 0.99}, {"min_p": 0.1}, {"typical_p": 0.5})
WAYS = (config(), config(0.0), *(config(0.7, **cut) for cut in CUTS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rows_are_laws_in_float32_or_better(dtype):
    logits = torch.randn(3, 5, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    for how in WAYS:
        p = probabilities(logits, how)
        assert p.shape == logits.shape
        assert p.dtype == (torch.float64 if dtype == torch.float64 and not how.greedy else torch.float32)
        assert (p.sum(-1) - 1).abs().max() < 1e-6 and (p >= 0).all()


def test_a_row_is_standardised_alike_alone_and_among_others():
    """Verification of many rows and of one must cut alike, ties included."""
    logits = torch.randint(-3, 3, (40, 300), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    for how in WAYS:
        together = probabilities(logits, how)
        for row in range(40):
            assert torch.equal(together[row], probabilities(logits[row], how))


def test_ties_at_the_edge_of_top_k_are_broken_by_order():
    """Exactly k survive; among equals the first, so that target and drafter cut alike."""
    for size, k in ((5, 2), (50, 20), (4000, 50)):
        p = probabilities(torch.zeros(size), config(top_k=k))
        assert (p > 0).nonzero().flatten().tolist() == list(range(k))


def test_forbidden_tokens_stay_forbidden():
    logits = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf])
    for how in (config(top_k=3), *WAYS):
        p = probabilities(logits, how)
        assert p[1] == p[3] == 0 and p.isfinite().all()


def test_very_low_temperatures_and_large_logits_stay_finite():
    for temperature in (1e-6, 1e-30):
        p = probabilities(torch.tensor([300.0, 299.0, -1e4]), config(temperature))
        assert p.tolist() == [1.0, 0.0, 0.0]


def test_each_token_is_drawn_by_its_own_share_of_the_uniform_numbers():
    """[0, p_0) draws token 0, [p_0, p_0 + p_1) token 1, and so on: a token without chance is never drawn, not by 0."""
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    numbers = [0.0, 0.2, 0.25, 0.5, 0.75, 1 - 2**-53]
    uniforms = torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)
    assert drawn(p.expand(len(numbers), -1), uniforms).tolist() == [1, 1, 3, 3, 4, 4]


def test_sample_follows_the_law():
    """20,000 draws, fixed seed; chi-square on 3 degrees of freedom below 29 (false alarm 2e-6)."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    counts = torch.bincount(sample(p.expand(20000, 4), torch.Generator().manual_seed(0)), minlength=4)
    assert float(((counts - 20000 * p) ** 2 / (20000 * p)).sum()) < 29


@settings(max_examples=50)
@given(st.lists(st.tuples(LAWS, LAWS), min_size=1, max_size=3))
@example([([0.5, 0.3, 0.15, 0.05], [0.2, 0.5, 0.1, 0.2])])  # the laws of theory.md 1.1
@example([([0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]), ([0.9, 0.1, 0.0, 0.0], [0.1, 0.9, 0.0, 0.0])])
def test_residual_is_the_positive_part_row_by_row_and_p_of_equal_laws(laws):
    ours = residual(*(torch.tensor(rows, dtype=torch.float64) for rows in zip(*laws, strict=True))).tolist()
    for row, (p, q) in zip(ours, laws, strict=True):
        positive = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
        assert sum(row) == pytest.approx(1.0, abs=1e-9)
        if sum(positive) > 1e-9:
            assert row == pytest.approx([value / sum(positive) for value in positive], abs=1e-9)
        if p == q:
            assert row == p


def test_residual_of_a_tiny_excess_is_normalised():
    p, q = torch.tensor([0.5 + 1e-30, 0.5]).double(), torch.tensor([0.5, 0.5]).double()
    assert residual(p, q).sum() == 1
    small = torch.tensor([1e-38, 1 - 1e-38])
    assert residual(small, torch.tensor([0.0, 1.0])).tolist() == [1.0, 0.0]


def first_numbers(*key):
    return tuple(torch.rand(4, generator=generator_for(*key)).tolist())


def test_a_generator_per_seed_prompt_and_purpose():
    keys = [
        (seed, prompt, purpose) for seed in (0, 1) for prompt in ("a", "b", "a/b") for purpose in ("draft", "accept")
    ]
    assert len({first_numbers(*key) for key in keys}) == len(keys)
    assert all(first_numbers(*key) == first_numbers(*key) for key in keys)


def test_generators_ignore_and_leave_the_global_state():
    torch.manual_seed(0)
    before, first = torch.get_rng_state(), first_numbers(3, "x", "draft")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    assert first_numbers(3, "x", "draft") == first

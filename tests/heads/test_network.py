"""What heads compute: the same over texts as in drafts, from what they may read and from nothing else."""

import pytest
import torch
from fixtures.refusals import refused

from specdec.config import validated
from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import Heads

TEXT = torch.tensor([[3, 17, 9, 3, 22, 0, 8, 3, 17, 1, 5, 20]])
LENGTH = TEXT.shape[1]


@pytest.fixture
def states(target):
    return target.hidden.sequence(TEXT, 0)[0].clone()


def test_drafting_gives_the_features_of_training_position_by_position(target, random_heads, states, make):
    heads = random_heads(target, **make)
    taught = heads.features(states, TEXT)
    assert len(taught) == len(heads) == 5
    for k, features in enumerate(taught, 1):
        assert features.shape == states.shape
        for t in range(LENGTH - k - 1):  # where the text has what head k predicts
            state = heads.contextual(states[:, : t + 1])[0][0, -1]
            drafted = heads.draft_features(k, state, TEXT[:, t + 1 : t + 1 + k])[0]
            torch.testing.assert_close(drafted, features[0, t], rtol=1e-12, atol=1e-12)


def test_the_order_of_drafted_tokens_counts(target, random_heads, states):
    """Attention alone reads a bag of tokens: the same ones in another order have to give another law."""
    heads = random_heads(target, grounded=True, mixer="attention")
    paths = torch.tensor([[4, 1, 9, 2], [1, 4, 9, 2]])
    first, second = heads.draft_features(4, states[0, 5], paths)
    assert (first - second).abs().max() > 1e-3


def test_untrained_heads_say_what_the_target_says(target, random_heads, make):
    """Blocks and prefix layer begin at zero: head k at position t gives the target's logits for t + 1."""
    if make.get("mixer") == "gru":
        pytest.skip("a GRU has no residual")
    states, logits = target.hidden.sequence(TEXT, 0)
    config = random_heads(target, **make).config
    heads = Heads(config, target.hidden.embedding, target.hidden.output_layer).double().requires_grad_(False)
    for k, features in enumerate(heads.features(states, TEXT), 1):
        torch.testing.assert_close(heads.logits(k, features), logits, rtol=1e-12, atol=1e-10)


def test_a_head_reads_its_tokens_and_no_later_ones(target, random_heads, states, make):
    heads, t = random_heads(target, **make), 4
    before = heads.features(states, TEXT)
    for place in range(1, LENGTH):
        changed = TEXT.clone()
        changed[0, place] = (changed[0, place] + 1) % target.vocab_size
        for k, (old, new) in enumerate(zip(before, heads.features(states, changed), strict=True), 1):
            reads = heads.config.grounded and t < place <= t + k
            assert torch.equal(old[0, t], new[0, t]) != reads, (k, place)
    for place in range(LENGTH):
        moved = states.clone()
        moved[0, place] += 1.0
        reads = place == t or (heads.config.prefix and place < t)
        for old, new in zip(before, heads.features(moved, TEXT), strict=True):
            assert torch.equal(old[0, t], new[0, t]) != reads, place


@pytest.mark.parametrize("raw", [{"offset": 1}, {"state": "embeddings"}])
def test_the_scale_of_states_counts_only_behind_the_targets_own_norm(target, random_heads, states, raw):
    heads = random_heads(target, grounded=True, **raw)
    for one, other in zip(heads.features(states, TEXT), heads.features(700 * states, TEXT), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    plain = random_heads(target, grounded=True)
    assert plain.contextual(states)[0] is states


@pytest.mark.parametrize("steps", [[12], [1, 1, 4, 1, 5], [11, 1]])
def test_the_prefix_layer_in_parts_is_the_whole(target, random_heads, states, steps):
    heads = random_heads(target, prefix=True)
    whole, _ = heads.contextual(states)
    assert not torch.equal(whole, states)
    found, past = [], None
    for part in states.split(steps, dim=1):
        contextual, past = heads.contextual(part, past)
        found.append(contextual)
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-12, atol=1e-12)


def test_a_heads_logits_are_its_own_output_layers(target, random_heads):
    features = torch.randn(target.hidden.output_layer.shape[1], dtype=torch.float64)
    for output, different in (("own", 5), ("shared", 1), ("tied", 1)):
        heads = random_heads(target, output=output)
        rows = [heads.logits(k, features) for k in range(1, 6)]
        assert len({tuple(row.tolist()) for row in rows}) == different
        assert torch.equal(rows[0], target.hidden.output_layer @ features) == (output == "tied")
        assert rows[0].shape == (target.vocab_size,)


def test_the_targets_weights_are_read_and_not_kept(target, random_heads):
    heads = random_heads(target, grounded=True)
    assert sum(weight.numel() for weight in heads.parameters()) == sum(16 * 16 * (k + 1) + 16 for k in range(1, 6))
    heads.rebind(2 * target.hidden.embedding, 3 * target.hidden.output_layer)
    assert torch.equal(heads.embedded(TEXT), 2 * target.hidden.embedding[TEXT])
    assert torch.equal(heads.output_layer(2), 3 * target.hidden.output_layer)


PLAIN = dict(
    name="x", count=4, grounded=False, mixer="mlp", layers=1, width=None, state="hidden", offset=0, prefix=False
)


def test_what_does_not_fit_is_named():
    for changes, words in (
        ({"count": 0}, "heads.count=0"),
        ({"output": "none"}, "heads.output='none'"),
        ({"mixer": "gru"}, "grounded=true"),
        ({"mixer": "attention"}, "attention over drafted tokens reads .* grounded=true"),
        ({"mixer": "gru", "grounded": True, "width": 8}, "width to null"),
        ({"state": "embeddings", "offset": 2}, "offset to 0"),
        ({"depth": 3}, "heads.depth"),
    ):
        with refused(words):
            validated(HeadsConfig, {**PLAIN, "output": "tied", **changes}, where="heads")

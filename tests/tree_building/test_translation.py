"""Two tokenizers that spell text differently: what is shared, what the drafter reads, and that nothing is biased."""

import pytest
import torch
from fixtures.drafting import chain, decoded, law_error
from fixtures.refusals import refused
from tokenizers import Tokenizer, decoders, models, processors

from specdec.drafters.base import drafters
from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.records import Request, TextStart
from specdec.replay.expected_rounds import TextReplay
from specdec.sampling import generator_for, probabilities
from specdec.targets.causal import Causal
from specdec.tree_building.translation import Translation


def tokenizer(pieces, merges=(), special=(), begin=None):
    """A byte-pair tokenizer; token i is piece i. `begin` is put in front of every text, as Llama's is."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    inner = Tokenizer(models.BPE(vocabulary, list(merges)))
    inner.decoder = decoders.Fuse()
    if begin:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, vocabulary[begin])]
        )
    extra = {"bos_token": begin} if begin else {}
    return PreTrainedTokenizerFast(tokenizer_object=inner, extra_special_tokens=list(special), **extra)


HERE = ["<t>", "a", "b", "c", "ab", "</s>", "d"]
THERE = ["<s>", "d", "c", "b", "a", "bc", "</s>"]
A, B, C, AB, D = 1, 2, 3, 4, 6  # the target's tokens


@pytest.fixture
def here():
    return tokenizer(HERE, [("a", "b")], ["<t>", "</s>"])


@pytest.fixture
def there():
    return tokenizer(THERE, [("b", "c")], ["<s>", "</s>"], begin="<s>")


@pytest.fixture
def pair(here, there, sampling, tiny_llama):
    """A target of 8 rows (7 tokens) and a drafter of 9, and how to build the drafter beside the target."""

    def make(**how):
        target = Causal(tiny_llama(8, seed=3), sampling(**how), here)
        return target, SmallModel(tiny_llama(9), target, there, translate=True)

    return make


def test_shared_tokens_are_spelled_alike(pair):
    _, drafter = pair(temperature=1.0)
    translation = drafter.translation
    assert translation.shared == 5
    ids = translation.to_drafter(torch.tensor([A, B, C, D, 5])).tolist()
    assert [THERE[token] for token in ids] == ["a", "b", "c", "d", "</s>"]
    aligned = translation.align(torch.arange(9.0))
    assert aligned.tolist() == pytest.approx([-torch.inf, 4, 3, 2, -torch.inf, 6, 1, -torch.inf])


def test_a_piece_that_is_special_on_one_side_only_is_not_shared(here, sampling, tiny_llama):
    target = Causal(tiny_llama(8), sampling(), here)
    other = tokenizer(["a", "<t>", "</s>"], special=["</s>"])
    assert Translation("x", other, 3, target).shared == 2


def test_the_drafter_reads_text_its_own_way(pair):
    for tokens, read in (
        ([A, B, C], ["<s>", "a", "bc"]),
        ([AB, C], ["<s>", "a", "bc"]),
        ([AB], ["<s>", "a", "b"]),
        ([0, D, 5, A], ["<s>", "d", "</s>", "a"]),  # a marker of the target's own says nothing to the drafter
        ([7], ["<s>"]),  # nor does a row of padding
    ):
        _, drafter = pair(temperature=1.0)
        assert [THERE[token] for token in drafter.translation.read(tokens)] == read


def restricted(drafter, context, sampling):
    """q after a context in the drafter's own tokens, written from the definition: restrict, then standardise."""
    logits = drafter.model(torch.tensor([context])).logits[0, -1]
    row = torch.full((8,), -torch.inf, dtype=torch.float64)
    for token, piece in enumerate(HERE):
        if piece in ("a", "b", "c", "d", "</s>"):
            row[token] = logits[THERE.index(piece)]
    return probabilities(row, sampling)


@pytest.mark.parametrize("how", [{}, {"top_k": 2}, {"top_p": 0.7}])
def test_q_after_every_text(pair, how):
    """The cache follows a tokenisation that changes behind it, and grows beyond the capacity it was given."""
    target, drafter = pair(temperature=1.0, **how)
    text = [D, A]
    drafter.start(TextStart(text, 3, generator=generator_for(0, "p", "draft")))
    for committed in ([B], [C, D, A], [B], [C], [AB, AB, C], [A, 5], [B, AB, AB, AB, D, C], [0], [AB] * 12):
        draft = drafter.draft(chain(3))
        context = drafter.translation.read(text)
        for token, law in zip(draft.tokens.tolist(), draft.q, strict=True):
            torch.testing.assert_close(law, restricted(drafter, context, target.sampling), atol=1e-12, rtol=0)
            assert law[token] > 0
            context = [*context, int(drafter.translation.to_drafter(torch.tensor(token)))]
        drafter.commit(committed)
        text += committed


@pytest.mark.parametrize("gamma", [1, 4])
def test_greedy_output_is_the_targets_own(pair, gamma):
    target, drafter = pair(temperature=0.0)
    alone = drafters.build({"name": "none"}, target=target)
    own, drafted = (decoded(target, each, chain(gamma), [A, B, D], 18, rule="greedy") for each in (alone, drafter))
    assert drafted.tokens == own.tokens and len(set(own.tokens)) > 2
    assert sum(row.accepted for row in drafted.rounds) > 0
    # Under greedy a draft is a function of the text, so drafting again along it counts the rounds.
    assert drafter.capabilities.replay == "copying"
    replay = TextReplay(drafter, target, chain(gamma), drafted.tokens, Request([A, B, D], 18))
    assert replay.expected_rounds() == len(drafted.rounds)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"top_k": 2}])
def test_sampling_is_lossless(enumeration, table, random_law, tiny_llama, how):
    """By enumeration: a target of three tokens, one of which (ab) the drafter can read but not propose."""
    target = table(random_law(3, 5), temperature=1.0, **how)
    target.tokenizer = tokenizer(["a", "b", "ab"], [("a", "b")])
    drafter = SmallModel(tiny_llama(3), target, tokenizer(["c", "b", "a"]), translate=True)
    assert drafter.translation.shared == 2
    assert law_error(enumeration, target, drafter, chain(2), [0, 2], 3)[0] < 1e-12


def test_nothing_is_offered_beyond_the_drafters_context(here, there, sampling, tiny_llama):
    """Counted in the drafter's tokens: <s> a b takes three of its four rows where the target has one token."""
    target = Causal(tiny_llama(8), sampling(temperature=0.0), here)
    drafter = SmallModel(tiny_llama(9, context=4), target, there, translate=True)
    drafter.start(TextStart([AB], 32))
    assert len(drafter.draft(chain(4))) == 2
    drafter.commit([AB])
    assert len(drafter.draft(chain(4))) == 0
    drafter.start(TextStart([AB] * 9, 32))
    assert len(drafter.draft(chain(4))) == 0


def test_a_text_without_tokens_has_no_draft(here, sampling, tiny_llama):
    """A prompt of markers only, for a drafter whose texts begin with nothing."""
    target = Causal(tiny_llama(8), sampling(temperature=0.0), here)
    drafter = SmallModel(tiny_llama(9), target, tokenizer(["a", "b", "d"]), translate=True)
    drafter.start(TextStart([0], 32))
    assert len(drafter.draft(chain(2))) == 0
    drafter.commit([A])
    assert len(drafter.draft(chain(2))) == 2


def test_what_cannot_be_translated_is_refused(here, sampling, tiny_llama):
    with_tokenizer = Causal(tiny_llama(8), sampling(), here)
    without = Causal(tiny_llama(8), sampling())
    for target, other, said in (
        (with_tokenizer, tokenizer(["x", "y"]), "spell no token alike"),
        (with_tokenizer, None, "drafter.model=.* has no tokenizer"),
        (without, here, "the target has no tokenizer"),
    ):
        with refused(said):
            SmallModel(tiny_llama(9), target, other, translate=True)


def test_a_saved_pair_is_loaded_with_its_tokenizers(tmp_path, here, there, sampling, tiny_llama, group_values):
    target = Causal(tiny_llama(8, seed=3), sampling(temperature=0.0), here)
    tiny_llama(9).save_pretrained(tmp_path)
    there.save_pretrained(tmp_path)
    values = group_values("drafter", "small_model", model=str(tmp_path))
    with pytest.raises(UsageError, match=r"drafter\.translate=true"):
        drafters.build(values, target=target)
    drafter = drafters.build(values | {"translate": True}, target=target)
    assert drafter.translation.shared == 5 and drafter.capabilities.vocab_size == 8

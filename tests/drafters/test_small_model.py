"""A model as drafter: its cache against a fresh start, its q against plain forward passes, in trees too."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from fixtures.drafting import (
    PROMPT,
    assert_drafted_from,
    assert_laws_are_those_of_drafts,
    assert_likeliest_paths,
    chain,
    decoded,
    dynamic,
    rows,
    shaken,
    tokens_of_calls,
)
from fixtures.refusals import refused
from fixtures.slow_eagle import random_rounds

from specdec.drafters.small_model import SmallModel
from specdec.errors import NumericsError
from specdec.records import Request, TextStart
from specdec.replay.expected_rounds import TextReplay
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder


@pytest.fixture
def target(tiny_model, sampling):
    return lambda **how: Causal(tiny_model("llama"), sampling(**how))


def test_only_what_the_cache_lacks_is_evaluated(target, tiny_model):
    beside = target(temperature=0.0)
    drafter = SmallModel(shaken(tiny_model("llama")), beside)
    with tokens_of_calls(drafter.model) as calls:
        drafter.start(TextStart(PROMPT, 64))
        full = drafter.draft(chain(3)).tokens.tolist()
        drafter.commit([*full, 5])  # all accepted: the last draft token was never evaluated
        again = drafter.draft(chain(3)).tokens.tolist()
        drafter.commit([(again[0] + 1) % 61])  # none accepted
        drafter.draft(chain(2))
        drafter.draft(chain(1))  # asked twice: one committed token is evaluated again
        drafter.draft(chain(0))
    assert list(map(len, calls)) == [len(PROMPT) - 1, 1, 1, 1, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("how", "drafts"),
    [
        ({"temperature": 1.0}, "greedy"),
        ({"temperature": 0.7, "top_k": 5}, "sampled"),
        ({"temperature": 1.3, "top_p": 0.6}, "sampled"),
    ],
)
def test_laws_are_the_q_of_single_steps(target, tiny_model, how, drafts):
    """Greedy drafts of a target that samples are point masses."""
    drafter = SmallModel(shaken(tiny_model("llama")), target(**how), drafts=drafts)
    assert_laws_are_those_of_drafts(drafter, PROMPT, [4, 9, 13, 2, 2, 60, 1])


def test_drafts_end_with_the_models_context(target, tiny_llama):
    beside = target(temperature=0.0)
    drafter = SmallModel(tiny_llama(61, context=10), beside)
    offered = []
    drafter.start(TextStart(PROMPT, 64))
    for token in range(5):
        offered.append(len(drafter.draft(chain(4))))
        drafter.commit([token])
    assert offered == [3, 2, 1, 0, 0]
    drafter.start(TextStart(list(range(12)), 64))
    assert len(drafter.draft(chain(4))) == 0
    assert drafter.laws(PROMPT, [1, 2, 3]) is not None and drafter.laws(PROMPT, [1, 2, 3, 4]) is None
    along = TextReplay(drafter, beside, chain(4), (1, 2, 3, 4, 5), Request(PROMPT, 5)).agreement()
    assert along.proposed.tolist() == [True, True, True, False, False]


def tokenizer_of(*pieces):
    """`check_same` reads the vocabulary and nothing else."""
    return SimpleNamespace(get_vocab=lambda: {piece: index for index, piece in enumerate(pieces)})


@pytest.mark.parametrize(("own", "theirs"), [(70, 61), (50, 61)])
def test_padding_of_the_output_matrix_may_differ(tiny_model, tiny_llama, sampling, own, theirs):
    """The same tokenizer, matrices of different widths: q has the target's, and nothing beyond the narrower one."""
    beside = Causal(tiny_model("llama"), sampling(temperature=1.0), tokenizer_of("a", "b", "c"))
    drafter = SmallModel(tiny_llama(own), beside, tokenizer_of("a", "b", "c"))
    assert drafter.capabilities.vocab_size == theirs
    prompt = [3, 60, 2]  # 60 is an id that the narrower matrix lacks
    drafter.start(TextStart(prompt, 64, generator=generator_for(0, "p", "draft")))
    draft = drafter.draft(chain(3))
    assert draft.q.shape == (3, 61) and not draft.q[:, own:].any()
    torch.testing.assert_close(draft.q.sum(-1), torch.ones(3).double(), atol=1e-12, rtol=0)
    read = [token if token < own else 0 for token in prompt]
    logits = drafter.model(torch.tensor([read])).logits[0, -1]
    expected = logits[: min(own, theirs)].softmax(-1)
    torch.testing.assert_close(draft.q[0, : len(expected)], expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(drafter.laws(prompt, [1, 60, 2])[0], draft.q[0], atol=1e-12, rtol=0)
    drafter.commit([60])
    drafter.draft(chain(2))


def test_another_tokenizer_is_refused(tiny_model, tiny_llama, sampling):
    """Without tokenizers the sizes are what a run compares."""
    assert SmallModel(tiny_llama(40), Causal(tiny_model("llama"), sampling())).capabilities.vocab_size == 40
    beside = Causal(tiny_model("llama"), sampling(), tokenizer_of("a", "b", "c"))
    for other in (tokenizer_of("a", "c", "b"), tokenizer_of("a", "b", "c", "d")):
        with refused(r"drafter\.model=.* drafter\.translate=true\.$"):
            SmallModel(tiny_llama(61), beside, other)


def test_logits_that_are_not_finite_end_the_run(target, tiny_model):
    """A q of NaN accepts nothing and corrects from p: silently wrong, hence an error before its tokens are kept."""
    beside, broken = target(temperature=1.0), deepcopy(tiny_model("llama"))
    drafter = SmallModel(broken, beside)
    broken.lm_head.weight[3] = torch.nan
    for structure in (chain(2), rows(2, 2)):
        with pytest.raises(NumericsError, match="drafter"):
            decoded(beside, drafter, structure, PROMPT, 8)
    with pytest.raises(NumericsError, match="drafter"):
        drafter.laws(PROMPT, [1, 2])


def test_a_threshold_ends_a_draft_after_the_token_that_crosses_it(target, tiny_model):
    beside = target(temperature=0.0)
    drafter = SmallModel(shaken(tiny_model("llama")), beside)
    drafter.start(TextStart(PROMPT, 64))
    whole = drafter.draft(chain(6))
    plain = drafter.model(torch.tensor([[*PROMPT, *whole.tokens.tolist()]])).logits[0, len(PROMPT) - 1 : -1]
    chances = plain.softmax(-1).gather(-1, whole.tokens[:, None]).squeeze(-1).cumprod(0).tolist()
    for threshold in (chances[0] + 1e-4, *(chance - 1e-4 for chance in chances[:4]), 1e-9):
        expected = next((i + 1 for i, chance in enumerate(chances) if chance < threshold), 6)
        with tokens_of_calls(drafter.model) as calls:
            draft = drafter.draft(chain(6).until(threshold))
        assert draft.tokens.tolist() == whole.tokens.tolist()[:expected]
        assert len(calls) == expected, "a step that is not taken costs nothing"


WAYS = ["independent", "without_replacement"]


def plain(drafter, text=PROMPT):
    return lambda node, above: drafter.model(torch.tensor([[*text, *above]])).logits[0, -1]


@pytest.mark.parametrize(
    ("family", "siblings", "structure", "temperature"),
    [
        *(("llama", siblings, structure, 1.5) for siblings in WAYS for structure in ("rows", "tree")),
        *(("mistral_window", "independent", "tree", 1.5), ("gpt2", "without_replacement", "rows", 1.5)),
        ("llama", "independent", "chain", 1.5),
        *(("llama", "greedy", "tree", 0.0), ("llama", "greedy", "rows", 0.0), ("llama", "greedy", "tree", 1.0)),
    ],
)
def test_nodes_are_choices_or_draws_of_the_model(
    tiny_model, sampling, make_structure, family, siblings, structure, temperature
):
    """Over rounds that accept any node or none: a tree's rows do not lie behind the prefix, a chain's do."""
    model, how = tiny_model(family), sampling(temperature=temperature, top_k=7)
    drafting = {"drafts": "greedy"} if siblings == "greedy" else {"siblings": siblings}
    target = Causal(model, how)
    drafter = SmallModel(shaken(model), target, **drafting)
    shapes = [make_structure(structure, 3), chain(3), make_structure(structure, 3)]
    for text, drafts in random_rounds(drafter, target, shapes, 2, 6):
        for length, draft in drafts:
            assert draft.tree.depth == 3 and (draft.q is None) == (siblings == "greedy")
            assert_drafted_from(draft, plain(drafter, text[:length]), how, independent=siblings == "independent")


@pytest.mark.parametrize("drafts", ["greedy", "sampled"])
def test_a_dynamic_tree_follows_the_models_confidence(target, tiny_model, drafts):
    """Whatever `drafts` says: nodes that were chosen for their tokens are point masses."""
    drafter = SmallModel(shaken(tiny_model("llama")), target(temperature=1.0), drafts=drafts)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    shape = dynamic(9, 2, 61, 61)  # nothing is out of the search's sight
    drafter.draft(shape)
    draft = drafter.draft(shape)  # asked twice, the cache is that of the text
    assert len(draft) == 9 and draft.tree.depth == 2
    assert_likeliest_paths(draft, lambda path: plain(drafter)(0, path), 2, 61)


def test_tokens_beyond_a_narrower_model_are_read_as_its_first(target, tiny_llama):
    """Three rows of a vocabulary of two: the third sibling is none of the model's own tokens."""
    drafter = SmallModel(tiny_llama(2), target(temperature=1.0))
    drafter.start(TextStart([0, 1, 1], 64, generator=generator_for(0, "p", "draft")))
    draft = drafter.draft(rows(3, 2))
    assert draft.tokens[2] >= 2 and len(draft) == 6
    assert not draft.q[3:, 2:].any() and not draft.q[:2, 2:].any()


def test_branches_need_models_of_one_tokenizer_and_decoders_only(tiny_encoder_decoder, sampling):
    model = tiny_encoder_decoder("t5")
    drafter = SmallModel(model, EncoderDecoder(model, sampling(temperature=0.0)))
    drafter.start(TextStart(PROMPT, 64))
    with refused(r"structure=rows: .*encoder-decoder.*structure=chain\.$"):
        drafter.draft(rows(2, 2))
    drafter = SmallModel(model, EncoderDecoder(model, sampling(temperature=0.0)))
    drafter.translation = object()
    with refused(r"drafter\.translate=true"):
        drafter.tree_model(rows(2, 2))

"""A model that drafts rows and trees: its laws against plain forward passes along every path, and its cache."""

import pytest
import torch
from fixtures.drafting import PROMPT, assert_drafted_from, assert_likeliest_paths, chain, dynamic, rows, shaken
from fixtures.slow_eagle import random_rounds

from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.targets.causal import Causal

WAYS = ["independent", "without_replacement"]


@pytest.fixture
def target(tiny_model, sampling):
    return lambda **how: Causal(tiny_model("llama"), sampling(**how))


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
    from specdec.targets.encoder_decoder import EncoderDecoder

    model = tiny_encoder_decoder("t5")
    drafter = SmallModel(model, EncoderDecoder(model, sampling(temperature=0.0)))
    drafter.start(TextStart(PROMPT, 64))
    with pytest.raises(UsageError, match=r"structure=rows: .*encoder-decoder.*structure=chain\.$"):
        drafter.draft(rows(2, 2))
    drafter = SmallModel(model, EncoderDecoder(model, sampling(temperature=0.0)))
    drafter.translation = object()
    with pytest.raises(UsageError, match=r"drafter\.translate=true"):
        drafter.tree_model(rows(2, 2), strategy="small_model")

"""A model that drafts rows and trees: its laws against plain forward passes along every path, and its cache."""

import pytest
import torch
from fixtures.drafting import assert_drafted_from, chain, dynamic, law_error, rows, shaken

from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.targets.causal import Causal

PROMPT = [7, 3, 19, 44, 3, 19, 52, 7]
WAYS = ["independent", "without_replacement"]


@pytest.fixture
def target(tiny_model, sampling):
    return lambda **how: Causal(tiny_model("llama"), sampling(**how))


def plain(drafter):
    return lambda node, above: drafter.model(torch.tensor([[*PROMPT, *above]])).logits[0, -1]


@pytest.mark.parametrize(
    ("family", "siblings", "structure"),
    [
        *(("llama", siblings, structure) for siblings in WAYS for structure in ("rows", "tree")),
        *(("mistral_window", "independent", "tree"), ("gpt2", "without_replacement", "rows")),
        ("llama", "independent", "chain"),
    ],
)
def test_q_is_what_each_node_was_drawn_from(tiny_model, sampling, make_structure, family, siblings, structure):
    model = tiny_model(family)
    how = sampling(temperature=1.5, top_k=7)
    drafter = SmallModel(shaken(model), Causal(model, how), siblings=siblings)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    for _ in range(2):  # asked twice, the cache is that of the text
        draft = drafter.draft(make_structure(structure, 3))
        assert draft.tree.depth == 3
        assert_drafted_from(draft, plain(drafter), how, independent=siblings == "independent")


@pytest.mark.parametrize(
    ("structure", "how"),
    [("tree", {"temperature": 0.0}), ("rows", {"temperature": 0.0}), ("tree", {"temperature": 1.0})],
)
def test_greedy_drafts_are_the_most_likely_tokens(target, tiny_model, make_structure, how, structure):
    drafter = SmallModel(shaken(tiny_model("llama")), target(**how), drafts="greedy")
    drafter.start(TextStart(PROMPT, 64))
    draft = drafter.draft(make_structure(structure, 3))
    assert draft.q is None and draft.tree == make_structure(structure, 3).tree or structure == "rows"
    assert_drafted_from(draft, plain(drafter))


@pytest.mark.parametrize("drafts", ["greedy", "sampled"])
def test_a_dynamic_tree_follows_the_models_confidence(target, tiny_model, drafts):
    """Whatever `drafts` says: nodes that were chosen for their tokens are point masses."""
    drafter = SmallModel(shaken(tiny_model("llama")), target(temperature=1.0), drafts=drafts)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    shape = dynamic(9, 2, 61, 61)
    drafter.draft(shape)
    draft = drafter.draft(shape)  # asked twice, the cache is that of the text
    # Nothing is out of the search's sight, so that its nodes are the likeliest of all paths.
    texts = torch.tensor([[*PROMPT, token] for token in range(61)])
    first = drafter.model(texts[:1, :-1]).logits[0, -1].log_softmax(-1)
    second = first.unsqueeze(1) + drafter.model(texts).logits[:, -1].log_softmax(-1)
    chances = {(token,): float(first[token]) for token in range(61)}
    chances |= {(token, other): float(second[token, other]) for token in range(61) for other in range(61)}
    likeliest = sorted(chances, key=chances.__getitem__, reverse=True)[:9]
    offered = [tuple(draft.tokens[list(draft.tree.path(node))].tolist()) for node in range(len(draft))]
    assert draft.q is None and sorted(offered) == sorted(likeliest) and draft.tree.depth == 2


@pytest.mark.parametrize(("siblings", "accepted"), [(WAYS[0], 3), (WAYS[1], 1), (WAYS[1], 0)])
def test_the_cache_after_a_round_is_that_of_a_fresh_start(target, tiny_model, make_structure, siblings, accepted):
    """After the last path of a tree, whose rows do not lie behind the prefix, or a part of it."""
    drafter = SmallModel(shaken(tiny_model("llama")), target(temperature=1.0), siblings=siblings)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    first = drafter.draft(rows(3, 3))
    path = first.tree.path(first.tree.leaves[-1])[:accepted]
    committed = [*(int(first.tokens[node]) for node in path), 5]
    drafter.commit(committed)
    second = drafter.draft(chain(3))
    laws = drafter.laws([*PROMPT, *committed], [*second.tokens.tolist(), 0])
    torch.testing.assert_close(second.q, laws[:3], atol=1e-12, rtol=0)
    # And a chain before a tree: what it left in the cache is used.
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    whole = drafter.draft(chain(3)).tokens.tolist()
    drafter.commit([*whole, 5])
    third = drafter.draft(make_structure("tree", 2))
    text = [*PROMPT, *whole, 5]
    torch.testing.assert_close(third.q[0], drafter.laws(text, [0])[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize(("verifier", "k", "w"), [("speculative_sampling", 2, 1), ("k_seq", 3, 1)])
def test_independent_siblings_are_lossless(enumeration, table, random_law, tiny_llama, verifier, k, w):
    """Every outcome of drafting, accepting and the loop, limit included; vocabulary 2, a model in float64."""
    beside = table(random_law(2, 5), temperature=1.0)
    drafter = SmallModel(tiny_llama(2), beside, siblings="independent")
    assert law_error(enumeration, beside, drafter, rows(k, w), [0, 1], w + 1, rule=verifier)[0] < 1e-12


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

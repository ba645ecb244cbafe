"""Merged trees of several models: which model gives which node, the q of each, and the draws by enumeration."""

import pytest
import torch
from fixtures.drafting import PROMPT, assert_drafted_from, dynamic, expansion, rows

from specdec.drafters.base import drafters
from specdec.drafters.small_model import SmallModel
from specdec.drafters.spec_tree import SpecTree
from specdec.errors import UsageError
from specdec.records import TextStart, Tree
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.tree_building.siblings import grow, growing


def models_of(tiny_llama, target, count, context=64, **how):
    size = target.vocab_size
    return {
        f"m{seed}": SmallModel(tiny_llama(size, context=context, seed=seed), target, **how) for seed in range(count)
    }


def expected_model(tree: Tree, node: int, count: int) -> int:
    """The model of a node, from the path down to it: each step adds the rank of the sibling."""
    return sum(tree.children[tree.parents[step] + 1].index(step) for step in tree.path(node)) % count


@pytest.mark.parametrize(
    ("shape", "children", "how", "count"),
    [
        (expansion(3, 2, 1), "sampled", {"temperature": 0.0}, 3),
        (expansion(3, 2, 1), "ranked", {"temperature": 1.0}, 2),
        (rows(3, 3), "sampled", {"temperature": 1.3, "top_k": 40}, 2),
        (rows(3, 3), "sampled", {"temperature": 0.0}, 1),
    ],
)
def test_nodes_are_choices_or_draws_of_their_own_models(tiny_llama, tiny_model, sampling, shape, children, how, count):
    """Against plain forward passes of each model over the path to each node, after several rounds; without the tokens
    of earlier siblings, whoever chose them.
    """
    target = Causal(tiny_model("llama"), sampling(**how))
    models = models_of(tiny_llama, target, count)
    drafter, text = SpecTree(models, target, children), list(PROMPT)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    for committed in ([3, 19, 44], [8, 8]):
        draft = drafter.draft(shape)
        assert draft.draws is None and sorted(draft.tree.depths) == sorted(shape.tree.depths)
        assert (draft.q is None) == (target.sampling.greedy or children == "ranked")
        strategies = [f"m{expected_model(draft.tree, node, count)}" for node in range(len(draft))]
        assert [source.strategy for source in draft.source] == strategies

        def logits_of(node, above, text=text, strategies=strategies):
            return models[strategies[node]].model(torch.tensor([[*text, *above]])).logits[0, -1].clone()

        assert_drafted_from(draft, logits_of, target.sampling, close=1e-10)
        drafter.commit(committed)
        text += committed


UNEQUAL = torch.tensor([[[1.0, 0.0, 0.0]] * 3, [[0.5, 0.5, 0.0]] * 3]).double()


@pytest.mark.parametrize(
    ("models", "shape"), [(3, expansion(3)), (2, rows(2, 2)), (0, expansion(3)), (1, expansion(3))]
)
def test_siblings_of_several_laws_were_drawn_from_their_q(enumeration, random_law, models, shape):
    """By enumeration, with up to three random laws, or with two of which one never draws what the other always draws:
    once a law is used up, the rest is drawn evenly. That such q leave the target's law alone is `contracts/`' own.
    """
    laws = torch.stack([random_law(3, 6 + place) for place in range(models)]) if models > 1 else UNEQUAL.roll(models, 0)
    told = {}

    def run():
        growth = growing(shape, "without_replacement", list("abc")[: len(laws)], enumeration.generator)
        draft = grow(
            growth, lambda asked: laws[:, [2 if node < 0 else int(asked.tokens[node]) for node in asked.nodes]]
        )
        tokens = tuple(draft.tokens.tolist())
        told[tokens] = float(draft.q.gather(-1, draft.tokens[:, None]).prod())
        return tokens

    assert enumeration.law(run) == pytest.approx(told, abs=1e-12) and sum(told.values()) == pytest.approx(1)


def test_several_models_draw_no_independent_siblings(random_law):
    laws = torch.stack([random_law(3, 0), random_law(3, 1)])
    for shape, how in ((rows(2, 1), "independent"), (dynamic(4, 2, 2, 2), "ranked")):
        with pytest.raises(ValueError, match="several models"):
            grow(growing(shape, how, ["a", "b"]), lambda asked: laws[:, [0] * len(asked.nodes)])


def test_a_model_with_a_short_context_drops_out(tiny_llama, tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    models = models_of(tiny_llama, target, 1) | {"short": SmallModel(tiny_llama(61, context=10, seed=4), target)}
    drafter = SpecTree(models, target, "sampled")
    drafter.start(TextStart(PROMPT, 64))
    assert {source.strategy for source in drafter.draft(expansion(2, 1)).source} == {"m0", "short"}
    drafter.commit([1, 2])
    assert drafter.draft(expansion(2, 1)).tree.depth == 1, "as deep as all that draft can go"
    drafter.commit([1])
    alone = drafter.draft(expansion(2, 1))
    assert {source.strategy for source in alone.source} == {"m0"} and alone.tree.depth == 2


def test_models_are_named_and_counted(drafter_values, table, random_law, tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    values = drafter_values("spec_tree", 61)
    drafter = drafters.build({**values, "models": [*values["models"], values["models"][0]]}, target=target)
    assert list(drafter.models) == ["first", "second", "first_2"]
    about = drafter.describe()
    assert about["first"]["sha256"] == about["first_2"]["sha256"] != about["second"]["sha256"] and about["sha256"]
    assert drafter.flops_per_token == sum(model.flops_per_token for model in drafter.models.values()) > 0
    with pytest.raises(UsageError, match="made for a vocabulary of 61 tokens, the target has 4"):
        drafters.build(values, target=table(random_law(4, 0), temperature=0.0))

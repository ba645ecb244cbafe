"""Staged drafts: the tokens and q of the outer model alone, over many rounds and rejections, whatever speeds it up."""

import random
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from fixtures.drafting import chain, ngram, shaken, tokens_of_calls
from fixtures.refusals import refused

from specdec.certification.exact import TableDrafter
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.drafters.early_exit import EarlyExit, ExitLayer
from specdec.drafters.medusa import Medusa
from specdec.drafters.small_model import SmallModel
from specdec.drafters.staged import DraftTarget, Staged
from specdec.errors import NumericsError
from specdec.records import EMPTY, Draft, Source, TextStart, chain_tree
from specdec.sampling import generator_for
from specdec.targets.causal import Causal

PROMPT = [7, 3, 19, 44, 3, 19, 52, 7, 3]


def model_of(model):
    return lambda outer: SmallModel(model, outer)


def staged(model, target, by, shape=None, **how):
    small = SmallModel(model, target, **how)
    outer = DraftTarget(small, target)
    return Staged(small, outer, by(outer), shape or chain(2))


class Table(TableDrafter):
    """Names the source of its tokens. It takes none back, so that it is started anew after every rejection."""

    def draft(self, structure):
        draft = super().draft(structure)
        return replace(draft, source=(Source("table", 0),) * len(draft))


COMMITTED = {
    "none": lambda first: [1 - first[0]],
    "some": lambda first: [first[0], 1 - first[1]],
    "all": lambda first: [*first, 1],
}


@pytest.mark.parametrize(
    ("way", "committed"), [*(("table", committed) for committed in COMMITTED), ("ngram", "some"), ("model", "all")]
)
def test_a_chain_has_the_law_of_the_model_alone(enumeration, table, random_law, tiny_llama, way, committed):
    """By enumeration of everything that is drawn inside: the tokens of two rounds, and the q that travels with them."""
    prompt, target = [0, 1, 0, 1, 1, 0], table(random_law(2, 0), temperature=1.0)
    cheap = tiny_llama(2, layers=1, seed=5)
    by = {"table": lambda outer: Table(random_law(2, 3)), "ngram": ngram, "model": model_of(cheap)}
    drafter = staged(tiny_llama(2, layers=1), target, by[way])
    laws: dict[tuple[int, ...], torch.Tensor] = {}

    def run():
        drafter.start(TextStart(prompt, 64, generator=enumeration.generator))
        first = drafter.draft(chain(2))
        tokens = first.tokens.tolist()
        drafter.commit(COMMITTED[committed](tokens))
        second = drafter.draft(chain(1))
        tokens += second.tokens.tolist()
        laws[tuple(tokens)] = torch.cat([first.q, second.q])
        return tuple(tokens)

    found = enumeration.law(run)
    assert len(found) == 8
    for tokens, chance in found.items():
        text = [*prompt, *COMMITTED[committed](tokens[:2])]
        q = torch.cat([drafter.laws(prompt, tokens[:2]), drafter.laws(text, tokens[2:])])
        assert chance == pytest.approx(float(q.gather(-1, torch.tensor(tokens).unsqueeze(-1)).prod()), abs=1e-12)
        torch.testing.assert_close(laws[tokens], q, atol=1e-12, rtol=0)


def walk(drafter, alone, rounds, seed=0, gamma=5):
    """Chains of a drafter and of another one along a text, in which rounds keep any number of their tokens."""
    dice, text = random.Random(seed), list(PROMPT)
    for each in (drafter, alone):
        each.start(TextStart(PROMPT, 500))
    for _ in range(rounds):
        drafts = [each.draft(chain(gamma)) for each in (drafter, alone)]
        yield text, *drafts
        tokens = drafts[0].tokens.tolist()
        kept = dice.choice([0, 1, 2, gamma - 1, gamma, gamma])
        text += (committed := [*tokens[:kept], dice.randrange(61)])
        for each in (drafter, alone):
            each.commit(committed)


WAYS = {
    "ngram": lambda model, heads: ngram,
    "model": lambda model, heads: model_of(shaken(model, 0.05)),
    "heads": lambda model, heads: lambda outer: Medusa(heads(outer), outer),
    "early exit": lambda model, heads: lambda outer: EarlyExit(outer, ExitLayer(1, "config", {})),
    "two stages": lambda model, heads: lambda outer: staged(shaken(model, 0.04), outer, ngram),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_greedy_chain_is_the_models_own(tiny_model, sampling, random_heads, make_structure, way):
    """Heads draft trees, and greedy drafts by n-grams are for a target that samples."""
    target = Causal(tiny_model("llama"), sampling(temperature=0.8 if way == "ngram" else 0.0))
    outer = shaken(target.model, 0.05, seed=3)
    inner = make_structure("tree" if way == "heads" else "chain", 3)
    drafter = staged(outer, target, WAYS[way](outer, random_heads), inner, drafts="greedy")
    for text, draft, alone in walk(drafter, SmallModel(outer, target, drafts="greedy"), 5):
        assert draft.tokens.tolist() == alone.tokens.tolist(), len(text)
        assert draft.q is None and len(draft.source) == 5


def test_calls_of_the_model_are_the_nodes_of_its_own(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    outer = shaken(target.model, 0.05, seed=3)
    drafter = staged(outer, target, model_of(shaken(outer, 0.01)), chain(2))
    seen = 0
    drafter.start(TextStart(PROMPT, 500))
    for _ in range(5):
        with tokens_of_calls(outer) as calls:
            draft = drafter.draft(chain(6))
        assert len(calls) <= [source.strategy for source in draft.source].count("small_model")
        seen += len(calls)
        drafter.commit([*draft.tokens.tolist(), 5])
    assert seen < 0.6 * 5 * 6


class Reader(Drafter):
    """Checks what it is told: states and logits are those of the tokens of its text, none missing and none twice."""

    def __init__(self, outer, needs):
        self.outer, self.seen, self.drafts, self.starts = outer, False, 0, 0
        self.own = outer.hidden.keep(0) if "reads_states" in needs else None
        self.capabilities = DrafterCapabilities(fills=frozenset({"chain"}), **needs)

    def _check(self, tokens, states):
        if self.own is not None:
            wanted, _ = self.outer.hidden.sequence(torch.tensor([self.text]), 0)
            torch.testing.assert_close(self.own(states), wanted[0, -len(tokens) - 1 : -1], atol=1e-10, rtol=0)

    def start(self, text, states=None):
        self.text, self.seen, self.anew, self.starts = list(text.prompt), False, True, self.starts + 1
        assert self.text == PROMPT, "prompt and output are told apart"
        self._check(self.text[:-1], states)

    def retract(self, count):
        del self.text[len(self.text) - count :]
        return True

    def draft(self, structure):
        self.drafts += 1
        assert self.text == self.known(), "told of the text and of the tokens of this chain, and of no others"
        tokens = [(self.text[-1] + 1) % 61] * structure.gamma
        size = len(tokens)
        return Draft(torch.tensor(tokens, dtype=torch.long), chain_tree(size), source=(Source("reader", 0),) * size)

    def observe(self, draft, logits):
        _, wanted = self.outer.hidden.sequence(torch.tensor([[*self.text, *draft.tokens.tolist()]]), 0)
        torch.testing.assert_close(logits, wanted[0, len(self.text) - 1 :], atol=1e-10, rtol=0)
        self.seen = True

    def commit(self, tokens, states=None):
        # Only what was text when it was started anew comes without the model's logits.
        assert self.seen or self.anew or not self.capabilities.reads_logits
        self.anew = False
        self.text, self.seen = [*self.text, *tokens], False
        self._check(tokens, states)


@pytest.mark.parametrize("needs", [{}, dict(reads_states=True, reads_logits=True)])
def test_states_and_logits_are_the_models_own(tiny_model, sampling, needs):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    outer = shaken(target.model, 0.05, seed=3)
    drafter = staged(outer, target, lambda beside: Reader(beside, needs))
    drafter.by.known = lambda: drafter._known
    for _, draft, alone in walk(drafter, SmallModel(outer, target), 10, seed=2):
        assert draft.tokens.tolist() == alone.tokens.tolist()
    assert drafter.by.drafts > 10
    assert 2 < drafter.by.starts < 9 if needs else drafter.by.starts == 1, drafter.by.starts


@pytest.mark.parametrize(("width", "temperature"), [(59, 1.0), (64, 0.0)])
def test_matrices_may_be_padded_differently(tiny_model, tiny_llama, sampling, width, temperature):
    target = Causal(tiny_model("llama"), sampling(temperature=temperature))
    drafter = staged(tiny_llama(width, context=400), target, ngram)
    drafter.start(TextStart([*PROMPT, 60, 3, 19], 300, generator=generator_for(0, "p", "draft")))
    for _ in range(3):
        draft = drafter.draft(chain(4))
        assert (draft.tokens < min(width, 61)).all()
        if draft.q is not None:
            assert draft.q.shape == (4, 61) and (draft.q.sum(-1) - 1).abs().max() < 1e-9
        drafter.commit([int(draft.tokens[0]), 60])


def test_the_models_context_ends_the_drafts(tiny_model, tiny_llama, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    drafter = staged(tiny_llama(61, context=12), target, ngram)
    drafter.start(TextStart(PROMPT, 40))
    assert len(drafter.draft(chain(9))) == 4
    drafter.commit([3, 19, 44])
    assert len(drafter.draft(chain(9))) == 1
    drafter.commit([3, 19])
    assert drafter.draft(chain(9)) is EMPTY
    drafter.start(TextStart([*PROMPT, *PROMPT], 40))
    assert drafter.draft(chain(3)) is EMPTY and not drafter.retract(1)


def test_logits_that_are_not_finite_end_the_run(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    outer = deepcopy(target.model)
    drafter = staged(outer, target, ngram)
    drafter.start(TextStart(PROMPT, 40, generator=generator_for(0, "p", "draft")))
    outer.lm_head.weight[3] = torch.nan
    with pytest.raises(NumericsError, match=r"drafter\.of\.dtype=float32"):
        drafter.draft(chain(3))


def test_bad_parts_are_one_sentence(group_values, drafter_values, table, random_law):
    """Heads of the target among them, which would read the states of the drafting model."""
    target, values = table(random_law(3, 0), temperature=0.0), drafter_values("staged", 3)
    for changes, sentence in (
        ({"by": values["by"] | {"x": 1}}, r"Unknown key drafter\.by\.x"),
        ({"by": values["by"] | {"order_max": 0}}, r"drafter\.by\.order_max=0"),
        ({"of": group_values("drafter", "ngram")}, r"drafter\.of\.name=ngram"),
        ({"of": values}, r"belongs in drafter\.by"),
        ({"by": group_values("drafter", "oracle")}, "reads a recorded text"),
        ({"of": values["of"] | {"model": "/no/such"}}, "/no/such"),
        ({"structure": group_values("structure", "chain", gamma=0)}, r"drafter\.structure\.gamma=0"),
        ({"structure": group_values("structure", "dynamic")}, r"drafter\.by fills only chain, rows, tree"),
        ({"of": drafter_values("small_model", 5)}, "made for a vocabulary of 5"),
        ({"by": drafter_values("medusa", 3, target)}, "weights"),
    ):
        with refused(sentence):
            drafters.build(values | changes, target=target)


def test_it_costs_what_both_parts_do(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    drafter = staged(tiny_model("llama"), target, model_of(shaken(target.model, 0.1)))
    about = drafter.describe()
    assert about["parameters"] == about["of"]["parameters"] + about["by"]["parameters"] > 0
    assert drafter.flops_per_token == 2 * drafter.small.flops_per_token > 0

"""The choice of a drafter for each round: the rule against a slow one, and by enumeration that it biases nothing."""

from math import log, sqrt

import pytest
import torch
from fixtures.drafting import PROMPT, chain, law_error, ngram
from fixtures.refusals import refused

from specdec.certification.exact import TableDrafter
from specdec.drafters.adaptive import Adaptive
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.drafters.cascade import Cascade
from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, Source, TextStart, chain_tree
from specdec.targets.causal import Causal

FREE = {"a": 0.0, "b": 0.0}


class Fixed(Drafter):
    def __init__(self, token, needs=frozenset(), retracts=True):
        self.token, self.told, self.states, self.retracts = token, [], [], retracts
        self.capabilities = DrafterCapabilities(
            fills=frozenset({"chain"}), replay="position", **dict.fromkeys(needs, True)
        )

    def start(self, text, states=None):
        self.told, self.states = [("start", tuple(text.prompt))], [states]

    def draft(self, structure):
        size = structure.gamma
        tokens = torch.full((size,), self.token, dtype=torch.long)
        return Draft(tokens, chain_tree(size), source=(Source(f"fixed{self.token}", 0),) * size)

    def observe(self, draft, logits):
        self.told.append(("observe", len(draft)))

    def commit(self, tokens, states=None):
        self.told.append(("commit", tuple(tokens)))
        self.states.append(states)

    def retract(self, count):
        self.told.append(("retract", count))
        return self.retracts


def slow_choice(history, allowed, discount, exploration):
    """The rule as the paper states it, from the whole history [(arm, tokens, cost), ...]."""
    weights = [discount**age for age in reversed(range(len(history)))]
    everything = max(1.0, sum(weights))
    best, most = None, -1.0
    for arm in allowed:
        mine = [(weight, *entry[1:]) for weight, entry in zip(weights, history, strict=True) if entry[0] == arm]
        if not mine:
            return arm
        rounds = sum(weight for weight, _, _ in mine)
        ratio = sum(weight * tokens for weight, tokens, _ in mine) / sum(weight * cost for weight, _, cost in mine)
        index = ratio + exploration * sqrt(log(everything) / rounds)
        if index > most + 1e-12:
            best, most = arm, index
    return best


@pytest.mark.parametrize(("discount", "exploration"), [(0.9, 0.3), (1.0, 2.0), (0.5, 0.0)])
def test_rounds_are_chosen_by_yield_and_cost(discount, exploration):
    """Every choice of 50 rounds against the rule, from what each round committed and cost, in two texts."""
    parts, costs = {"cheap": Fixed(1), "dear": Fixed(2)}, {"cheap": 0.0, "dear": 0.4}
    cascade = Cascade(parts, costs, [1, 3], verification=0.05, discount=discount, exploration=exploration)
    arms = [(1, 1), (1, 3), (2, 1), (2, 3)]  # token and depth
    for right in (2, 1):  # of the text: the other drafter proposes nothing that is accepted
        cascade.start(TextStart(PROMPT, 500))
        history, used = [], []
        for step in range(50):
            shape = chain(2 if step % 7 == 6 else 6)
            allowed = [arm for arm, (_, depth) in enumerate(arms) if depth <= shape.gamma]
            draft = cascade.draft(shape)
            assert torch.equal(draft.tokens, cascade.draft(shape).tokens), "asking changes nothing"
            arm = slow_choice(history, allowed, discount, exploration)
            assert (int(draft.tokens[0]), len(draft)) == arms[arm], step
            assert {source.strategy for source in draft.source} == {f"fixed{arms[arm][0]}"}
            accepted = len(draft) if draft.tokens[0] == right else 0
            cascade.commit([right] * accepted + [9])
            history.append((arm, accepted + 1, 1 + len(draft) * (0.05 + (0.0 if arms[arm][0] == 1 else 0.4))))
            used.append(arm)
            if step % 5 == 4:
                cascade.commit([9, 9, 9])  # a round that another drafter made says nothing about the arms
        # At a cost of 0.45 for each token, one or three accepted ones give (2, 4) / (1.45, 2.35).
        if discount == 0.9:
            assert used[20:].count(3 if right == 2 else 1) > 20


def test_every_part_is_told_of_every_round():
    learner = Fixed(2, needs={"reads_logits", "reads_states"})
    cascade = Cascade({"a": Fixed(1), "b": learner}, FREE, None)
    assert cascade.capabilities.reads_logits and cascade.capabilities.reads_states
    given = [torch.full((2, 3), float(number)) for number in range(4)]
    cascade.start(TextStart(PROMPT, 100), given[0])
    for tokens, states in zip(([1, 5], [5], [2, 2, 5]), given[1:], strict=True):
        draft = cascade.draft(chain(2))
        cascade.observe(draft, torch.zeros(3, 9))
        cascade.commit(tokens, states)
    assert all(one is other for one, other in zip(learner.states, given, strict=True))
    commits = [("commit", (1, 5)), ("commit", (5,)), ("commit", (2, 2, 5))]
    start = ("start", tuple(PROMPT))
    assert cascade.parts["a"].told == [start, *commits]
    assert learner.told == [start, *(entry for commit in commits for entry in (("observe", 2), commit))]
    assert cascade.retract(2) and learner.told[-1] == cascade.parts["a"].told[-1] == ("retract", 2)
    learner.retracts = False
    assert not cascade.retract(1), "then all are started anew"


def test_the_end_of_a_text_and_of_the_depths():
    cascade = Cascade({"a": Fixed(1), "b": Fixed(2)}, FREE, [4, 2])
    cascade.start(TextStart(PROMPT, 100))
    assert cascade.draft(chain(4).clamped(0)) is EMPTY
    cascade.commit([3])
    assert len(cascade.draft(chain(1))) == 1, "where all depths are too large, the least one, cut"
    assert len(cascade.draft(chain(9))) == 2, "the depths in order"
    cascade.commit([3])
    assert len(cascade.draft(chain(9))) == 4


REPEATING = [0, 1, 1, 0, 1]


@pytest.mark.parametrize(("gammas", "exploration"), [(None, 1.0), ([1, 2], 0.0)])
def test_choosing_by_past_rounds_is_lossless(enumeration, table, random_law, gammas, exploration):
    target = table(random_law(2, 5), temperature=1.0)
    parts, costs = {"points": ngram(target), "good": TableDrafter(random_law(2, 5))}, {"points": 0.0, "good": 0.1}
    if gammas is None:
        parts["bad"], costs["bad"] = TableDrafter(random_law(2, 6)), 0.0
    cascade = Cascade(parts, costs, gammas, exploration=exploration, discount=0.5)
    worst, seen = law_error(enumeration, target, cascade, chain(2), REPEATING, 5)
    assert worst < 1e-12 and {len(row.draft_tokens) for row in seen} >= {0, 1, 2}
    assert {source.strategy for row in seen for source in row.source} == {"ngram", "table"}


def test_a_stale_round_counts_for_no_adaptive_length(tiny_model, tiny_llama, sampling):
    """A wrapped drafter must not take another one's round for its own."""
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    adaptive = Adaptive(SmallModel(tiny_llama(61, context=200, layers=1), target), "heuristic", length=5)
    cascade = Cascade({"a": adaptive, "b": Fixed(2)}, FREE, None)
    cascade.start(TextStart(PROMPT, 150))
    assert len(cascade.draft(chain(9))) == 5
    cascade.commit([60])
    cascade.draft(chain(9))  # the other's turn
    cascade.commit([60])
    assert len(adaptive.draft(chain(9))) == 4


def test_costs_are_relative_operations(tiny_model, sampling, group_values, drafter_values):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    of = {"small": drafter_values("small_model", 61), "context": group_values("drafter", "ngram")}
    cascade = drafters.build(group_values("drafter", "cascade", of=of), target=target)
    small = cascade.parts["small"]
    assert cascade.costs["small"] == pytest.approx(small.flops_per_token / target.flops_per_token)
    assert cascade.costs["context"] == 0.0 and cascade.flops_per_token == small.flops_per_token
    priced = drafters.build(group_values("drafter", "cascade", of=of, costs={"small": 0.07}), target=target)
    assert priced.costs["small"] == 0.07 and priced.describe()["costs"] == {"small": 0.07, "context": 0.0}
    assert cascade.describe()["sha256"] and cascade.describe()["small"]["class"] == "LlamaForCausalLM"


def test_bad_configurations_are_one_sentence(table, random_law, group_values, drafter_values):
    for changes, said in (
        ({"of": {}}, r"drafter\.of=\{\}: there is nothing to choose from"),
        ({"of": {"x": {"name": "ngrm"}}}, "Did you mean ngram"),
        ({"of": {"x": {"q": 1}}}, r"Missing key drafter\.of\.x\.name"),
        ({"gammas": []}, r"drafter\.gammas=\[\]"),
        ({"costs": {"y": 0.1}}, r"drafter\.costs\.y=0\.1: drafter\.of has no such drafter; it has context"),
        (
            {"of": {"x": drafter_values("small_model", 5)}},
            r"x\.name=small_model: it was made for a vocabulary of 5",
        ),
    ):
        values = group_values("drafter", "cascade", of={"context": group_values("drafter", "ngram")})
        with refused(said):
            drafters.build({**values, **changes}, target=table(random_law(4, 0), temperature=0.0))
    nowhere = Fixed(1)
    nowhere.capabilities = DrafterCapabilities(fills=frozenset({"dynamic"}))
    with pytest.raises(UsageError, match="no structure that all"):
        Cascade({"a": Fixed(1), "b": nowhere}, FREE, None)

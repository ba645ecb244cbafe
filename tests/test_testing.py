"""The conformance suite finds what is wrong with a drafter or a rule, and finds nothing wrong with specdec's own."""

from unittest import SkipTest

import pytest
import torch
from fixtures.suite_outcomes import outcomes

from specdec.certification.exact import fill
from specdec.drafters.base import Drafter, DrafterCapabilities
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, Source, chain_tree
from specdec.testing import cases_of, drafter_cases, verifier_cases

# Cases that take seconds: tiny models, and the law of texts whose every draft is drawn. Each is tried once.
GREEDY, TEXTS = "chain: greedy identity", "chain: exact law of texts"


class Follower(Drafter):
    """Proposes what followed the last token when it was last seen."""

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), replay="start")

    def __init__(self):
        self.text, self.rejected = [], 0

    def start(self, text, states=None):
        self.text, self.generator = list(text.prompt), text.generator

    def commit(self, tokens, states=None):
        self.text += tokens

    def proposed(self, most):
        seen = [place for place in range(len(self.text) - 1) if self.text[place] == self.text[-1]]
        return self.text[seen[-1] + 1 :][:most] if seen else []

    def draft(self, structure):
        tokens = self.proposed(structure.gamma)
        source = (Source("follower", 0),) * len(tokens)
        return Draft(torch.tensor(tokens, dtype=torch.long), chain_tree(len(tokens)), source=source)


class Silent(Follower):
    def draft(self, structure):
        return EMPTY


class Long(Follower):
    def proposed(self, most):
        return super().proposed(most + 1)


class Stale(Follower):
    """Keeps its rejected tokens, as a cache does that is not rolled back."""

    def draft(self, structure):
        draft = super().draft(structure)
        self.text += draft.tokens.tolist()[:1]
        return draft


class Lasting(Follower):
    """Keeps its texts, and proposes what followed the last token when it was first seen."""

    def proposed(self, most):
        return self.text[self.text.index(self.text[-1]) + 1 :][:most]

    def start(self, text, states=None):
        earlier = self.text
        super().start(text)
        self.text = [*earlier, *self.text]


class Drawn(Follower):
    """Draws from a law, with the q of another one where `wrong` is set."""

    wrong, source = False, None

    def draft(self, structure):
        table = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1]]).expand(5, 5).double()[:, : self.size]
        table = table / table.sum(-1, keepdim=True)
        draft = fill(structure, table, self.text[-1], self.source or self.generator, "independent")
        q = draft.q.roll(1, dims=-1) if self.wrong and draft.q is not None else draft.q
        return Draft(draft.tokens, draft.tree, q, (Source("drawn", 0),) * len(draft))


class WrongQ(Drawn):
    wrong = True


class Hidden(Drawn):
    """Draws from torch's global generator."""

    source = torch.default_generator


def made(cls):
    def make(target):
        drafter = cls()
        drafter.size = target.vocab_size
        return drafter

    slow = (GREEDY, TEXTS) if issubclass(cls, Drawn) else (GREEDY,)
    return [case for case in cases_of(make, cls.capabilities) if case.name not in slow]


@pytest.mark.parametrize("cls", [Follower, Drawn])
def test_a_good_drafter_passes(cls):
    found = outcomes(made(cls))
    assert not any(found.values()), found
    skipped = {name for name, sentence in found.items() if sentence is None}
    assert skipped == {"chain: tokens taken back leave no trace", "chain: a replay by position is right"}


@pytest.mark.parametrize(
    ("cls", "case", "says"),
    [
        (Silent, "something is proposed", "Nothing was proposed in any round"),
        (Long, "chain: drafts are well formed", "has 2 nodes, and the structure asks for 1 at most"),
        (Stale, "chain: a rejection leaves nothing stale", "after 1 rounds is not that of a new drafter"),
        (Lasting, "chain: a new text starts from nothing", "depend on the text before"),
        (WrongQ, "chain: q is the law of the draws", "a chance is wrong by 4.0e-01"),
        (Hidden, "chain: global randomness is left alone", "draw with TextStart.generator"),
    ],
)
def test_a_fault_has_its_sentence(cls, case, says):
    assert says in outcomes([each for each in made(cls) if each.name == case])[case]


def test_a_drafter_that_cannot_draft_for_a_table_is_skipped():
    def refuse(target):
        raise UsageError("It needs its own model.")

    cases = [case for case in cases_of(refuse, Follower.capabilities) if case.name != GREEDY]
    assert set(outcomes(cases).values()) == {None}


def test_our_own_pass_by_name():
    found = outcomes(case for case in drafter_cases("recycling") if "greedy" not in case.name)
    assert not any(found.values()), found
    assert list(found.values()).count("") > 30


def test_greedy_texts_of_tiny_models_are_compared_and_values_of_the_yaml_replaced():
    (case,) = [case for case in drafter_cases("ngram") if case.name == GREEDY]
    case.run()
    with pytest.raises(UsageError, match="drafter.order_max=0"):
        drafter_cases("ngram", order_max=0)


def test_a_lossy_rule_has_nothing_to_conform_to():
    with pytest.raises(SkipTest, match="not lossless"):
        verifier_cases("typical")[0].run()

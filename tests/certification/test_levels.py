"""Each level of a certificate passes what is lossless and catches the bugs that it should see."""

from dataclasses import replace

import pytest
from fixtures.drafting import shaken
from scipy import stats

import specdec.decode
from specdec.certification import exact, greedy_identity
from specdec.certification.certificate import concluded
from specdec.certification.certifier import near_tie_check, report
from specdec.certification.exact import (
    FILL,
    WAYS,
    TableDrafter,
    arm_of,
    random_law,
    rule_checks,
    small_structure,
    table_target,
)
from specdec.certification.greedy_identity import identity_checks
from specdec.certification.statistical import draw
from specdec.certification.tiny_models import load_tiny_model
from specdec.config import CertificateConfig
from specdec.drafters.small_model import SmallModel
from specdec.records import Draft
from specdec.session.rescoring import Divergence
from specdec.structures.base import structures
from specdec.targets.causal import Causal
from specdec.verifiers.base import verifiers

FALSE_ALARM = 0.01
LOSSLESS = [
    (verifier, structure)
    for verifier in verifiers.names()
    for structure in structures.names()
    if verifiers.get(verifier).capabilities.lossless and structure in verifiers.get(verifier).capabilities.handles
]
SAMPLED = [pair for pair in LOSSLESS if not verifiers.get(pair[0]).capabilities.greedy_only]
RULE = "speculative_sampling"
ONE_BY_ONE = {(name, structure) for name, structure in dict(SAMPLED).items()} | {
    pair for pair in SAMPLED if pair[0] == RULE
}  # every rule, and every structure; the contracts prove all pairs by enumeration
FEW = CertificateConfig(false_alarm=FALSE_ALARM, rounds=60, places=1, redraws=200, redrafts=60, outputs=1)
PROMPTS = [("a", [0, 1, 2, 0, 1]), ("b", [2, 1, 0])]
DRAFTED = "drawn drafts against their own q, by rank"


def rule(name=RULE):
    return verifiers.build({"name": name})


def table_arm(verifier, structure, way="independent", drafter=TableDrafter, size=4, gamma=2):
    target = table_target(random_law(size, 5), temperature=1.0)
    return arm_of(target, drafter(random_law(size, 6), way), verifier, small_structure(structure, gamma))


def failed(checks):
    return {check.name for check in checks if check.verdict == "FAILED"}


# Lossless parts pass ------------------------------------------------------------------------------


@pytest.mark.parametrize(("verifier", "structure"), [("greedy", name) for name in FILL])
def test_the_exact_level_passes_lossless_rules(verifier, structure):
    checks = rule_checks(rule(verifier), structure)
    assert [check.verdict for check in checks] == ["passed"] * 3
    assert all(check.facts["error"] < 1e-12 for check in checks) and concluded(checks)[0] == "certified"


@pytest.mark.parametrize(("verifier", "structure"), sorted(ONE_BY_ONE))
def test_the_statistical_level_passes_lossless_combinations(verifier, structure):
    way = "ranked" if structure == "dynamic" else WAYS[structure][0]
    drawn = draw(table_arm(rule(verifier), structure, way), PROMPTS, FEW, 16, seed=1)
    checks = drawn.checks()
    assert not failed(checks) and checks[0].name == "states after commits" and checks[0].verdict == "passed"
    assert len(drawn.power()) == 2


def test_a_rule_that_draws_from_elsewhere_is_not_proven():
    class Elsewhere(type(rule())):
        def accept(self, draft, p, generator):
            return super().accept(draft, p, None)

    (first, *_) = rule_checks(Elsewhere(), "chain")
    assert first.verdict == "FAILED" and "Unfollowed: randomness must come from the generator" in first.detail


def test_structures_that_no_table_fills_are_not_applicable():
    assert [check.verdict for check in rule_checks(rule(), "hexagon")] == ["not applicable"]


@pytest.mark.slow
def test_true_combinations_fail_as_rarely_as_stated():
    """60 certificates at 10%: more failures than 15 have chance 1e-4; none at all would say that nothing is tested."""
    arm = table_arm(rule(), "chain", size=3)
    few = replace(FEW, false_alarm=0.1, rounds=30, redraws=80)
    failures = sum(bool(failed(draw(arm, PROMPTS, few, 12, seed).checks())) for seed in range(60))
    assert 1 <= failures <= stats.binom.isf(1e-4, 60, 0.1)


# Planted bugs -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_exact_catches_a_token_dropped_at_the_length_limit(monkeypatch):
    whole = specdec.decode.cut

    def dropping(path_tokens, next_token, room, end_tokens):
        kept = path_tokens[1:] if path_tokens and len(path_tokens) + 1 >= room else path_tokens
        return whole(kept, next_token, room, end_tokens)

    monkeypatch.setattr(specdec.decode, "cut", dropping)
    families = exact._cases
    few = {family: cases[-3:] for family, cases in families(rule(), "chain").items()}
    monkeypatch.setattr(exact, "_cases", lambda *asked: few)
    assert failed(rule_checks(rule(), "chain")) == {"rule on chain: texts of the loop"}


@pytest.mark.slow
def test_exact_catches_an_off_by_one_commit(monkeypatch):
    from specdec.targets.base.model_target import ModelTarget

    right = ModelTarget.commit
    chain = small_structure("chain", 3)
    monkeypatch.setattr(greedy_identity, "ARCHITECTURES", {"llama": None})
    monkeypatch.setattr(ModelTarget, "commit", lambda self, path, token: right(self, path[:-1], token))
    assert failed(identity_checks(rule(), chain)) == {"greedy identity: any path"}


# On models, as on a user's own ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy_llama():
    """A model that agrees with the tiny Llama about half of the time."""
    return shaken(load_tiny_model("llama"), seed=2)


@pytest.fixture
def model_arm(sampling, noisy_llama):
    def make(kind=SmallModel, of=Causal):
        target = of(load_tiny_model("llama"), sampling(temperature=1.5))
        return arm_of(target, kind(noisy_llama, target), rule(), small_structure("chain", 3))

    return make


MODEL_PROMPTS = [("a", [7, 3, 19, 44, 3, 19]), ("b", [1, 2, 3, 4]), ("c", [50, 9, 9, 31, 2])]
MODEL_DRAWS = replace(FEW, rounds=100, redraws=2000, redrafts=100)


class StaleLaw(SmallModel):
    """Tells, after a rejection, the laws of the draft that was rejected."""

    stale = None
    offered = 0

    def draft(self, structure):
        draft = super().draft(structure)
        q = draft.q if self.stale is None or len(self.stale) != len(draft) else self.stale
        self.told, self.offered, self.stale = draft.q, len(draft), None
        return Draft(draft.tokens, draft.tree, q, draft.source)

    def commit(self, tokens, states=None):
        super().commit(tokens, states)
        self.stale = self.told if len(tokens) <= self.offered else None


class StaleRoot(Causal):
    """Goes on, after a rejection, from the token that was rejected."""

    def verify(self, draft):
        self.offered = draft.tokens
        return super().verify(draft)

    def commit(self, path, next_token):
        super().commit(path, next_token)
        if len(path) < len(self.offered):
            self._root = self.offered[len(path) : len(path) + 1].clone()


@pytest.mark.slow
def test_models_that_are_right_pass(model_arm):
    drawn = draw(model_arm(), MODEL_PROMPTS, MODEL_DRAWS, 60, seed=1)
    assert not failed(drawn.checks())
    assert {test.draws for test in drawn.single} == {100}, "drafts are drawn: whole rounds were drawn again"
    assert len(drawn.live + drawn.single) == 6 and drawn.level == pytest.approx(FALSE_ALARM / 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "caught", "passed"),
    [({"kind": StaleLaw}, DRAFTED, {"states after commits"}), ({"of": StaleRoot}, "states after commits", set())],
)
def test_statistics_catch_another_law_and_a_stale_state(model_arm, parts, caught, passed):
    wrong = failed(draw(model_arm(**parts), MODEL_PROMPTS, MODEL_DRAWS, 60, seed=1).checks())
    assert caught in wrong and not wrong & passed


@pytest.mark.parametrize("of", [Causal, StaleRoot])
def test_the_greedy_level_compares_with_plain_decoding(sampling, noisy_llama, of):
    target = of(load_tiny_model("llama"), sampling(temperature=0.0))
    arm = arm_of(target, SmallModel(noisy_llama, target), rule().for_greedy(), small_structure("chain", 3))
    check = near_tie_check(arm, MODEL_PROMPTS, 12, seed=0)
    assert check.draws == 3 and check.facts["accepted_tokens"] > 0
    assert check.verdict == ("passed" if of is Causal else "FAILED")


def test_near_ties_that_rounding_explains_pass():
    tie = Divergence("a", 4, 7, 1, 2, margin=0.01, rounding=0.02, explained=True)
    check = report([tie], outputs=5, accepted=9)
    assert check.verdict == "passed" and "token 8: margin 0.01, rounding 0.02" in check.detail
    other = replace(tie, prompt="b", explained=False)
    check = report([tie, other], outputs=5, accepted=9)
    assert check.verdict == "FAILED" and "prompt b" in check.detail and "prompt a" not in check.detail
    assert concluded([check])[0] == "not lossless"

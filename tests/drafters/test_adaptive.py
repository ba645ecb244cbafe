"""Lengths that adapt: the two rules step by step; that stopping early biases nothing is enumerated in `contracts/`."""

from dataclasses import replace

from fixtures.drafting import PROMPT, chain
from fixtures.refusals import refused
from fixtures.slow_drafters import SlowDrafter, along_paths

from specdec.drafters.adaptive import Adaptive
from specdec.drafters.base import drafters
from specdec.drafters.small_model import SmallModel
from specdec.records import TextStart
from specdec.targets.causal import Causal


def test_two_more_after_a_full_round_and_one_fewer_after_a_rejection():
    wrapped = SlowDrafter(lambda _, shape: along_paths([[1] * shape.gamma]))  # proposes as much as it is asked for
    drafter, shape = Adaptive(wrapped, "heuristic", length=3), chain(6)
    drafter.start(TextStart(PROMPT, 100))

    def offered():
        assert len(drafter.draft(shape)) == len(drafter.draft(shape)), "asking changes nothing"
        return len(drafter.draft(shape))

    def full():
        drafter.commit([1] * (offered() + 1))

    def rejected():
        drafter.commit([1] * offered())

    seen = []
    for step in (full, full, rejected, rejected, full, *[rejected] * 7, full):
        seen.append(offered())
        step()
    # 3, +2; capped at the structure's 6, from which the next rejection counts down; never below 1
    assert seen == [3, 5, 6, 5, 4, 6, 5, 4, 3, 2, 1, 1, 1]
    assert offered() == 3
    drafter.draft(chain(0))
    drafter.commit([1])
    assert offered() == 3, "a round without a proposal says nothing"
    rejected()
    drafter.start(TextStart(PROMPT, 100))
    assert offered() == 3, "a new text starts at the first length"


def test_it_costs_what_it_wraps_and_replays_no_better(tiny_llama, tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    wrapped = SmallModel(tiny_llama(61, layers=1), target)
    assert Adaptive(wrapped, "confidence").flops_per_token == wrapped.flops_per_token > 0
    wrapped.capabilities = replace(wrapped.capabilities, replay=None)
    assert Adaptive(wrapped, "confidence").capabilities.replay is None


def test_ngrams_are_wrapped_by_the_heuristic_only(table, random_law, group_values):
    ngram = group_values("drafter", "ngram")
    target = table(random_law(4, 0), temperature=0.0)
    drafter = drafters.build(group_values("drafter", "adaptive", of=ngram, rule="heuristic", length=1), target=target)
    drafter.start(TextStart([1, 2, 3, 1, 2], 100))
    assert drafter.draft(chain(4)).tokens.tolist() == [3]
    drafter.commit([3, 1])
    assert drafter.draft(chain(2)).tokens.tolist() == [2, 3]
    with refused(r"drafter\.of=ngram.*drafter\.rule=heuristic"):
        drafters.build(group_values("drafter", "adaptive", of=ngram), target=target)


def test_bad_configurations_are_one_sentence(table, random_law, group_values):
    for of, said in (
        ({"name": "ngrm"}, "Did you mean ngram"),
        ({"name": "oracle", "alpha": 0.5, "step_ms": 0.0, "forced": False, "shape": None}, "by itself"),
        (
            {"name": "adaptive", "of": {"name": "none"}, "rule": "heuristic", "threshold": 0.5, "length": 1},
            "fixed length",
        ),
    ):
        with refused(said):
            values = group_values("drafter", "adaptive", of=of, rule="heuristic")
            drafters.build(values, target=table(random_law(4, 0), temperature=0.0))


def test_a_threshold_survives_a_change_of_length():
    shape = chain(4).until(0.3)
    assert (shape.gamma, shape.threshold, shape.nodes, chain(4).threshold) == (4, 0.3, 4, 0.0)
    assert shape.resized(9).threshold == shape.clamped(2).threshold == 0.3

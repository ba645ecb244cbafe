"""A session on the table target, by a clock that every verb moves by a time of its own: order, times, replays."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fixtures.resumed_runs import SAMPLED, composed

from specdec.clock import SimulatedClock
from specdec.config import RunConfig
from specdec.folder.results import ResultsFolder
from specdec.folder.resumption import Beginning
from specdec.plan.plan import plan
from specdec.plan.time_budget import TimeBudget
from specdec.records import Request, TextStart
from specdec.session import measure
from specdec.session.arm import Arm
from specdec.session.identify import identify
from specdec.session.kept_answers import key_of, keyed_by
from specdec.session.parts import open_parts
from specdec.session.session import Session, conversations
from specdec.structures import structures

DRAFT, VERIFY, TOKEN, ACCEPT, COMMIT = 0.25, 1.0, 0.125, 0.0625, 0.03125  # seconds; TOKEN is that of a node in a call
TINY = ("+debug=tiny", "tracking.enabled=false", "structure.gamma=4", "measurement.null=false")


@cache
def config_of(*overrides: str) -> RunConfig:
    return composed("+drafter=ngram", *TINY, *overrides)


class Made:
    """A session, its parts, and its tables once it has run."""

    def __init__(self, folder, *overrides: str) -> None:
        self.config, self.folder = config_of(*overrides), folder
        self.parts, self.clock = open_parts(plan(self.config)), SimulatedClock()
        self.results = ResultsFolder(folder)
        target, primary = self.parts.target, self.parts.primary
        self._slow(target, "verify", lambda draft: VERIFY + TOKEN * len(draft))
        self._slow(target, "commit", lambda *_: COMMIT)
        self._slow(primary.drafter, "draft", lambda structure: DRAFT * structure.gamma)
        self._slow(primary.verifier, "accept", lambda *_: ACCEPT)
        self.session = Session(self.parts, "cell", self.results, self.clock)

    def _slow(self, part, verb: str, seconds: Callable[..., float]) -> None:
        """Let a part's verb move the clock."""
        action = getattr(part, verb)

        @wraps(action)
        def slowed(*args):
            self.clock.advance(seconds(*args))
            return action(*args)

        setattr(part, verb, slowed)

    def run(self) -> pd.DataFrame:
        for each in conversations(self.parts.prompts.prompts, self.config.measurement.repeats):
            self.session.run_prompt(each.prompt, each.repeat, each.place)
        self.session.finish()
        self.results.compact()
        return self.table("rounds")

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.folder / f"{name}.parquet")


@pytest.fixture
def decoded(monkeypatch):
    """The gammas and requests of all decoding, in order."""
    seen: list[tuple[int, Request]] = []
    decode = Arm.decode

    def watched(self, request, clock):
        seen.append((self.gamma, request))
        return decode(self, request, clock)

    monkeypatch.setattr(Arm, "decode", watched)
    return seen


def test_methods_take_turns(tmp_path, decoded):
    """18 orders of four methods; that one comes first in all of them has chance 4^-17 if orders are random."""
    Made(tmp_path, "measurement.repeats=3", "measurement.max_new_tokens=2").run()
    orders = [tuple(gamma for gamma, _ in decoded[start : start + 4]) for start in range(0, len(decoded), 4)]
    assert len(orders) == 18 and all(sorted(order) == [0, 1, 2, 4] for order in orders)
    for place in (0, 3):
        assert {order[place] for order in orders} == {0, 1, 2, 4}


def test_a_run_warms_up_calibrates_and_then_decodes(tmp_path, decoded, monkeypatch):
    config = config_of()
    parts, results = open_parts(plan(config)), ResultsFolder(tmp_path)
    calibrated: list[int] = []
    calibrate = measure.calibrate
    monkeypatch.setattr(measure, "calibrate", lambda *args: calibrated.append(len(decoded)) or calibrate(*args))
    beginning = Beginning(results, {}, ())
    measure.measure(parts, identify(parts).cell, beginning, lambda: None, TimeBudget(None))
    warm = [gamma for gamma, asked in decoded if asked.max_new_tokens == 2]
    assert sorted(warm) == [0, 1, 2, 4] and [gamma for gamma, _ in decoded[:4]] == warm
    assert calibrated == [4] and len(decoded) == 4 + 6 * 4


def test_what_judges_a_draft_has_not_drawn_it(tmp_path, decoded):
    """With one seed for both, the number that draws a token would judge it, and the output would not be the target's.

    Drafts of a prompt draw the same numbers at every gamma, so that curves share their noise; every text is judged by
    numbers of its own.
    """
    few = ("prompts.limit=3", "measurement.max_new_tokens=4", "measurement.repeats=2", "sampling.temperature=1.0")
    drafts: dict[tuple[int, int, tuple[int, ...]], int] = {}
    judged: list[int] = []
    for seed in (0, 1):
        decoded.clear()
        Made(tmp_path / str(seed), *few, f"seed={seed}").run()
        assert [gamma for gamma, _ in decoded].count(4) == 6
        for place, (_, asked) in enumerate(decoded):
            text = seed, 2 * place // len(decoded), tuple(asked.prompt)
            assert drafts.setdefault(text, asked.draft_generator.initial_seed()) == asked.draft_generator.initial_seed()
            judged.append(asked.accept_generator.initial_seed())
    assert len({*drafts.values()}) == len(drafts) == 12 and len({*judged}) == len(judged) == 48
    assert not {*judged} & {*drafts.values()}


def test_times_are_those_of_the_verbs(tmp_path):
    """Every duration follows from the round's size: a draft by its depth, a call by its nodes, the rest is constant."""
    rounds = Made(tmp_path, "measurement.repeats=2").run()
    ours = rounds["method"] == "ngram"
    asked = np.minimum(rounds["gamma"], rounds["tokens_left"] - 1)  # a draft is no longer than the text may become
    assert rounds["draft_s"].to_numpy() == pytest.approx(DRAFT * asked.where(ours, 0))
    assert rounds["verify_s"].to_numpy() == pytest.approx(VERIFY + TOKEN * rounds["offered_nodes"])
    assert rounds["accept_s"].eq(ACCEPT).all() and rounds["commit_s"].eq(COMMIT).all()
    verbs = rounds[["draft_s", "verify_s", "accept_s", "commit_s"]].sum(axis=1)
    assert rounds["round_s"].to_numpy() == pytest.approx(verbs)
    for _, text in rounds.groupby(["method", "gamma", "repeat", "prompt"]):
        left = text["committed"][::-1].cumsum()[::-1]
        assert text["tokens_left"].tolist() == left.tolist() and left.iloc[0] == 24
    lines = [json.loads(line) for line in (tmp_path / "generations.jsonl").read_text().splitlines()]
    assert sum(line["decode_s"] for line in lines) == pytest.approx(rounds["round_s"].sum())


def test_own_replays_are_of_the_texts_that_the_arm_wrote(tmp_path):
    """Under greedy both kinds are along one text, and exact; sampled texts differ, and so do their rounds."""
    greedy, sampled = Made(tmp_path / "greedy"), Made(tmp_path / "sampled", *SAMPLED)
    rounds = greedy.run()
    live = rounds[rounds["method"] == "ngram"].groupby(["gamma", "prompt"]).size()
    for _, kind in greedy.table("replay").groupby("kind"):
        assert kind.set_index(["gamma", "prompt"])["rounds"].sort_index().tolist() == live.sort_index().tolist()
    sampled.run()
    kinds = sampled.table("replay").set_index(["kind", "gamma", "prompt"])["rounds"]
    own, baselines = kinds["own"].sort_index(), kinds["baseline"].sort_index()
    assert own.index.equals(baselines.index) and own.groupby("gamma").apply(len).eq(6).all()
    for gamma in (1, 2, 4):
        assert (own[gamma] != baselines[gamma]).sum() >= 3


@pytest.mark.parametrize("sampling", [(), SAMPLED], ids=["greedy", "sampled"])
def test_alpha_counts_the_positions_with_a_proposal(tmp_path, sampling):
    made = Made(tmp_path, *sampling)
    made.run()
    alpha = made.table("alpha").set_index("prompt")
    lines = [json.loads(line) for line in (tmp_path / "generations.jsonl").read_text().splitlines()]
    drafter, one = made.parts.chosen.drafter, structures.build({"name": "chain", "gamma": 1})
    for line in (line for line in lines if line["method"] == "baseline"):
        prompt, text = line["prompt_token_ids"], line["generated_token_ids"]
        right = proposed = 0
        for place, token in enumerate(text):
            drafter.start(TextStart((*prompt, *text[:place]), 100))
            draft = drafter.draft(one)
            proposed += len(draft)
            right += draft.tokens.tolist() == [token]
        assert proposed < len(text)  # the first tokens have not occurred before
        sums = alpha.loc[line["prompt"]]
        assert sums["denominator"] == proposed
        # Sampled, a proposed token counts with the chance that the target gives it.
        assert 0 < sums["numerator"] < proposed if sampling else sums["numerator"] == right


@pytest.mark.parametrize("rule", ["verifier.minimum_block=2", "verifier.acceptance=top_k"])
def test_a_rule_that_is_not_lossless_has_no_replay(tmp_path, rule):
    """It commits other tokens than the target's: what a round accepts does not follow from the text. Its alpha is the
    mean of its own chances, which are not one where the first tokens of a block pass whatever they are.
    """
    sampling = SAMPLED if "top_k" in rule else ()
    made = Made(tmp_path, *sampling, "verifier=blockwise", rule, "verifier.top_k=1", "measurement.gammas=[]")
    assert not made.run().empty
    assert made.table("replay").empty
    alpha = made.table("alpha")
    assert len(alpha) == (6 if sampling else 0)
    if sampling:  # each proposal is the likeliest token, or does not pass
        assert (alpha["numerator"] % 1 == 0).all() and (alpha["numerator"] <= alpha["denominator"]).all()
        assert alpha["numerator"].sum() > 0


def changed(**changes: Any) -> RunConfig:
    """Return the tiny configuration with some keys of its groups changed."""
    config = config_of()
    groups = {name: {**getattr(config, name), **keys} for name, keys in changes.items() if name != "measurement"}
    return replace(config, **groups, measurement=replace(config.measurement, **changes.get("measurement", {})))


@pytest.fixture
def described(monkeypatch):
    """`described(config, dtype="bfloat16")` builds parts whose target describes itself as a model would."""

    def call(config: RunConfig, **facts: str):
        model = {"model": "m", "sha256": "a", "dtype": "float32", "device": "cpu"} | facts
        parts = open_parts(plan(config))
        monkeypatch.setattr(type(parts.target), "describe", lambda self: model)
        return parts

    return call


def test_the_cell_is_that_of_the_weights_and_not_of_the_store(described):
    def cell(config: RunConfig, **facts: str) -> str:
        return identify(described(config, **facts)).cell

    config = config_of()
    plain = cell(config)
    elsewhere = replace(config, tracking=replace(config.tracking, experiment="other"), advice_dir="elsewhere")
    assert cell(elsewhere) == plain
    others = [cell(config, sha256="b"), cell(changed(prompts={"limit": 3})), cell(replace(config, seed=1))]
    assert len({plain, *others, cell(changed(measurement={"max_new_tokens": 23}))}) == 5


def test_advice_is_found_by_the_same_measurement_only(described):
    def key(config: RunConfig, **facts: str) -> str:
        return key_of(keyed_by(described(config, **facts)))

    config = config_of()
    plain = key(config)
    assert key(replace(changed(structure={"gamma": 2}, measurement={"repeats": 2}), seed=5)) == plain
    others = [
        *(key(config, dtype="bfloat16"), key(config, sha256="b"), key(changed(prompts={"limit": 3}))),
        *(key(changed(measurement={"max_new_tokens": 23})), key(changed(sampling={"temperature": 1.0}))),
        *(key(changed(drafter={"order_max": 3})), key(changed(verifier={"name": "block"}))),
    ]
    assert len({plain, *others}) == 8


def test_peers_come_first_and_last(tmp_path):
    """18 prompts and repeats: that they always come on the same side has chance 2^-17."""
    made = Made(tmp_path, "measurement.repeats=3", "measurement.max_new_tokens=2")
    told: list[bool] = []
    written = made.clock.mark

    def peer(prompt):
        told.append(written() == begin[0])
        return None

    made.session = Session(made.parts, "cell", made.results, made.clock, [peer])
    begin = [0.0]
    for each in conversations(made.parts.prompts.prompts, 3):
        begin[0] = written()
        made.session.run_prompt(each.prompt, each.repeat, each.place)
    assert len(told) == 18 and set(told) == {True, False}

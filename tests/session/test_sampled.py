"""The line at a temperature beside a greedy run: its law, its order, what it leaves alone, which runs have one."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from fixtures.resumed_runs import config_of, decode

from specdec.clock import SimulatedClock
from specdec.folder.results import ResultsFolder
from specdec.plan.plan import plan
from specdec.sampling import probabilities
from specdec.session.arm import Arm
from specdec.session.parts import open_parts
from specdec.session.session import Session

LAW = "target.law=[[0.1,0.8,0.1],[0.1,0.1,0.8],[0.8,0.1,0.1]]"
ON = ("+drafter=ngram", LAW, "measurement.sampled_temperature=0.7")
OFF = (*ON, "measurement.sampled_temperature=null")


def session_of(folder, *overrides: str) -> Session:
    config = config_of(*overrides)
    return Session(open_parts(plan(config)), "cell", ResultsFolder(folder), SimulatedClock())


@pytest.fixture
def watched(monkeypatch) -> list[tuple[float, int, tuple[int, ...]]]:
    """Temperature, gamma and output of all that is decoded, in order."""
    seen: list[tuple[float, int, tuple[int, ...]]] = []
    plain = Arm.decode

    def watch(self, request, clock):
        generation = plain(self, request, clock)
        seen.append((self.target.sampling.temperature, self.gamma, generation.tokens))
        return generation

    monkeypatch.setattr(Arm, "decode", watch)
    return seen


def test_both_texts_follow_the_targets_law_at_the_temperature(tmp_path, watched):
    """Chi-square of the token after each token, against the law of temperature 0.7: 6 degrees of freedom, of which the
    bound is passed with chance 1e-4.
    """
    session = session_of(tmp_path, *ON, "measurement.gammas=[]", "measurement.max_new_tokens=100")
    prompts = session.parts.prompts.prompts
    for repeat in range(6):
        for prompt in prompts[::2]:
            session.run_prompt(prompt, repeat, place=0)
    law = probabilities(torch.tensor(np.log(json.loads(LAW.partition("=")[2]))), session.parts.sampled.sampling)
    for gamma in (0, 4):
        counts = np.zeros((3, 3))
        for text in [tokens for temperature, size, tokens in watched if (temperature, size) == (0.7, gamma)]:
            np.add.at(counts, (text[:-1], text[1:]), 1)
        expected = counts.sum(1, keepdims=True) * law.numpy()
        assert counts.sum() == 6 * len(prompts) // 2 * 99 and ((counts - expected) ** 2 / expected).sum() < 27.9
    drawn = [tokens for temperature, size, tokens in watched if temperature == 0.7]
    assert len(set(drawn)) == len(drawn), "plain decoding and the drafter draw by numbers of their own, in each repeat"


def test_the_pair_takes_turns_and_the_target_is_greedy_afterwards(tmp_path, watched):
    session = session_of(tmp_path, *ON, "measurement.max_new_tokens=3")
    for repeat in range(3):
        for prompt in session.parts.prompts.prompts:
            session.run_prompt(prompt, repeat, place=2 * repeat)
            assert session.parts.target.sampling.greedy
    order = [gamma for temperature, gamma, _ in watched if temperature]
    first = order[::2]
    assert len(order) == 36 and {0, 4} == set(first), "18 fair coins fall alike with chance 2^-17"
    assert all({*pair} == {0, 4} for pair in zip(first, order[1::2], strict=True))


def test_the_pair_is_warmed_up_with_all_others(tmp_path, watched):
    session = session_of(tmp_path, *ON)
    session.warm_up(session.parts.prompts.prompts[0], 3)
    assert sorted(gamma for temperature, gamma, _ in watched if temperature) == [0, 4]
    assert {len(tokens) for *_, tokens in watched} == {3}


def test_greedy_tables_are_those_of_a_run_without_the_line(tmp_path):
    for name, overrides in (("on", ON), ("off", OFF)):  # how often a control is measured follows from what else is
        decode(config_of(*overrides, "measurement.null=false"), tmp_path / name)
    on, off = (pd.read_parquet(tmp_path / name / "rounds.parquet") for name in ("on", "off"))
    same = ["method", "gamma", "repeat", "prompt", "round", "offered", "accepted", "committed"]
    pd.testing.assert_frame_equal(on[same], off[same])
    assert not (tmp_path / "off" / "sampled.parquet").exists()
    lines = pd.read_parquet(tmp_path / "on" / "sampled.parquet")
    assert sorted(lines["method"].unique()) == ["baseline", "ngram"] and (lines["decode_s"] > 0).all()
    assert (lines.groupby("prompt").size() == 2).all()
    order = list(dict.fromkeys(on["prompt"]))
    assert len(order) == 6 and list(dict.fromkeys(lines["prompt"])) == order[::2], "every second prompt"
    plain = lines[lines["method"] == "baseline"]
    assert (plain["rounds"] == plain["tokens"]).all() and (plain["accepted"] + plain["rejected"] == 0).all()
    ours = lines[lines["method"] == "ngram"]
    # The end may cut a round whose tokens were accepted.
    assert (ours["accepted"] + ours["rounds"] - ours["tokens"]).between(0, 1).all()


def test_a_resumed_run_has_the_lines_of_one_that_was_never_interrupted(tmp_path):
    tables, config = [], config_of(*ON, "measurement.max_new_tokens=8", "measurement.null=false")
    for name, stops in (("whole", ()), ("resumed", (2, 1))):
        for stop in stops:
            decode(config, tmp_path / name, stop_after=stop)
        decode(config, tmp_path / name)
        tables.append(pd.read_parquet(tmp_path / name / "sampled.parquet").drop(columns=["prefill_s", "decode_s"]))
    pd.testing.assert_frame_equal(*(table.sort_values(["prompt", "method"], ignore_index=True) for table in tables))


@pytest.mark.parametrize(
    "overrides",
    [
        OFF,
        (*ON, "sampling.temperature=0.5"),
        ("+drafter=none", *ON[1:]),
        ("+drafter=oracle", *ON[1:]),
        (*ON, "verifier.name=greedy"),
        (*ON, "verifier=typical"),
        (*ON, "measurement.batch_size=2", "measurement.budget_seconds=null"),
    ],
)
def test_runs_without_the_line(overrides):
    assert open_parts(plan(config_of(*ON))).sampled is not None
    assert open_parts(plan(config_of(*overrides))).sampled is None

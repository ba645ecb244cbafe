"""Runs of a target whose layers keep a state: resumed and replayed they are the whole run, and a batch is refused."""

import json

import pandas as pd
import pytest
from fixtures.recurrent_families import RECURRENT
from fixtures.resumed_runs import config_of, decode, found

from specdec.errors import UsageError

PLAYED = ["gamma", "round", "offered", "accepted", "committed"]
SHORT = ("measurement.max_new_tokens=8", "measurement.null=false", "measurement.gammas=[]", "+drafter=ngram")
SHAPE = dict(model_type="lfm2", seed=0) | RECURRENT["lfm2"][1] | dict(initializer_range=0.5, vocab_size=8)
MODEL = ("target=causal", "target.model=random", f"target.shape={json.dumps(SHAPE)}".replace('"', ""))
PROMPTS = ("prompts=random_tokens", "prompts.count=3", "prompts.length=12", "prompts.vocabulary=8")
RUN = (*SHORT, *MODEL, "target.dtype=float32", *PROMPTS)
"""Random weights whose logits are far enough apart."""


def test_a_killed_run_and_a_replay_of_its_folder_have_the_rounds_of_the_whole_one(tmp_path, each_prompt_at_once):
    decode(config_of(*RUN), tmp_path / "whole")
    for stop, kept in ((1, 0), (1, 1), (None, 2)):
        assert len(decode(config_of(*RUN), tmp_path / "killed", stop).kept) == kept
    assert found(tmp_path / "killed") == found(tmp_path / "whole")
    recorded = f"target.path={tmp_path / 'whole' / 'generations.jsonl'}"
    decode(config_of(*SHORT, "target=replay", "prompts=recorded", recorded), tmp_path / "replay")
    whole, replay = (pd.read_parquet(tmp_path / name / "rounds.parquet") for name in ("whole", "replay"))
    assert whole["accepted"].sum() > 0 and whole["rejected"].any()
    whole, replay = (rounds.loc[rounds["gamma"] > 0, PLAYED].reset_index(drop=True) for rounds in (whole, replay))
    pd.testing.assert_frame_equal(whole, replay)


def test_a_batch_is_refused_before_anything_is_decoded(tmp_path):
    with pytest.raises(UsageError, match=r"batch_size=2: .*keep a state"):
        decode(config_of(*RUN, "measurement.batch_size=2"), tmp_path)

"""`measurement.null`: plain decoding measured twice, in turn with all else, and when it is so by itself."""

import pandas as pd
import pytest
from fixtures.resumed_runs import config_of, decode, found

from specdec.errors import UsageError
from specdec.plan.plan import plan
from specdec.session.parts import open_parts
from specdec.text.streams import Stream, write_streams

SMALL = ("measurement.max_new_tokens=6", "structure.gamma=2")


def test_a_control_writes_the_baselines_texts_without_a_drafter(tmp_path):
    prompts = [[number % 3, (number + 1) % 3, number % 2] for number in range(5)]
    given = ("measurement.null=true", f"prompts.tokens={prompts}".replace(" ", ""))
    decode(config_of("+drafter=ngram", *SMALL, *given), tmp_path)
    texts = {"baseline": [], "null": [], "ngram": []}
    for line in found(tmp_path)["generations"]:
        texts[line["method"]].append((line["prompt"], line["generated_token_ids"]))
    assert texts["null"] == texts["baseline"] and len(texts["null"]) == 5
    rounds = pd.read_parquet(tmp_path / "rounds.parquet").set_index("method")
    assert (rounds.loc["null", ["gamma", "offered", "accepted"]] == 0).all(axis=None)
    assert (rounds.loc["null", "committed"] == 1).all() and rounds.loc["ngram", "offered"].any()


@pytest.mark.parametrize(("prompts", "controlled"), [(1, 1), (15, 2)])
def test_by_itself_it_takes_a_tenth_of_the_calls_at_most_and_leaves_no_prompt_out(tmp_path, prompts, controlled):
    """For a token the others make 1 + 1/3 calls at least, so that one of 7 prompts may have a control of one call."""
    texts = str([[number % 3, number // 3 % 3, number // 9] for number in range(prompts)]).replace(" ", "")
    decode(config_of("+drafter=ngram", *SMALL, "measurement.gammas=[]", f"prompts.tokens={texts}"), tmp_path)
    lines = pd.DataFrame(found(tmp_path)["generations"])
    assert lines["method"].value_counts().to_dict() == {"baseline": prompts, "null": controlled, "ngram": prompts}
    if prompts > 1:
        calls = lines.groupby("method")["rounds"].sum()
        assert calls["null"] <= 0.1 * calls.sum()


def test_time_that_is_simulated_has_no_control(tmp_path):
    write_streams(tmp_path / "streams.jsonl", [Stream("a", "code", (1, 2), (1, 2, 1, 2, 1, 2))])
    replay = ("target=replay", "prompts=recorded", f"target.path={tmp_path / 'streams.jsonl'}")
    with pytest.raises(UsageError, match=r"measurement\.null=true.*no noise"):
        open_parts(plan(config_of("+drafter=ngram", *replay, "measurement.null=true")))

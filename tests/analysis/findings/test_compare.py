"""Comparisons of runs: pairing, what is named, what is never set side by side, and that the words stay true."""

import json
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from fixtures.rounds_tables import FACTS, build_rounds

from specdec.analysis.findings import compare
from specdec.analysis.findings.leaderboard import open_arms
from specdec.analysis.read.facts import SessionFacts
from specdec.errors import UsageError

TIMES = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.02}
PROMPTS = [f"p{number:02}" for number in range(12)]


def decoded(chance: float, gammas: tuple[int, ...] = (2,), prompts: list[str] = PROMPTS, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    arms = [build_rounds({name: [0] * 30 for name in prompts}, 0, method="baseline", durations=TIMES)]
    for gamma in gammas:
        accepted = np.cumprod(generator.random((len(prompts), 20, gamma)) < chance, axis=2).sum(axis=2)
        arms.append(build_rounds(dict(zip(prompts, accepted.tolist(), strict=True)), gamma, durations=TIMES))
    return pd.concat(arms, ignore_index=True)


def words(section: compare.Section) -> str:
    return "\n".join(section.text)


def test_a_run_that_other_work_disturbed_gets_no_rank_in_speed(stored_run):
    """Most rounds of the n-grams were disturbed: all runs are ranked by tokens per round, and no time has bounds."""
    busy = decoded(0.2, seed=1)
    busy["disturbed"] = (busy["method"] != "baseline") & (busy["round"] % 4 > 0)
    section = compare.comparison_section([stored_run(busy), stored_run(decoded(0.8), "small_model")])
    assert section.text[0].startswith("**No verdict on speed, only on tokens. ngram: the machine was busy with other")
    assert "small_model has the highest tokens per round, " in words(section)
    assert "in speedup" not in words(section) and "faster" not in words(section)
    board, pairs = section.tables[0][1], section.tables[1][1]
    assert board["speedup"].str.endswith("(–)").all() and not board["overall"].str.endswith("(–)").any()
    assert pairs["speedup, ratio"].str.endswith("(–)").all()
    assert [name for name, _ in section.figures] == ["leaderboard_tokens_per_round"]


def test_the_faster_run_is_named_with_by_how_much(stored_run):
    good, poor = stored_run(decoded(0.8), "small_model"), stored_run(decoded(0.2, seed=1), "ngram")
    section = compare.comparison_section([poor, good])
    text = words(section)
    assert section.text[0].startswith("small_model has the highest speedup, ")
    assert "it is first in 100% of the replicates. Every other run is told apart from it." in text
    by = open_arms(good)[2].sums.sum(), open_arms(poor)[2].sums.sum()
    ratio = by[0]["tokens"] / by[0]["rounds"] / (by[1]["tokens"] / by[1]["rounds"])  # equal times
    assert f"small_model is faster than ngram by {ratio - 1:.0%} (" in text
    assert "Paired on the same 12 prompts." in text
    captions = [caption for caption, _ in section.tables]
    assert len(captions) == 3 and captions[0].startswith("pocket (float32), EPYC: speedup on 12 shared prompts")
    assert [name for name, _ in section.figures] == ["leaderboard_speedup", "leaderboard_tokens_per_round"]
    pairs = section.tables[1][1]
    assert pairs["first"].tolist() == ["small_model"] and pairs["speedup, ratio"][0].startswith(f"{ratio:.2f} (")


def test_only_common_prompts_count_and_a_reused_name_is_none(stored_run):
    first = stored_run(decoded(0.7), texts={"p00": [1, 2]}, prompts="p")
    second = stored_run(decoded(0.7, prompts=PROMPTS[:9], seed=2), "oracle", texts={"p00": [3]}, prompts="q")
    other = stored_run(decoded(0.7, prompts=["q1", "q2"]), "oracle", prompts="q")
    arms = [open_arms(run)[2] for run in (first, second, other)]
    prompts, sentence = compare.common_prompts(arms[:2])
    assert prompts == PROMPTS[1:9]
    assert sentence.startswith("Paired on the 8 prompts that all runs share (they have 12, 9). 1 with the same name")
    assert compare.common_prompts(arms[::2])[0] == []
    section = compare.comparison_section([first, other])
    assert section.text[0].startswith("2 groups of runs, each compared within itself")
    assert words(section).count("One run, nothing to set it against") == 2
    assert not section.tables and not section.figures


def test_one_run_on_other_prompts_leaves_the_others_their_comparison(stored_run):
    """15 runs, one of which decoded other prompts and one only three of them, used to have nothing to compare."""
    runs = [stored_run(decoded(0.3 + 0.1 * seed, seed=seed), f"drafter{seed}") for seed in range(4)]
    cut = stored_run(decoded(0.5, prompts=PROMPTS[:7], seed=5), "cut")  # a budget ended it early
    other = stored_run(decoded(0.5, prompts=["q1", "q2", "q3"]), "other")
    trial = stored_run(decoded(0.5, prompts=PROMPTS[:3], seed=6), "trial")
    opened = [open_arms(run) for run in (other, runs[0], trial, *runs[1:], cut)]
    together, *alone = compare.comparable(opened)
    assert together.runs == [*runs, cut] and [group.runs for group in alone] == [[other], [trial]]
    assert "12 prompts of" in together.heading and alone[0].heading == alone[1].heading[:-1] + "1"
    board, behind = compare.comparison_sections(together, [together, *alone])
    assert len(board.tables[0][1]) == 5 and "on 7 shared prompts" in board.tables[0][0]
    assert board.text[0].startswith(f"**{together.heading}.** drafter3 has the highest speedup")
    assert len(board.figures) == 1 and "Paired on the 7 prompts that all runs share" in words(behind)


@pytest.mark.slow
def test_settings_are_never_mixed(stored_run):
    rounds = decoded(0.9)
    here = [stored_run(rounds, "oracle"), stored_run(decoded(0.3))]
    there = [stored_run(rounds, name, hardware="H200") for name in ("medusa", "hydra")]
    weights = stored_run(rounds, "lookahead", model="ffff0000")
    section = compare.comparison_section([*here, *there, weights])
    assert section.text[0].startswith("3 groups of runs, each compared within itself")
    assert "pocket (float32), EPYC [weights 1234abcd]" in section.text[0]
    for _, table in section.tables:
        names = set(table.get("run", table.get("first"))) | set(table.get("second", []))
        assert not {"oracle", "ngram"} & names or not {"medusa", "hydra", "lookahead"} & names
    assert "One run, nothing to set it against: lookahead" in words(section)


def test_what_else_differs_is_named(stored_run):
    cold, warm = (stored_run(decoded(0.6), sampling__temperature=each) for each in ("0.0", "1.0"))
    text = words(compare.comparison_section([cold, warm]))
    assert "sampling.temperature (0.0: ngram, temperature 0.0; 1.0: ngram, temperature 1.0)" in text


def test_loops_stand_in_the_answer(stored_run):
    none, some = stored_run(decoded(0.6)), stored_run(decoded(0.5), "oracle")
    some = replace(some, metrics={"repetition/share": 0.4})
    said = "Prompts with an output that falls into a loop: 40% in oracle."
    assert compare.comparison_section([none, some]).text[0].endswith(said)
    assert compare.comparison_section([some]).text[0].endswith(said)
    assert "loop" not in words(compare.comparison_section([none, none]))


def test_each_run_is_taken_at_its_own_gamma(stored_run):
    rounds = decoded(0.6, gammas=(1, 2))
    runs = [stored_run(rounds), stored_run(rounds, "oracle"), stored_run(rounds, structure__gamma="1")]
    own = compare.comparison_section(runs[:2])
    assert "Each run at its own primary gamma." in words(own) and set(own.tables[0][1]["gamma"]) == {"2"}
    assert set(compare.comparison_section(runs[::2]).tables[0][1]["gamma"]) == {"1", "2"}
    same = [open_arms(runs[0])[gamma] for gamma in (1, 2, 2)]
    assert compare.arm_labels(same) == ["ngram, γ 1", "ngram, γ 2 #1", "ngram, γ 2 #2"]
    with pytest.raises(UsageError, match=r"no rounds at gamma 5, only at 1, 2: .* measurement.gammas=\[5\]"):
        compare.comparison_section([stored_run(rounds, structure__gamma="5")])


def test_the_best_gamma_has_a_probability(stored_run):
    apart, equal = (open_arms(stored_run(decoded(*made))) for made in ((0.9, (1, 4)), (0.02, (3, 4))))
    sure = "told apart from every other. First in the replicates: γ 4 100%."
    assert compare.best_gamma_in_words(apart, "ngram", 200).endswith(sure)
    assert "not told apart from" in compare.best_gamma_in_words(equal, "ngram", 200)


def test_many_runs_are_each_set_against_the_best(stored_run):
    runs = [stored_run(decoded(0.3 + 0.05 * n, seed=n), f"drafter{n}") for n in range(6)]
    section = compare.comparison_section(runs)
    pairs = section.tables[1][1]
    assert len(pairs) == 5 and pairs["first"].nunique() == 1
    assert "Of 15 pairs, " in section.text[0]
    assert section.tables[2][1].shape == (6, 7)


def test_a_run_whose_outputs_are_refuted_is_named_first_and_not_ranked(stored_run):
    def files(unexplained):
        session = SessionFacts(12, 12 - unexplained, unexplained, cache_bytes=0, peak_mb=0.0)
        return {"session.json": json.dumps(asdict(session)), "plan.json": json.dumps(asdict(FACTS))}

    wrong = stored_run(decoded(0.9), "oracle", files=files(5))
    runs = [wrong, stored_run(decoded(0.3, seed=1)), stored_run(decoded(0.6, seed=2), "eagle", files=files(0))]
    section = compare.comparison_section(runs)
    assert section.text[0].startswith("**oracle: Outputs refuted: 5 of 12 differ")
    assert "** eagle has the highest speedup" in section.text[0]
    for _, table in section.tables:
        assert not table.isin(["oracle"]).any(axis=None) and table.isin(["eagle"]).any(axis=None)
    assert "oracle" not in " ".join(section.text[1:])
    alone = compare.comparison_section([wrong])
    assert alone.text[0].endswith("lossless decoding.** No run is ranked.") and not alone.tables

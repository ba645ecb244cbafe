"""Foreign files into the rounds table: small ones made by hand, whose answers are known."""

import numpy as np
import pytest
from fixtures.imported_folders import folder_of

from specdec.analysis.acceptance.estimates import estimate_alpha
from specdec.analysis.findings.foreign_sections import foreign_findings
from specdec.analysis.read.foreign.spec_bench import spec_bench_times
from specdec.analysis.read.imported import ImportChoices, PositionText, rounds_table, walked
from specdec.analysis.read.importers import IMPORTERS
from specdec.analysis.rounds import COUNTED
from specdec.errors import UsageError


def read(kind, path, gamma=None, **choices):
    (source,) = IMPORTERS[kind](path, ImportChoices(gamma, **choices))
    return source


def accepted_by_text(source):
    rounds = source.rounds.sort_values(["prompt", "repeat", "round"])
    return {key: part["accepted"].tolist() for key, part in rounds.groupby(["prompt", "repeat"])}


def test_the_bonus_token_goes_by_the_fields_name_or_by_the_flag(write):
    rounds = [2, 0, 4, 1]
    plain = read("accepted_lengths", write({"accepted": rounds}), 4)
    with_bonus = read("accepted_lengths", write({"accept_lengths": [n + 1 for n in rounds]}, name="b.jsonl"), 4)
    bare = read("accepted_lengths", write([n + 1 for n in rounds], name="c.jsonl"), 4, bonus=True)
    for source in (plain, with_bonus, bare):
        assert source.rounds["accepted"].tolist() == rounds
        assert source.rounds["committed"].tolist() == [3, 1, 5, 2]
        assert source.rounds["rejected"].tolist() == [True, True, False, True]
        assert source.rounds["tokens_left"].tolist() == [11, 8, 7, 2]
        assert {*COUNTED} < {*source.rounds} and source.ordered and source.texts["seconds"].isna().all()
        assert any("no times" in note for note in source.notes)


AGREEMENT = [1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0]  # theory.md 4.3: 8, 6, 5, 4, 4 rounds at gamma 1, 2, 3, 5, 20


def lengths_of(agreement, longest):
    """acc_len by position: tokens that agree from there on, at most `longest`, and one more."""
    runs = [next((i for i, bit in enumerate(agreement[t:]) if not bit), len(agreement) - t) for t in range(13)]
    return [min(run, longest) + 1 for run in runs]


def test_the_folder_of_a_trace_has_every_gamma_and_the_sums_behind_its_account(write, tmp_path):
    source = read("accepted_lengths", write({"id": "a", "acc_x": {"acc_len": lengths_of(AGREEMENT, 3)}}))
    run = folder_of(source, tmp_path / "run")
    assert {gamma: len(rounds) for gamma, rounds in run.arms().by_gamma().items()} == {1: 8, 2: 6, 3: 5}
    assert run.alpha_sums()[["numerator", "denominator"]].values.tolist() == [[9, 13]]
    assert run.replay()[["gamma", "kind", "tokens", "rounds"]].values.tolist() == [
        [gamma, "along", 13, rounds] for gamma, rounds in ((1, 8), (2, 6), (3, 5))
    ]
    assert run.generations()[["prompt", "tokens", "rounds"]].values.tolist() == [["a", 13, 5]]
    facts = run.imported()
    assert facts.notes == source.notes and (facts.gamma, facts.longest, facts.totals_only) == (3, 3, False)
    rounds = run.rounds()
    assert {*COUNTED} <= {*rounds} and rounds["round_s"].isna().all() and "beta" not in rounds


def one_text(lengths, **more):
    return PositionText("a", "", 0, np.array(lengths), **{"context": None, "ended": False, **more})


def rounds_of(lengths, gamma, **more):
    text = walked(one_text(lengths, **more), gamma)
    return list(zip(text.offered.tolist(), text.accepted.tolist(), text.committed.tolist(), strict=True))


def test_nothing_is_offered_beyond_a_recording_that_stops():
    assert rounds_of([5, 5, 5], 4) == [(2, 2, 3)]
    assert rounds_of([3, 9, 9], 4) == [(2, 2, 3)]
    assert rounds_of([2, 9, 1], 4) == [(2, 1, 2), (0, 0, 1)]
    assert rounds_of([1, 1], 4) == [(1, 0, 1), (0, 0, 1)]
    assert rounds_of([], 4) == []


def test_a_round_that_accepts_the_end_token_is_cut_and_is_no_rejection():
    assert rounds_of([5, 5, 5], 4, ended=True) == [(4, 3, 3)]  # three tokens left, all accepted: none of the target
    assert rounds_of([3, 9, 9], 4, ended=True) == [(4, 2, 3)]  # two accepted, and the target's own is the last
    table = rounds_table([walked(one_text([5, 5, 5], ended=True), 4)], "x", 4)
    assert table[["rejected", "truncation", "tokens_left"]].values.tolist() == [[False, "end_token", 3]]
    table = rounds_table([walked(one_text([1, 3, 9, 9], ended=True), 4)], "x", 4)
    assert table[["rejected", "truncation", "tokens_left"]].values.tolist() == [[True, "", 4], [True, "end_token", 3]]


def test_vllm_steps_keep_their_order_and_what_each_offered(write):
    metrics = {"per_step_accepted": [2, 0, 1], "per_step_drafted": [3, 3, 1], "num_spec_tokens": 3}
    source = read("vllm", write({"request_id": "r", "spec_decode_metrics": metrics}), 3)
    assert accepted_by_text(source) == {("r", 0): [2, 0, 1]} and source.ordered
    assert source.rounds["offered"].tolist() == [3, 3, 1]
    assert source.rounds["rejected"].tolist() == [True, True, False]  # the last draft was accepted whole


@pytest.mark.parametrize(
    "metrics",
    [
        {"acceptance_histogram": [4, 3, 2, 1], "num_draft_tokens": 30, "num_spec_tokens": 3},
        {"histogram": [4, 3, 2, 1], "num_draft_tokens": 30},
        {"metrics": {}, "spec_decode_acceptance": {"acceptance_histogram": {"3": 1, "0": 4, "1": 3, "2": 2}}},
        {"num_drafts": 10, "num_draft_tokens": 30, "num_accepted_tokens": 10, "num_accepted_tokens_per_pos": [6, 3, 1]},
    ],
    ids=["response", "object", "aiperf", "counters"],
)
def test_vllm_totals_are_counts_without_order(write, metrics):
    source = read("vllm", write(metrics), 3)
    assert source.rounds["accepted"].value_counts().to_dict() == {0: 4, 1: 3, 2: 2, 3: 1}
    assert estimate_alpha(source.rounds).alpha == pytest.approx(10 / 19)  # K = 10, R = 9
    assert not source.ordered
    assert any("impossible" in note for note in source.notes)


def test_vllm_shorter_drafts_and_silent_requests_are_said(write):
    lines = {"histogram": [1, 1], "num_draft_tokens": 4}, {"histogram": [0, 0], "num_draft_tokens": 0}
    source = read("vllm", write(*lines), 3)
    notes = " ".join(source.notes)
    assert len(source.rounds) == 2
    assert "2 draft tokens fewer" in notes and "1 requests without any draft" in notes


def answer(question, lengths, tokens, seconds, steps=None, category="writing"):
    choice = {"index": 0, "turns": ["..."] * len(tokens), "new_tokens": tokens, "wall_time": seconds}
    choice |= {"accept_lengths": lengths, "decoding_steps": steps or [0] * len(tokens)}
    return {"question_id": question, "category": category, "choices": [choice]}


@pytest.mark.parametrize("steps", [[3, 2], [2, 1], [9, 9]], ids=["from 1", "from 0", "by tokens"])
def test_spec_bench_turns_are_texts_of_one_prompt(write, steps):
    source = read("spec_bench", write(answer(81, [3, 1, 2, 5, 1], [6, 6], [0.5, 0.25], steps)), 4)
    assert accepted_by_text(source) == {("81", 0): [2, 0, 1], ("81", 1): [4, 0]}
    assert source.texts[["tokens", "seconds"]].to_numpy().tolist() == [[6, 0.5], [6, 0.25]]
    assert set(source.rounds["category"]) == {"writing"}
    # Turns that cannot be told apart are joined, and that is said.
    joined = read("spec_bench", write(answer(81, [3, 1, 2, 5, 1], [7, 7], [0.5, 0.25], [9, 9])), 4)
    assert accepted_by_text(joined) == {("81", 0): [2, 0, 1, 4, 0]}
    assert any("1 answers" in note for note in joined.notes)


def test_spec_bench_speedup_is_the_ratio_of_totals(write, tmp_path):
    path = write(answer(1, [3, 1, 2], [6], [1.0]), answer(2, [5, 5], [10], [1.0], category="qa"))
    vanilla = write(answer(1, [], [8], [4.0]), answer(2, [], [12], [4.0]), name="vanilla.jsonl")
    source, baseline = read("spec_bench", path, 4), spec_bench_times(vanilla)
    sections = foreign_findings(folder_of(source, tmp_path / "run", baseline)).sections
    assert [section.title for section in sections][-2:] == ["By category", "Speed"]
    figures = sections[-1].tables[0][1].set_index("figure").iloc[:, 0]
    assert figures["speedup, ratio of totals"].startswith("3.2000")  # (16 / 2) / (20 / 8)
    assert figures["mean of the prompts' ratios"] == "3.1667"  # (6 / 2 + 10 / 3) / 2
    assert figures["ratio of the prompts' mean speeds, as Spec-Bench prints it"] == "3.2000"  # 8 / 2.5
    other = spec_bench_times(write(answer(9, [], [8], [4.0]), name="other.jsonl"))
    with pytest.raises(UsageError, match="no timed prompt in common"):
        foreign_findings(folder_of(source, tmp_path / "apart", other))


BAD = [
    ("accepted_lengths", ['{"accepted": [1'], r":1: not JSON"),
    ("accepted_lengths", [{"accepted": [0]}, {"accepted": [1, -1]}], r":2: accepted\[1\] must be a whole number of 0"),
    ("accepted_lengths", [[1, 2]], r":1: a bare list .*--bonus included"),
    ("accepted_lengths", [{"lengths": [1]}], r":1: one of the fields accepted, accept_lengths"),
    ("accepted_lengths", [{"accepted": "1"}], r":1: accepted must be a list of whole numbers, found a str"),
    ("accepted_lengths", [], r"is empty"),
    ("accepted_lengths", [{"generated_token_ids": [1], "acc_x": {"acc_len": [1]}}, {"accepted": [1]}], r":2: .*mixed"),
    ("vllm", [{"text": "hello"}], r":1: none of per_step_accepted, .* the line has text"),
    ("vllm", [{"per_step_accepted": [1], "per_step_drafted": [1, 1]}], r":1: .* 1 entries and per_step_drafted 2"),
    ("vllm", [{"spec_decode_acceptance": {"histogram": {"two": 1}}}], r":1: histogram must have numbers of accepted"),
    ("vllm", [{"per_step_accepted": [2], "per_step_drafted": [1]}], r":1: a step accepted more"),
    ("vllm", [{"histogram": [0, 2], "num_draft_tokens": 1}], r":1: 2 tokens were accepted but only 1 drafted"),
    ("spec_bench", [{"question_id": 1}], r":1: an answer has question_id and choices, .* the line has question_id"),
    ("spec_bench", [answer(1, [1], [1], [])], r":1: new_tokens has 1 entries and wall_time 0"),
    ("spec_bench", [answer(1, None, [1], [1.0])], r":1: accept_lengths must be a list"),
]


@pytest.mark.parametrize("kind, lines, says", BAD, ids=[f"{kind}-{number}" for number, (kind, _, _) in enumerate(BAD)])
def test_bad_lines_are_one_sentence_with_file_and_line(write, kind, lines, says):
    with pytest.raises(UsageError, match=says) as caught:
        read(kind, write(*lines), 4)
    assert "\n" not in str(caught.value) and "trace.jsonl" in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.jsonl does not exist"):
        read("vllm", tmp_path / "gone.jsonl", 4)

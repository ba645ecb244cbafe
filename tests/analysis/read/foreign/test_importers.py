"""Foreign files into the rounds table: small ones made by hand, whose answers are known."""

import json

import numpy as np
import pytest
from fixtures.imported_folders import folder_of

from specdec.analysis.acceptance.estimates import estimate_alpha
from specdec.analysis.findings.foreign_sections import foreign_findings
from specdec.analysis.pages.report_chapters import run_chapters
from specdec.analysis.read.find_runs import find_runs
from specdec.analysis.read.foreign.spec_bench import spec_bench_times
from specdec.analysis.read.foreign.vllm_prometheus import thinned
from specdec.analysis.read.imported import ImportChoices, PositionText, rounds_table, walked
from specdec.analysis.read.importers import IMPORTERS, kind_of
from specdec.analysis.rounds import COUNTED
from specdec.errors import UsageError


@pytest.fixture
def write(tmp_path):
    def lines(*values, name="trace.jsonl"):
        path = tmp_path / name
        path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values), encoding="utf-8")
        return path

    return lines


def read(kind, path, gamma=None, **choices):
    (source,) = IMPORTERS[kind](path, ImportChoices(gamma, **choices))
    return source


def notes_of(source):
    return " ".join(source.notes)


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


def test_the_folder_of_a_trace_has_every_gamma_and_the_sums_behind_its_account(write, tmp_path):
    lengths = [3, 2, 1, 4, 3, 2, 1, 1, 4, 4, 3, 2, 1]  # theory.md 4.3: 8, 6 and 5 rounds at gamma 1, 2 and 3
    source = read("accepted_lengths", write({"id": "a", "acc_x": {"acc_len": lengths}}))
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
        {"metrics": {}, "spec_decode_acceptance": {"acceptance_histogram": {"3": 1, "0": 4, "1": 3, "2": 2}}},
        {"num_drafts": 10, "num_draft_tokens": 30, "num_accepted_tokens": 10, "num_accepted_tokens_per_pos": [6, 3, 1]},
    ],
    ids=["response", "aiperf", "counters"],
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
    assert len(source.rounds) == 2
    assert "2 draft tokens fewer" in notes_of(source) and "1 requests without any draft" in notes_of(source)


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


def test_bad_lines_are_listed_together_or_left_out_and_said(write):
    lines = [{"accepted": [1, "x"]}, {"accepted": [0, 1]}, "{", {"accepted": [2]}, {"lengths": [1]}]
    path = write(*lines)
    with pytest.raises(UsageError) as fault:
        read("accepted_lengths", path, 2)
    for number in (1, 3, 5):
        assert f"{path}:{number}: " in str(fault.value)
    assert str(fault.value).endswith("leave these 3 lines out with --skip-bad.")
    source = read("accepted_lengths", path, 2, skip_bad=True)
    assert source.rounds["accepted"].tolist() == [0, 1, 2]
    assert "3 bad lines are left out: " in notes_of(source)
    path = write({"accepted": [1]}, {"accepted": [9]})  # a wrong gamma is no bad line
    with pytest.raises(UsageError, match=":2: a round accepted 9 draft tokens, more than gamma 4.*--gamma 9"):
        read("accepted_lengths", path, 4, skip_bad=True)


def test_repeated_ids_are_texts_of_their_own(write):
    """One text accepts nothing and one everything: as one prompt their rounds would alternate."""
    half = {"id": "a", "accepted": [0] * 40}
    path = write(half, half | {"accepted": [4] * 40}, {"id": "a#2", "accepted": [1]})
    source = read("accepted_lengths", path, 4)
    assert source.texts["prompt"].tolist() == ["a", "a#2", "a#2#2"]
    by_prompt = source.rounds.groupby("prompt")
    assert (by_prompt["accepted"].nunique() == 1).all() and by_prompt["round"].max().tolist() == [39, 39, 0]
    assert "2 lines repeat the id of an earlier one" in notes_of(source)


def test_a_first_entry_of_the_prefill_is_left_out_of_rounds(write):
    dice = np.random.default_rng(0)
    texts = [{"accept_lengths": [1, *dice.integers(2, 5, 30).tolist()]} for _ in range(3)]
    source = read("accepted_lengths", write(*texts), 4)
    assert len(source.rounds) == 90 and "3 entries are left out" in notes_of(source)
    zero = read("accepted_lengths", write({"accept_lengths": [0, 1, 3]}), 4)
    assert zero.rounds["accepted"].tolist() == [0, 2]
    texts = [{"prompt_token_ids": [5] * 70, "accept_lengths": [70, 1, 3]}]
    prompt = read("accepted_lengths", write(*texts), 4)
    assert prompt.rounds["accepted"].tolist() == [0, 2]


def positions(**fields):
    return {key: {"acc_len": value} for key, value in fields.items()}


def test_every_drafter_of_a_file_is_a_data_set_that_walks_at_any_gamma(write):
    path = write(positions(acc_a=[1, 4, 3, 2, 1], acc_b=[1, 1, 1]), positions(acc_b=[3, 2, 1]), name="both.jsonl.gz")
    first, second = IMPORTERS["accepted_lengths"](path, ImportChoices())
    assert (first.name, second.name) == ("both: acc_a", "both: acc_b")
    assert (first.gamma, first.longest, second.gamma) == (3, 3, 2)
    assert first.at(1)[0].accepted.tolist() == [0, 1, 1] and first.at(9)[0].committed.tolist() == [1, 4]
    assert [len(text.lengths) for text in second.records] == [3, 3]
    only = read("accepted_lengths", path, field="acc_a", skip_bad=True)
    assert only.name == "both" and "no acc_a.acc_len; the line has acc_b" in notes_of(only)


def test_a_bad_field_concerns_its_own_data_set(write):
    path = write(positions(acc_a=[1, 2], acc_b=["x"]), positions(acc_a=[1], acc_b=[1, 2.0]))
    with pytest.raises(UsageError, match=r":1: acc_b.acc_len\[0\]"):
        read("accepted_lengths", path)
    sets = IMPORTERS["accepted_lengths"](path, ImportChoices(skip_bad=True))
    assert {source.name: len(source.texts) for source in sets} == {"trace: acc_a": 2, "trace: acc_b": 1}
    chosen = read("accepted_lengths", path, field="acc_a")
    assert len(chosen.texts) == 2


def page(drafts, tokens, accepted, per_position, engine="0", model="m", ending="_total"):
    labels = f'engine="{engine}",model_name="{model}"'
    counters = {"drafts": drafts, "draft_tokens": tokens, "accepted_tokens": accepted}
    lines = ["# TYPE vllm:spec_decode_num_drafts counter", f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e+09"]
    lines += [f"vllm:spec_decode_num_{name}{ending}{{{labels}}} {value}" for name, value in counters.items()]
    name = f"vllm:spec_decode_num_accepted_tokens_per_pos{ending}"
    lines += [f'{name}{{{labels},position="{place}"}} {value}' for place, value in enumerate(per_position)]
    return "\n".join(lines)


def counted(source):
    return source.rounds["accepted"].value_counts().to_dict()


def test_a_page_adds_engines_up_and_keeps_models_apart(write):
    others = page(10, 20, 2, [1, 1], engine="1"), page(4.0, 8, 1, [1, 0], model="n", ending="")
    path = write(page(10, 20, 9, [6, 3]), *others)
    first, second = IMPORTERS["vllm_prometheus"](path, ImportChoices())
    assert (first.name, first.gamma, counted(first)) == ("trace: m", 2, {0: 13, 1: 3, 2: 4})
    assert (second.name, counted(second)) == ("trace: n", {0: 3, 1: 1})
    assert not first.ordered and kind_of(path) == "vllm_prometheus"
    short = read("vllm_prometheus", write(page(10, 17, 0, [0, 0])))
    assert "3 draft tokens fewer" in notes_of(short)


def test_two_scrapes_are_their_difference(write):
    path = write(page(10, 20, 9, [6, 3]), page(30, 60, 19, [14, 5]))
    source = read("vllm_prometheus", path)
    assert counted(source) == {0: 12, 1: 6, 2: 2} and "several scrapes" in notes_of(source)
    with pytest.raises(UsageError, match="a counter fell"):
        read("vllm_prometheus", write(page(30, 60, 19, [14, 5]), page(10, 20, 9, [6, 3])))


def test_a_busy_server_keeps_its_shares(write):
    path = write(page(10**10, 2 * 10**10, 9 * 10**9, [6 * 10**9, 3 * 10**9]))
    source = read("vllm_prometheus", path)
    assert len(source.rounds) == 200_000 and counted(source) == {0: 80_000, 1: 60_000, 2: 60_000}
    assert "200,000 rounds for the 10,000,000,000" in notes_of(source)
    assert thinned([1, 1, 1], 2) in ([1, 1, 0], [1, 0, 1], [0, 1, 1]) and thinned([3, 1], 9) == [3, 1]


def test_vllm_says_its_gamma_or_contradicts_the_given_one(write):
    path = write({"metrics": {"speculative_decoding": {"acceptance_histogram": [4, 3, 2, 1], "num_spec_tokens": 3}}})
    source = read("vllm", path)
    assert source.gamma == 3 and counted(source) == {0: 4, 1: 3, 2: 2, 3: 1}
    with pytest.raises(UsageError, match=":1: num_spec_tokens is 3, but gamma is 4"):
        read("vllm", path, 4)


def eagle_line(question, **choice):
    base = {"index": 0, "turns": ["..."], "idxs": [3], "new_tokens": [10], "wall_time": [0.5]}
    return {"question_id": question, "choices": [base | choice]}


def test_eagles_counts_by_depth_are_rounds(write):
    """Ten rounds tested depth 1 and six passed it; of these five tested depth 2 (one path ended there), and so on."""
    path = write(
        eagle_line(1, alpha=[6, 4, 2], alpha_num=[10, 5, 4]), eagle_line(2, alpha=[0, 0, 0], alpha_num=[1, 0, 0])
    )
    source = read("eagle", path)
    table = source.rounds.groupby(["accepted", "offered", "rejected"]).size().to_dict()
    assert table == {(0, 3, True): 5, (1, 1, False): 1, (1, 3, True): 1, (2, 3, True): 2, (3, 3, False): 2}
    assert source.gamma == 3 and not source.ordered


def test_sums_make_a_page_that_says_only_what_they_hold(write, tmp_path):
    path = write(eagle_line(1), eagle_line(2, new_tokens=[18], idxs=[4]))
    source = read("eagle", path, 5)
    baseline = spec_bench_times(write(eagle_line(1, wall_time=[1.5]), eagle_line(2, wall_time=[1.0]), name="b.jsonl"))
    assert source.totals_only and source.texts["rounds"].tolist() == [4, 5]
    (chapter,) = run_chapters([folder_of(source, tmp_path / "run", baseline)])
    titles = [section.title for section in chapter.sections]
    assert titles == ["What the file holds, and what it does not", "Tokens per round", "Speed"]
    text = " ".join(" ".join(section.text) for section in chapter.sections)
    assert "3.111" in text and "neither a prediction nor a test" in text
    source = read("eagle", path, 2)
    (shallow,) = run_chapters([folder_of(source, tmp_path / "shallow")])
    assert "No alpha gives this at gamma 2" in shallow.sections[1].text[1]
    assert "Speedup 3.5" in text  # (28 / 1.0) / (20 / 2.5)
    found = find_runs([str(tmp_path)], "sqlite:///none.db")
    assert len(found.runs) == 2 and not found.notes  # both folders, though neither has rounds or a summary


def configured(steps, **metrics):
    base = {"latency": 2.0, "output_throughput": 100.0, "accept_length": 2.0, "num_questions": 80}
    return {"batch_size": 1, "steps": steps, "topk": 1, "num_draft_tokens": steps + 1, "metrics": [base | metrics]}


def test_specforge_sets_its_configurations_against_its_own_plain_decoding(write):
    plain, short, long = configured(0, accept_length=1.0), configured(3), configured(5, output_throughput=150.0)
    document = {"model": None, "gsm8k": [plain, short, long], "mtbench": [short]}
    first, second = IMPORTERS["auto"](write(json.dumps(document, indent=4), name="results.jsonl"), ImportChoices())
    assert (first.gamma, second.gamma) == (3, 5) and "steps 5" in second.name
    assert first.texts[["prompt", "tokens", "rounds"]].values.tolist() == [["gsm8k", 200, 100], ["mtbench", 200, 100]]
    for source, speedup in ((first, "1.00"), (second, "1.50")):
        assert f"decoding at batch size 1: gsm8k {speedup}." in notes_of(source)


BAD = [
    ("accepted_lengths", ['{"accepted": [1'], r":1: not JSON"),
    ("accepted_lengths", [{"accepted": [0]}, {"accepted": [1, -1]}], r":2: accepted\[1\] must be a whole number of 0"),
    ("accepted_lengths", [[1, 2]], r":1: a bare list .*--bonus included"),
    ("accepted_lengths", [{"lengths": [1]}], r":1: one of the fields accepted, accept_lengths"),
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
    ("vllm_prometheus", ["vllm:num_requests_running 0.0"], "has no drafts: no counter"),
    ("vllm_prometheus", [page(0, 0, 0, [0, 0])], "has no drafts"),
    ("vllm_prometheus", [page(5, 10, 3, [3, 3])], "num_accepted_tokens is 3, .* adds up to 6"),
    ("vllm_prometheus", [page(5, 10, 7, [1, 6])], "must not rise"),
    ("vllm_prometheus", [page(5, 10, 1, [1, 0]).replace('position="0"', 'position="7"')], "lacks a position"),
    ("vllm_prometheus", [page(2.5, 10, 1, [1, 0])], "no whole number"),
    ("vllm_prometheus", [page("NaN", 10, 1, [1, 0])], "no sample of a counter"),
    ("eagle", [eagle_line(1, alpha=[6], alpha_num=[5])], ":1: at each depth alpha is at most alpha_num"),
    ("eagle", [eagle_line(1, alpha=[6], alpha_num=[7]), eagle_line(2)], ":2: answers with and without alpha"),
    ("specforge", [{"model": "x"}], "no benchmark with a list"),
    ("specforge", [{"a": [configured(0, accept_length=1.0)]}], "no configuration with steps above 0"),
    ("specforge", [{"a": [configured(3, accept_length=0.5)]}], "accept_length is 0.5"),
    ("specforge", [{"a": [configured(3, latency="x")]}], "latency must be a number above 0"),
    *(
        ("auto", [text], "is of no kind that its content tells: name one, --import KIND")
        for text in ("hello", '{"text": "x"}', "3", "[[", '{\n"a": 1\n}')
    ),
]


@pytest.mark.parametrize("kind, lines, says", BAD, ids=[f"{kind}-{number}" for number, (kind, _, _) in enumerate(BAD)])
def test_bad_lines_are_one_sentence_with_file_and_line(write, kind, lines, says):
    with pytest.raises(UsageError, match=says) as caught:
        read(kind, write(*lines), 4)
    assert "\n" not in str(caught.value) and "trace.jsonl" in str(caught.value)

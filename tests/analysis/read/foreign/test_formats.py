"""Formats of others beyond their examples: several drafters, repeated ids, lines left out, sums, pages of counters."""

import json

import numpy as np
import pytest
from fixtures.imported_folders import folder_of

from specdec.analysis.pages.report_chapters import run_chapters
from specdec.analysis.read.find_runs import find_runs
from specdec.analysis.read.foreign.spec_bench import spec_bench_times
from specdec.analysis.read.foreign.vllm_prometheus import thinned
from specdec.analysis.read.imported import ImportChoices
from specdec.analysis.read.importers import IMPORTERS, kind_of
from specdec.errors import UsageError


def test_bad_lines_are_listed_together_or_left_out_and_said(write):
    lines = [{"accepted": [1, "x"]}, {"accepted": [0, 1]}, "{", {"accepted": [2]}, {"lengths": [1]}]
    path = write(*lines)
    with pytest.raises(UsageError) as fault:
        IMPORTERS["accepted_lengths"](path, ImportChoices(2))
    for number in (1, 3, 5):
        assert f"{path}:{number}: " in str(fault.value)
    assert str(fault.value).endswith("leave these 3 lines out with --skip-bad.")
    (source,) = IMPORTERS["accepted_lengths"](path, ImportChoices(2, skip_bad=True))
    assert source.rounds["accepted"].tolist() == [0, 1, 2]
    assert "3 bad lines are left out: " in notes_of(source)
    path = write({"accepted": [1]}, {"accepted": [9]})  # a wrong gamma is no bad line
    with pytest.raises(UsageError, match=":2: a round accepted 9 draft tokens, more than gamma 4.*--gamma 9"):
        IMPORTERS["accepted_lengths"](path, ImportChoices(4, skip_bad=True))


def test_repeated_ids_are_texts_of_their_own(write):
    """One text accepts nothing and one everything: as one prompt their rounds would alternate."""
    half = {"id": "a", "accepted": [0] * 40}
    path = write(half, half | {"accepted": [4] * 40}, {"id": "a#2", "accepted": [1]})
    (source,) = IMPORTERS["accepted_lengths"](path, ImportChoices(4))
    assert source.texts["prompt"].tolist() == ["a", "a#2", "a#2#2"]
    by_prompt = source.rounds.groupby("prompt")
    assert (by_prompt["accepted"].nunique() == 1).all() and by_prompt["round"].max().tolist() == [39, 39, 0]
    assert "2 lines repeat the id of an earlier one" in notes_of(source)


def test_a_first_entry_of_the_prefill_is_left_out_of_rounds(write):
    dice = np.random.default_rng(0)
    texts = [{"accept_lengths": [1, *dice.integers(2, 5, 30).tolist()]} for _ in range(3)]
    (source,) = IMPORTERS["accepted_lengths"](write(*texts), ImportChoices(4))
    assert len(source.rounds) == 90 and "3 entries are left out" in notes_of(source)
    (zero,) = IMPORTERS["accepted_lengths"](write({"accept_lengths": [0, 1, 3]}), ImportChoices(4))
    assert zero.rounds["accepted"].tolist() == [0, 2]
    texts = [{"prompt_token_ids": [5] * 70, "accept_lengths": [70, 1, 3]}]
    (prompt,) = IMPORTERS["accepted_lengths"](write(*texts), ImportChoices(4))
    assert prompt.rounds["accepted"].tolist() == [0, 2]


def positions(**fields):
    return {key: {"acc_len": value} for key, value in fields.items()}


def notes_of(source):
    return " ".join(source.notes)


def test_every_drafter_of_a_file_is_a_data_set_that_walks_at_any_gamma(write):
    path = write(positions(acc_a=[1, 4, 3, 2, 1], acc_b=[1, 1, 1]), positions(acc_b=[3, 2, 1]), name="both.jsonl.gz")
    first, second = IMPORTERS["accepted_lengths"](path, ImportChoices())
    assert (first.name, second.name) == ("both: acc_a", "both: acc_b")
    assert (first.gamma, first.longest, second.gamma) == (3, 3, 2)
    assert first.at(1)[0].accepted.tolist() == [0, 1, 1] and first.at(9)[0].committed.tolist() == [1, 4]
    assert [len(text.lengths) for text in second.records] == [3, 3]
    (only,) = IMPORTERS["accepted_lengths"](path, ImportChoices(field="acc_a", skip_bad=True))
    assert only.name == "both" and "no acc_a.acc_len; the line has acc_b" in notes_of(only)


def test_a_bad_field_concerns_its_own_data_set(write):
    path = write(positions(acc_a=[1, 2], acc_b=["x"]), positions(acc_a=[1], acc_b=[1, 2.0]))
    with pytest.raises(UsageError, match=r":1: acc_b.acc_len\[0\]"):
        IMPORTERS["accepted_lengths"](path, ImportChoices())
    sets = IMPORTERS["accepted_lengths"](path, ImportChoices(skip_bad=True))
    assert {source.name: len(source.texts) for source in sets} == {"trace: acc_a": 2, "trace: acc_b": 1}
    (chosen,) = IMPORTERS["accepted_lengths"](path, ImportChoices(field="acc_a"))
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
    (short,) = IMPORTERS["vllm_prometheus"](write(page(10, 17, 0, [0, 0])), ImportChoices())
    assert "3 draft tokens fewer" in notes_of(short)


def test_two_scrapes_are_their_difference(write):
    path = write(page(10, 20, 9, [6, 3]), page(30, 60, 19, [14, 5]))
    (source,) = IMPORTERS["vllm_prometheus"](path, ImportChoices())
    assert counted(source) == {0: 12, 1: 6, 2: 2} and "several scrapes" in notes_of(source)
    with pytest.raises(UsageError, match="a counter fell"):
        IMPORTERS["vllm_prometheus"](write(page(30, 60, 19, [14, 5]), page(10, 20, 9, [6, 3])), ImportChoices())


def test_a_busy_server_keeps_its_shares(write):
    path = write(page(10**10, 2 * 10**10, 9 * 10**9, [6 * 10**9, 3 * 10**9]))
    (source,) = IMPORTERS["vllm_prometheus"](path, ImportChoices())
    assert len(source.rounds) == 200_000 and counted(source) == {0: 80_000, 1: 60_000, 2: 60_000}
    assert "200,000 rounds for the 10,000,000,000" in notes_of(source)
    assert thinned([1, 1, 1], 2) in ([1, 1, 0], [1, 0, 1], [0, 1, 1]) and thinned([3, 1], 9) == [3, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm:num_requests_running 0.0", "has no drafts: no counter"),
        (page(0, 0, 0, [0, 0]), "has no drafts"),
        (page(5, 10, 3, [3, 3]), "num_accepted_tokens is 3, .* adds up to 6"),
        (page(5, 10, 7, [1, 6]), "must not rise"),
        (page(5, 10, 1, [1, 0]).replace('position="0"', 'position="7"'), "lacks a position"),
        (page(2.5, 10, 1, [1, 0]), "no whole number"),
        (page("NaN", 10, 1, [1, 0]), "no sample of a counter"),
    ],
)
def test_a_page_that_contradicts_itself_is_one_sentence(write, text, says):
    with pytest.raises(UsageError, match=says) as fault:
        IMPORTERS["vllm_prometheus"](write(text), ImportChoices())
    assert "\n" not in str(fault.value)


def test_vllm_says_its_gamma_or_contradicts_the_given_one(write):
    path = write({"metrics": {"speculative_decoding": {"acceptance_histogram": [4, 3, 2, 1], "num_spec_tokens": 3}}})
    (source,) = IMPORTERS["vllm"](path, ImportChoices())
    assert source.gamma == 3 and counted(source) == {0: 4, 1: 3, 2: 2, 3: 1}
    with pytest.raises(UsageError, match=":1: num_spec_tokens is 3, but gamma is 4"):
        IMPORTERS["vllm"](path, ImportChoices(4))


def eagle_line(question, **choice):
    base = {"index": 0, "turns": ["..."], "idxs": [3], "new_tokens": [10], "wall_time": [0.5]}
    return {"question_id": question, "choices": [base | choice]}


def test_eagles_counts_by_depth_are_rounds(write):
    """Ten rounds tested depth 1 and six passed it; of these five tested depth 2 (one path ended there), and so on."""
    path = write(
        eagle_line(1, alpha=[6, 4, 2], alpha_num=[10, 5, 4]), eagle_line(2, alpha=[0, 0, 0], alpha_num=[1, 0, 0])
    )
    (source,) = IMPORTERS["eagle"](path, ImportChoices())
    table = source.rounds.groupby(["accepted", "offered", "rejected"]).size().to_dict()
    assert table == {(0, 3, True): 5, (1, 1, False): 1, (1, 3, True): 1, (2, 3, True): 2, (3, 3, False): 2}
    assert source.gamma == 3 and not source.ordered
    with pytest.raises(UsageError, match=":1: at each depth alpha is at most alpha_num"):
        IMPORTERS["eagle"](write(eagle_line(1, alpha=[6], alpha_num=[5])), ImportChoices())
    with pytest.raises(UsageError, match=":2: answers with and without alpha"):
        IMPORTERS["eagle"](write(eagle_line(1, alpha=[6], alpha_num=[7]), eagle_line(2)), ImportChoices(3))


def test_sums_make_a_page_that_says_only_what_they_hold(write, tmp_path):
    path = write(eagle_line(1), eagle_line(2, new_tokens=[18], idxs=[4]))
    (source,) = IMPORTERS["eagle"](path, ImportChoices(5))
    baseline = spec_bench_times(write(eagle_line(1, wall_time=[1.5]), eagle_line(2, wall_time=[1.0]), name="b.jsonl"))
    assert source.totals_only and source.texts["rounds"].tolist() == [4, 5]
    (chapter,) = run_chapters([folder_of(source, tmp_path / "run", baseline)])
    titles = [section.title for section in chapter.sections]
    assert titles == ["What the file holds, and what it does not", "Tokens per round", "Speed"]
    text = " ".join(" ".join(section.text) for section in chapter.sections)
    assert "3.111" in text and "neither a prediction nor a test" in text
    (source,) = IMPORTERS["eagle"](path, ImportChoices(2))
    (shallow,) = run_chapters([folder_of(source, tmp_path / "shallow")])
    assert "No alpha gives this at gamma 2" in shallow.sections[1].text[1]
    assert "Speedup 3.5" in text  # (28 / 1.0) / (20 / 2.5)
    found = find_runs([str(tmp_path)], "sqlite:///none.db")
    assert len(found.runs) == 2 and not found.notes  # both folders, though neither has rounds or a summary


def test_specforge_sets_its_configurations_against_its_own_plain_decoding(write):
    def configured(steps, **metrics):
        base = {"latency": 2.0, "output_throughput": 100.0, "accept_length": 2.0, "num_questions": 80}
        return {"batch_size": 1, "steps": steps, "topk": 1, "num_draft_tokens": steps + 1, "metrics": [base | metrics]}

    plain, short, long = configured(0, accept_length=1.0), configured(3), configured(5, output_throughput=150.0)
    document = {"model": None, "gsm8k": [plain, short, long], "mtbench": [short]}
    first, second = IMPORTERS["auto"](write(json.dumps(document, indent=4), name="results.jsonl"), ImportChoices())
    assert (first.gamma, second.gamma) == (3, 5) and "steps 5" in second.name
    assert first.texts[["prompt", "tokens", "rounds"]].values.tolist() == [["gsm8k", 200, 100], ["mtbench", 200, 100]]
    for source, speedup in ((first, "1.00"), (second, "1.50")):
        assert f"decoding at batch size 1: gsm8k {speedup}." in notes_of(source)
    for wrong, says in (
        ({"model": "x"}, "no benchmark with a list"),
        ({"a": [plain]}, "no configuration with steps above 0"),
        ({"a": [configured(3, accept_length=0.5)]}, "accept_length is 0.5"),
        ({"a": [configured(3, latency="x")]}, "latency must be a number above 0"),
    ):
        with pytest.raises(UsageError, match=says):
            IMPORTERS["specforge"](write(json.dumps(wrong)), ImportChoices())


@pytest.mark.parametrize("content", ["hello", '{"text": "x"}', "3", "[[", '{\n"a": 1\n}'])
def test_a_file_of_no_kind_is_said(write, content):
    with pytest.raises(UsageError, match="is of no kind that its content tells: name one, --import KIND"):
        IMPORTERS["auto"](write(content), ImportChoices(4))

"""`python -m specdec.report` on real runs of the table target, and what it answers to bad input."""

import re
import shutil

import pytest

from specdec import report, run
from specdec.analysis.findings.run_sections import reproduce_section
from specdec.analysis.read.find_runs import find_runs
from specdec.errors import UsageError


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, finished_run):
    """Two cells below one folder: an n-gram and the oracle."""
    folder = tmp_path_factory.mktemp("sweep")
    for cell, name in enumerate(("chain", "oracle")):
        shutil.copytree(finished_run(name), folder / str(cell))
    return folder


@pytest.mark.slow
def test_a_sweep_is_compared_and_every_run_has_all_sections(in_process, sweep, tmp_path):
    ended = in_process(report, sweep)
    assert ended.code == 0, ended.error
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    chapters = re.findall(r"^## (.*)$", markdown, re.MULTILINE)
    assert chapters[:2] == ["Comparison", "Behind the comparison"]
    assert [name.split(" on ")[0] for name in chapters[2:]] == ["ngram", "oracle"]
    assert re.search(r"^### Leaderboard$", markdown, re.MULTILINE)
    for title in ("Summary", "Curves over gamma", "The gap, explained", "Environment", "How to reproduce"):
        assert len(re.findall(rf"^### {title}$", markdown, re.MULTILINE)) == 2
    assert "Not available" not in markdown
    assert f"python -m specdec.run --config-path {sweep / '0'} --config-name config" in markdown
    html = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert html.count("<figure>") == markdown.count("![") > 10
    before, *folds = html.split('<details class="chapter">')
    assert "Leaderboard" in before and len(folds) == 3  # what stands behind the comparison, and each run
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*https?:""", html)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_pictures")
def test_an_experiment_and_run_ids_name_the_same_run_and_study(in_process, made_database, tmp_path):
    tiny = ("+debug=tiny", "measurement.max_new_tokens=16", "measurement.gammas=[]", "measurement.bootstrap=20")
    study = ("+experiment=ngrammys_ablation", "drafter.bigram.cache_dir=null", "measurement.workers=1")
    assert in_process(run, "+drafter=ngram", *tiny).code == 0
    assert in_process(run, *study, *tiny, "hydra.run.dir=studies/one").code == 0
    found = find_runs(["specdec"], report.STORE)
    ids = [each.source.split()[1] for each in (found.runs[0], found.studies[0])]
    again = find_runs([*ids, "specdec"], report.STORE)
    assert [each.source for each in (*again.runs, *again.studies)] == [found.runs[0].source, found.studies[0].source]
    assert not found.notes and not again.notes
    text = "\n".join(reproduce_section(found.runs[0]).text)
    assert "save it in FOLDER" in text and '--config-path "$PWD/FOLDER" --config-name config' in text
    with pytest.raises(UsageError, match="No experiment 'spekdec'.*Did you mean specdec"):
        find_runs(["spekdec"], report.STORE)
    (below,) = find_runs(["studies"], report.STORE).studies
    assert below.kind == "ablation" and below.findings().metrics == found.studies[0].findings().metrics
    ended = in_process(report, "studies", ids[1])
    assert ended.code == 0, ended.error
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    chapters = re.findall(r"^## (.*)$", markdown, re.MULTILINE)
    assert chapters[0] == "Studies side by side" and len(chapters) == 3
    assert "tokens (1)" in markdown and "tokens (2)" in markdown  # the same study twice


@pytest.mark.slow
def test_a_killed_run_gets_sentences_for_what_it_lacks(in_process, sweep, tmp_path):
    copy = tmp_path / "killed"
    copy.mkdir()
    for name in ("config.yaml", "rounds.parquet", "environment.json"):
        (copy / name).write_bytes((sweep / "0" / name).read_bytes())
    ended = in_process(report, copy)
    assert ended.code == 0, ended.error
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "(unfinished)" in markdown
    assert "has no artifact summary.json; every run that finished writes it." in markdown
    assert "### How to reproduce" in markdown and "### Environment" in markdown
    (tmp_path / "taken").write_text("")
    ended = in_process(report, copy, "--out", "taken")
    assert ended.code == 2 and "--out taken cannot be written" in ended.error


BAD = [
    ((), "Nothing to report on"),
    (("nowhere/at/all",), "There is no folder nowhere/at/all"),
    (("empty",), "There is no run with rounds in or below empty"),
    (("a.txt",), "a.txt is a file"),
    (("specdec",), "There is no MLflow database"),
    (("f" * 32,), "There is no MLflow database"),
    (("--imports",), "Unrecognized arguments: --imports"),
    (("--import", "sglang", "a.txt", "--gamma", "4"), "the kinds are auto, load, accepted_lengths, aiperf, eagle"),
    (("--import", "aiperf", "a.txt"), "is of no kind that --import aiperf reads. What it reads begins with AIPerf"),
    (("--import", "vllm", "a.txt", "--gamma", "0"), "--gamma"),
    (("--import", "vllm", "a.txt", "--gamma", "four"), "invalid int value"),
    (("--import", "vllm", "a.txt", "--gamma", "4"), "a.txt:1: not JSON"),
    (("--import", "vllm", "gone.jsonl", "--gamma", "4"), "gone.jsonl does not exist"),
    (("--import", "vllm", "a.txt", "--gamma", "4", "--bonus", "included"), "--bonus is for --import accepted_lengths"),
    (("empty", "--gamma", "4"), "--gamma is for --import only"),
]


@pytest.mark.parametrize("arguments, says", BAD, ids=[" ".join(arguments)[:40] or "nothing" for arguments, _ in BAD])
def test_bad_input_is_one_sentence_and_code_2(in_process, tmp_path, arguments, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("hello\n")
    ended = in_process(report, *arguments)
    assert ended.code == 2, ended.error
    assert ended.error.count("\n") == 1 and ended.error.startswith("specdec: ") and says in ended.error
    assert not (tmp_path / "report").exists()

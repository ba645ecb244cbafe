"""Runs that a signal ends: killed in MLflow and on disk, with what was decoded analysed and marked as a part."""

import json
import os
import signal
import time

import pytest

from specdec import report, run
from specdec.analysis.read.facts import RunStatus
from specdec.session.session import Session
from specdec.studies.base import Bench
from specdec.tracking.store import locate, opened
from specdec.tracking.views import NOTE

LONG = ("+drafter=ngram", "+debug=tiny", "measurement.repeats=2", "hydra.run.dir=one")
LONG += ("measurement.max_new_tokens=12", "measurement.gammas=[]", "measurement.bootstrap=50")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn_pictures")]


def after_prompts(monkeypatch, prompts, act):
    """Call `act` while the prompt after so many is decoded."""
    whole, calls = Session.run_prompt, []

    def run_prompt(*arguments, **values):
        calls.append(1)
        if len(calls) == prompts + 1:
            act()
        return whole(*arguments, **values)

    monkeypatch.setattr(Session, "run_prompt", run_prompt)


def logged(folder):
    client, experiment = opened(locate(None, folder), "specdec")
    (found,) = client.search_runs([experiment], "tags.`specdec.role` = 'main'")
    return found


def test_a_signal_ends_a_run_with_a_report_of_what_there_is(in_process, made_database, tmp_path, monkeypatch):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    run_prompt = Session.run_prompt
    after_prompts(monkeypatch, 7, lambda: os.kill(os.getpid(), signal.SIGINT))
    ended = in_process(run, *LONG)
    folder, sentence = tmp_path / "one", "Stopped by SIGINT; what was finished is on disk."
    assert (ended.code, ended.error) == (130, f"specdec: {sentence}\n")
    assert RunStatus.read(folder) == RunStatus("killed", sentence, 7, 12)
    assert (folder / "report.md").read_text().splitlines()[0].endswith(" (partial: 7 of 12 prompts)")
    said = " ".join(ended.output.split())
    assert "on the 7 of 12 prompts that are done so far" in said and "against the capped geometric" in said
    assert json.loads((folder / "summary.json").read_text())["notes"][0] == f"Partial: 7 of 12 prompts. {sentence}"
    found = logged(tmp_path)
    assert (found.info.status, found.data.tags["specdec.partial"]) == ("KILLED", "partial: 7 of 12 prompts")
    assert found.data.tags[NOTE].startswith("**Partial: 7 of 12 prompts.** **Speedup ")
    assert found.data.metrics["speedup"] > 0 and "curve/measured" not in found.data.metrics
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers

    monkeypatch.setattr(Session, "run_prompt", run_prompt)
    assert in_process(run, *LONG).code == 0  # goes on, as the same run
    found = logged(tmp_path)
    assert found.info.status == "FINISHED" and "(partial" not in (folder / "report.md").read_text()
    client, _ = opened(locate(None, tmp_path), "specdec")
    points = client.get_metric_history(found.info.run_id, "curve/measured")
    assert len({point.step for point in points}) == len(points)


def test_a_signal_before_the_first_prompt_leaves_no_report(in_process, made_database, tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "warm_up", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert in_process(run, *LONG).code == 143
    assert logged(tmp_path).info.status == "KILLED" and not (tmp_path / "one" / "report.md").exists()


def test_a_study_that_a_signal_ends_says_that_it_begins_again(in_process, made_database, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "needs_model", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    ended = in_process(run, "+experiment=all_drafters", "+debug=tiny", "~target.dtype", "hydra.run.dir=one")
    sentence = "Stopped by SIGINT; a study writes its tables at its end, and the same command begins it again."
    assert (ended.code, ended.error) == (130, f"specdec: {sentence}\n")
    assert RunStatus.read(tmp_path / "one") == RunStatus("killed", sentence, 0, 0)


def test_a_signal_that_a_library_swallows_is_raised_between_prompts(in_process, tmp_path, monkeypatch):
    def swallowed():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:
            return

    after_prompts(monkeypatch, 3, swallowed)
    assert in_process(run, *LONG, "tracking.enabled=false").code == 143
    assert RunStatus.read(tmp_path / "one") == RunStatus(
        "killed", "Stopped by SIGTERM; what was finished is on disk.", 4, 12
    )


def child(work):
    """Run `work` in a process of its own and return its number."""
    number = os.fork()
    if not number:
        try:
            work()
        finally:
            os._exit(1)
    return number


def test_a_second_signal_ends_the_process_at_once(in_process, tmp_path, monkeypatch):
    """While the partial results are being analysed, which here never ends."""

    def endless(folder):
        (tmp_path / "analysing").write_text("")
        time.sleep(60)

    monkeypatch.setattr("specdec.session.experiment.write_run", endless)
    after_prompts(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    number = child(lambda: in_process(run, *LONG, "tracking.enabled=false"))
    while not (tmp_path / "analysing").exists():
        assert os.waitpid(number, os.WNOHANG) == (0, 0), "the child ended before it analysed"
        time.sleep(0.05)
    os.kill(number, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 143


def test_what_a_killed_process_left_is_reported(in_process, tmp_path, monkeypatch, each_prompt_at_once):
    """SIGKILL leaves part-files and no summary; the report gathers them and says how much it is."""
    run_prompt = Session.run_prompt
    after_prompts(monkeypatch, 8, lambda: os.kill(os.getpid(), signal.SIGKILL))
    number = child(lambda: in_process(run, *LONG, "tracking.enabled=false"))
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == -signal.SIGKILL
    folder = tmp_path / "one"
    assert not (folder / "session.json").exists() and RunStatus.read(folder).status == "running"
    ended = in_process(report, "one")
    assert ended.code == 0, ended.error
    assert (folder / "report.md").read_text().splitlines()[0].endswith(" (partial: 8 of 12 prompts)")
    assert RunStatus.read(folder) == RunStatus("killed", "Its process was killed.", 8, 12)
    assert "Partial: 8 of 12 prompts. Its process was killed." in (tmp_path / "report" / "report.md").read_text()
    monkeypatch.setattr(Session, "run_prompt", run_prompt)
    assert in_process(run, *LONG, "tracking.enabled=false").code == 0  # and it still goes on
    assert RunStatus.read(folder) == RunStatus("finished", "", 12, 12)

"""Prompts of a run shared out over workers: the tables of one process, and what becomes of a worker that fails or dies.

Real processes where that is the point; elsewhere threads do the work of processes, which need not be started.
"""

import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from specdec.drafters import drafters
from specdec.drafters.base import Drafter
from specdec.errors import NumericsError, UsageError
from specdec.folder.results import finished_prompts
from specdec.session import workers
from specdec.targets.table import Table

QUESTIONS = Path(__file__).resolve().parents[1] / "fixtures" / "mt_bench_questions.jsonl"
QUICK = ("tracking.enabled=false", "measurement.bootstrap=50", "measurement.cost_contexts=[]")
TINY = ("+drafter=ngram", "+debug=tiny", *QUICK)
TABLES = ("rounds.parquet", "replay.parquet", "alpha.parquet")
NOT_MEASURED = ("session.json", "traces.json")


@pytest.fixture
def in_threads(monkeypatch):
    """Threads in place of processes; transformers loads one model at a time."""
    loading, open_parts = threading.Lock(), workers.open_parts

    def open_alone(plan, threads):
        with loading:
            return open_parts(plan)

    class Context:
        """That of multiprocessing, as far as workers use it; both ends of a pipe are in this process."""

        @staticmethod
        def Pipe():
            mine, theirs = multiprocessing.Pipe()
            theirs.close = lambda: None
            return mine, theirs

        class Process(threading.Thread):
            exitcode = None
            terminate = kill = lambda self: None

    monkeypatch.setattr(workers, "open_parts", open_alone)
    monkeypatch.setattr(workers, "_begin", lambda: None)
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: Context)


def untimed(folder: Path) -> dict[str, object]:
    """Everything that a run decoded and found out, without times."""
    found: dict[str, object] = {}
    for name in TABLES:
        table = pd.read_parquet(folder / name)
        kept = [column for column in table if not column.endswith("_s") and column != "disturbed"]
        found[name] = table[kept].to_json(orient="records")
    for name in NOT_MEASURED:
        values = json.loads((folder / name).read_text())
        found[name] = {k: v for k, v in values.items() if k != "peak_mb"} if isinstance(values, dict) else values
    for trace in found["traces.json"]:
        for line in trace["lines"]:
            del line["disturbed"]
    lines = map(json.loads, (folder / "generations.jsonl").read_text().splitlines())
    found["generations"] = [{k: v for k, v in line.items() if not k.endswith(("_s", "_disturbed"))} for line in lines]
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    counted = ("tokens_per_round", "alpha", "accepted_per_offered", "lossless", "iid", "repetition", "nodes_per_round")
    found["metrics"] = {name: value for name, value in metrics.items() if name.startswith(counted)}
    return json.loads(json.dumps(found))


# A model with later turns that continue sampled answers; on a table, a drafter beside the other.
TALK = (
    *("+drafter=ngram", *QUICK, "prompts=mt_bench", f"prompts.path={QUESTIONS}", "sampling=temperature"),
    *("measurement.max_new_tokens=8", "measurement.gammas=[]", "target.compile=false", "measurement.warmup_tokens=0"),
    "measurement.calibration_calls=1",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "workers"), [(TALK, 2), ((*TINY, "measurement.drafters=[oracle]"), 3)], ids=["talks", "two drafters"]
)
def test_workers_write_what_one_process_writes(run_into, in_threads, arguments, workers):
    """All prompts of two repeats, in their order."""
    arguments = (*arguments, "measurement.repeats=2", "measurement.traced=3")
    code, error, alone = run_into("alone", *arguments)
    assert code == 0, error
    code, error, shared = run_into("shared", *arguments, f"measurement.workers={workers}")
    assert code == 0, error
    assert untimed(shared) == untimed(alone)
    assert len(json.loads((shared / "traces.json").read_text())) == 3
    assert f"Decoded by {workers} workers, with 1 threads each" in (shared / "report.md").read_text()
    assert not (shared / "rounds").exists()


@pytest.mark.slow
def test_a_dead_worker_fails_the_run_which_can_be_resumed(run_into, tmp_path):
    slow = ("+drafter=oracle", "+debug=tiny", *QUICK, "drafter.step_ms=4")
    folder, killed = tmp_path / "killed", []

    def kill() -> None:
        until = time.monotonic() + 120
        while not any(folder.glob("rounds/part-*.parquet")) and time.monotonic() < until:
            time.sleep(0.02)
        killed.append(multiprocessing.active_children()[0].pid)
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    code, error, _ = run_into("killed", *slow, "measurement.workers=2")
    killer.join()
    assert code == 4 and error.count("\n") == 1, error
    assert error.startswith("specdec: Worker ") and "of 2 died (signal 9) while it decoded prompt 'tokens/" in error
    assert not multiprocessing.active_children()
    status = json.loads((folder / "status.json").read_text())
    kept = len(finished_prompts(folder))
    assert status["status"] == "failed" and 0 < kept < 6 and f"{kept} prompt" in status["sentence"]
    code, error, _ = run_into("killed", *slow)  # goes on in one process
    assert code == 0, error
    code, error, alone = run_into("alone", *slow)  # by one process: who decodes is no part of what a run is
    assert untimed(folder) == untimed(alone)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code"), [(NumericsError, 4), (UsageError, 2)])
def test_the_fault_of_a_worker_is_that_of_the_run(run_into, in_threads, monkeypatch, fault, code):
    """It ends with the worker's sentence; the prompts at hand are finished, no other one is begun."""
    verify, starts = Table.verify, []

    def broken(self, draft):
        if threading.current_thread() is not threading.main_thread() and self._text[0] == 2:
            raise fault("The third prompt cannot be decoded.")
        return verify(self, draft)

    def start(self, text):
        self._text = text.prompt
        starts.append(tuple(text.prompt))
        return begun(self, text)

    begun = Table.start
    monkeypatch.setattr(Table, "start", start)
    monkeypatch.setattr(Table, "verify", broken)
    ended, error, folder = run_into("broken", *TINY, "measurement.workers=2", "measurement.warmup_tokens=0")
    assert (ended, error) == (code, "specdec: The third prompt cannot be decoded.\n")
    assert json.loads((folder / "status.json").read_text())["status"] == "failed"
    rounds = pd.read_parquet(folder / "rounds.parquet")
    done = set(rounds["prompt"])
    assert {"tokens/0", "tokens/1"} <= done and "tokens/5" not in done and (1, 2) not in starts
    assert done >= {prompt for _, prompt in finished_prompts(folder)} != set()  # from which the run goes on


def test_a_numerics_fault_travels_without_its_rounds(monkeypatch, tmp_path):
    """What a worker sends to the run is small and free of a device's events."""
    error = NumericsError("The logits are not finite.")
    error.partial = threading.Lock()  # cannot be pickled, as an event of a GPU

    def decode(*_):
        raise error

    monkeypatch.setattr(workers, "_begin", lambda: None)
    monkeypatch.setattr(workers, "_opened", lambda *_: (None, None))
    monkeypatch.setattr(workers, "decode_conversation", decode)
    mine, theirs = multiprocessing.Pipe()
    for given in ((None, {}, {}), None):
        mine.send(given)
    workers._work(theirs, workers._Share(0, None, tmp_path, "", 1))
    sent = mine.recv()
    assert isinstance(sent, NumericsError) and str(sent) == "The logits are not finite." and mine.recv() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["+drafter=suffix", "+debug=tiny"], "use drafter.earlier_outputs=0, or measurement.workers=null"),
        (["+drafter=recycling", "+debug=tiny", "structure=chain", "drafter.persist=true"], "use drafter.persist=false"),
        (["+drafter=ngram", "prompts.limit=2", "measurement.peers=[transformers]"], "measurement.peers are timed"),
    ],
)
def test_what_depends_on_the_order_of_prompts_is_refused(run_into, arguments, says):
    code, error, folder = run_into("refused", *arguments, *QUICK, "measurement.workers=2")
    assert code == 2 and says in error and error.count("\n") == 1
    assert not folder.exists() or not list(folder.glob("rounds*"))


def test_every_drafter_that_remembers_says_so():
    for name in drafters.names():
        drafter = drafters.get(name)
        assert (drafter.remember is Drafter.remember) == (drafter.remembers is Drafter.remembers), name

"""Prompts of a run shared out over workers: the tables of one process, and what becomes of a worker that fails or dies.

Real processes where that is the point; elsewhere threads do the work of processes, which need not be started.
"""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from fixtures.resumed_runs import config_of, decode, found

from specdec.analysis.read.facts import RunStatus
from specdec.drafters import drafters
from specdec.drafters.base import Drafter
from specdec.errors import EnvironmentFault, NumericsError, UsageError
from specdec.folder.results import ResultsFolder, finished_prompts
from specdec.plan.plan import plan
from specdec.session import workers
from specdec.session.parts import open_parts
from specdec.session.session import Session
from specdec.targets.table import Table

QUESTIONS = Path(__file__).resolve().parents[1] / "fixtures" / "mt_bench_questions.jsonl"
TINY = ("+drafter=ngram", "measurement.max_new_tokens=12", "measurement.gammas=[]")


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


# A model with later turns that continue sampled answers; on a table, a drafter beside the other.
TALK = ("target=causal", "target.compile=false", "prompts=mt_bench", f"prompts.path={QUESTIONS}", "prompts.limit=4")
TALK += ("sampling=temperature", "measurement.max_new_tokens=8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "count"), [(TALK, 2), (("measurement.drafters=[oracle]",), 3)], ids=["talks", "two drafters"]
)
def test_workers_write_what_one_process_writes(tmp_path, in_threads, arguments, count):
    """All prompts of two repeats, in their order."""
    arguments = (*TINY, *arguments, "measurement.repeats=2", "measurement.traced=3")
    decode(config_of(*arguments), tmp_path / "alone")
    decode(config_of(*arguments, f"measurement.workers={count}"), tmp_path / "shared")
    shared = found(tmp_path / "shared")
    assert shared == found(tmp_path / "alone") and len(shared["traces"]) == 3
    assert not (tmp_path / "shared" / "rounds").exists()


@pytest.mark.slow
def test_a_dead_worker_fails_the_run_which_can_be_resumed(tmp_path):
    slow = ("+drafter=oracle", "drafter.step_ms=4", *TINY[1:])
    folder = tmp_path / "killed"

    def kill() -> None:
        until = time.monotonic() + 120
        while not any(folder.glob("rounds/part-*.parquet")) and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(EnvironmentFault, match=r"^Worker . of 2 died \(signal 9\) while it decoded prompt 'tokens/"):
        decode(config_of(*slow, "measurement.workers=2"), folder)
    killer.join()
    assert not multiprocessing.active_children()
    kept = len(finished_prompts(folder))
    status = RunStatus.read(folder)
    assert status.status == "failed" and 0 < kept < 6 and f"{kept} prompt" in status.sentence
    for name in ("killed", "alone"):  # by one process: who decodes is no part of what a run is
        decode(config_of(*slow), tmp_path / name)
    assert found(folder) == found(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [NumericsError, UsageError])
def test_the_fault_of_a_worker_is_that_of_the_run(tmp_path, in_threads, monkeypatch, fault):
    """It ends with the worker's sentence; the prompts at hand are finished, no other one is begun."""
    verify, decode_conversation, answer = Table.verify, Session.decode_conversation, workers._Worker.answer
    begun, at_hand, noticed = [], threading.local(), threading.Event()

    def broken(self, draft):
        if getattr(at_hand, "prompt", "") == "tokens/2":
            raise fault("The third prompt cannot be decoded.")
        return verify(self, draft)

    def held(self, conversation, *rest):
        at_hand.prompt = conversation.prompt.id
        begun.append(at_hand.prompt)
        if at_hand.prompt == "tokens/0-1":  # else a fast worker goes on while the run has not heard of the fault
            assert noticed.wait(60)
        return decode_conversation(self, conversation, *rest)

    def heard(self):
        try:
            return answer(self)
        except fault:
            noticed.set()
            raise

    monkeypatch.setattr(Session, "decode_conversation", held)
    monkeypatch.setattr(Table, "verify", broken)
    monkeypatch.setattr(workers._Worker, "answer", heard)
    with pytest.raises(fault, match="The third prompt cannot be decoded"):
        decode(config_of(*TINY, "measurement.workers=2"), tmp_path)
    assert RunStatus.read(tmp_path).status == "failed"
    ResultsFolder(tmp_path).compact()
    done = set(pd.read_parquet(tmp_path / "rounds.parquet")["prompt"])
    assert {"tokens/0", "tokens/1"} <= done == set(begun) - {"tokens/2"}
    assert "tokens/1-2" not in begun, "the fifth of the prompts"
    assert done >= {prompt for _, prompt in finished_prompts(tmp_path)} != set()  # from which the run goes on


def test_a_numerics_fault_travels_without_its_rounds(monkeypatch, tmp_path):
    """What a worker sends to the run is small and free of a device's events."""
    error = NumericsError("The logits are not finite.")
    error.partial = threading.Lock()  # cannot be pickled, as an event of a GPU

    def broken(*_):
        raise error

    monkeypatch.setattr(workers, "_begin", lambda: None)
    monkeypatch.setattr(workers, "open_parts", broken)
    mine, theirs = multiprocessing.Pipe()
    for given in ((None, {}, {}), None):
        mine.send(given)
    workers._work(theirs, 0, plan(config_of(*TINY)), tmp_path, "", 1)
    sent = mine.recv()
    assert isinstance(sent, NumericsError) and str(sent) == "The logits are not finite." and mine.recv() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["+drafter=suffix"], "use drafter.earlier_outputs=0, or measurement.workers=null"),
        (["+drafter=recycling", "structure=chain", "drafter.persist=true"], "use drafter.persist=false"),
        ([*TINY, "target=causal", "measurement.peers=[transformers]"], "measurement.peers are timed"),
    ],
)
def test_what_depends_on_the_order_of_prompts_is_refused(arguments, says):
    with pytest.raises(UsageError, match=says):
        workers.check_workers(open_parts(plan(config_of(*arguments, "measurement.workers=2"))))


def test_every_drafter_that_remembers_says_so():
    for name in drafters.names():
        drafter = drafters.get(name)
        assert (drafter.remember is Drafter.remember) == (drafter.remembers is Drafter.remembers), name

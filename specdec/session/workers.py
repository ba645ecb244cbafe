"""A run's prompts shared out over processes: each decodes whole prompts by all methods, into files of its own.

A worker takes the next prompt when it has finished one. Prompts draw from generators of their own, so tokens, rounds
and tables are those of one process; times are not, because workers that share a machine disturb one another. Processes
are started afresh, not forked: a process that has threads, as torch's, cannot be copied safely.
"""

import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from specdec.analysis.sections import counted
from specdec.clock import clock_for
from specdec.errors import EnvironmentFault, NumericsError
from specdec.folder.results import Kept, ResultsFolder, finished_prompts
from specdec.folder.resumption import Beginning
from specdec.models.memory import available_bytes
from specdec.plan.plan import Plan
from specdec.plan.rules import check
from specdec.prompts import first_turn
from specdec.session.parts import Parts, open_parts, prepare
from specdec.session.session import Answers, Conversation, Session, conversations

_LOOK_S = 0.5  # between two looks at the workers, in which a signal is noticed
_ENDING_S = 5.0  # a process that was told to end gets so long before it is killed


def check_workers(parts: Parts) -> None:
    """Check that the prompts of a run can be shared out. UsageError for a drafter that depends on their order, other
    engines beside, too few GPUs, too little memory.
    """
    if parts.workers == 1:
        return
    facts = {
        "workers": parts.workers,
        "device": parts.target.device.type,
        "gpus": torch.cuda.device_count(),
        "weights": int(parts.target.describe().get("weight_bytes", 0)),
        "free": available_bytes(torch.device("cpu")),
    }
    for each in parts.drafters:
        remembers = " ".join(f"drafter.{setting}" for setting in each.drafter.remembers.split())
        check("workers", parts.plan.case(name=each.name, remembers=remembers, **facts))


@contextmanager
def divided_threads(parts: Parts) -> Iterator[None]:
    """Compute on a worker's share of the threads: what is calibrated here is compared with what the workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // parts.workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def workers_note(parts: Parts) -> list[str]:
    """Return what a reader of times has to know of workers; to be called when the threads are divided."""
    if parts.workers == 1:
        return []
    where = "on a GPU each" if parts.target.device.type == "cuda" else f"with {torch.get_num_threads()} threads each"
    return [
        f"Decoded by {parts.workers} workers, {where}. They share the machine and disturb one another, so that "
        "times are longer and less even than those of one process; all methods of a prompt are timed in one worker, "
        "one after another. The calibration was measured before they began, alone."
    ]


def _begin() -> None:
    """Prepare a process for its work: it ends with the one that started it, and only by its word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger("specdec").setLevel(logging.ERROR)  # warnings were given once, when the run was built
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Else a worker whose run was killed would go on writing into a folder that is resumed.
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def _work(pipe: Connection, number: int, plan: Plan, folder: Path, cell: str, threads: int) -> None:
    """Decode the prompts that come through a pipe, one by one, and answer each with the turns that were decoded and
    the answers to them, or with the fault; None ends the worker, which says None when all is on disk. By its `number`,
    from 0, the worker has a GPU and files of its own.
    """
    _begin()
    results = ResultsFolder(folder, str(number))
    session: Session | None = None
    while (given := pipe.recv()) is not None:
        conversation, kept, answers = given
        turns: list[bool] = []  # False for one that was kept
        try:
            if session is None:
                if torch.cuda.is_available() and plan.target_values.get("device", "cpu") != "cpu":
                    torch.cuda.set_device(number)
                parts = open_parts(plan, threads)
                session = Session(parts, cell, results, parts.target.clock() or clock_for(parts.target.device))
                prepare(parts)
                if plan.measurement.warmup_tokens:
                    session.warm_up(parts.longest_prompt, plan.measurement.warmup_tokens)
            session.decode_conversation(conversation, kept, answers, turns.append)
        except Exception as error:
            if isinstance(error, NumericsError):
                error.partial = None  # on disk; too large, and on a GPU not able, to be sent
            error.add_note(traceback.format_exc())
            pipe.send(error)
        else:
            pipe.send((turns, answers))
    results.close()
    pipe.send(None)


class _WorkerDied(EnvironmentFault):
    """The death of a worker, which may have cut off what it was writing."""


class _Worker:
    """The side of the run: a worker's process, the pipe to it, and what it is doing."""

    def __init__(self, number: int, parts: Parts, folder: Path, cell: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = f"Worker {number} of {parts.workers}"
        self.pipe, theirs = context.Pipe()
        given = theirs, number, parts.plan, folder, cell, torch.get_num_threads()
        self._process = context.Process(target=_work, args=given)
        self._process.start()
        theirs.close()  # so that the pipe ends with the process
        self.prompts: list[str] = []  # ids of those that it has finished
        self.at_hand: Conversation | None = None  # what it decodes; None before its first prompt

    def give(self, conversation: Conversation, kept: Kept, answers: Answers) -> None:
        """Have the process decode a prompt."""
        mine = conversation.repeat, conversation.prompt.id
        own = {key: done for key, done in kept.items() if (key[0], first_turn(key[1])) == mine}
        self.at_hand = conversation
        with suppress(BrokenPipeError):  # it died: `answer` says so
            self.pipe.send((conversation, own, answers))

    def answer(self) -> tuple[list[bool], Answers]:
        """Return what became of the prompt at hand; raise what the worker raised, or an EnvironmentFault if it died."""
        assert self.at_hand is not None
        answer = self._received(f"while it decoded prompt {self.at_hand.prompt.id!r}")
        if isinstance(answer, Exception):
            raise answer
        self.prompts.append(self.at_hand.prompt.id)
        return answer

    def close(self) -> None:
        """Have the process write what still waits for its next prompt, and end; EnvironmentFault where it died."""
        with suppress(BrokenPipeError):
            self.pipe.send(None)
        self._received("before it had written its last prompts")
        self._process.join()

    def _received(self, when: str) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            how = f" (signal {-code})" if code is not None and code < 0 else ""
            raise _WorkerDied(
                f"{self._name} died{how} {when}, having finished {', '.join(self.prompts) or 'none'}"
            ) from None

    def end(self) -> None:
        """End the process at once."""
        self._process.terminate()
        self._process.join(_ENDING_S)
        self._process.kill()
        self._process.join()


def decode_by_workers(session: Session, beginning: Beginning, advance: Callable[[bool], None]) -> None:
    """Have workers decode all prompts that are not kept, and give the session what they collected, in the order of the
    run; `advance` is called after every turn, with False for one that was kept. Raises SpecdecError: the first fault of
    a worker, as it was raised there, after the others have finished the prompts at hand; EnvironmentFault: a worker
    died, and what is on disk is kept.
    """
    parts, folder = session.parts, beginning.results.folder
    workers: list[_Worker] = []
    try:
        for number in range(parts.workers):
            workers.append(_Worker(number, parts, folder, session.cell))
        _share_out(parts, workers, beginning, advance)
        for worker in workers:
            worker.close()
    except BaseException as error:
        for worker in workers:
            worker.end()
        if isinstance(error, _WorkerDied):
            kept = counted(len(finished_prompts(folder)), "prompt")
            raise EnvironmentFault(
                f"{error}; the others finished what they had begun. {kept} of the run are kept, and the same command "
                "goes on with them (resume=auto); if memory ran out, use fewer measurement.workers."
            ) from None
        raise
    finally:
        for done in finished_prompts(folder).values():
            session.collected.add(done.collected)


def _share_out(parts: Parts, workers: Sequence[_Worker], beginning: Beginning, advance: Callable[[bool], None]) -> None:
    """Give every worker a prompt, and the next one when it is done."""
    waiting = conversations(parts.prompts.prompts, parts.plan.measurement.repeats)
    answers: dict[int, Answers] = {}  # by the number of the prompt
    busy: dict[Any, _Worker] = {}  # by its pipe
    idle = deque(workers)
    fault: Exception | None = None
    while busy or (waiting and fault is None):
        while idle and fault is None:
            # A later repeat continues the answers of the first: it waits while a worker has that one at hand.
            ready = (c for c in waiting if c.repeat == 0 or not c.prompt.follow_ups or c.number in answers)
            conversation = next(ready, None)
            if conversation is None:
                break
            waiting.remove(conversation)
            worker = idle.popleft()
            worker.give(conversation, beginning.kept, answers.get(conversation.number, {}))
            busy[worker.pipe] = worker
        for pipe in wait(busy, _LOOK_S):
            worker = busy.pop(pipe)
            try:
                turns, more = worker.answer()
            except _WorkerDied as error:
                fault = fault or error
                continue
            except Exception as error:
                fault = fault or error
            else:
                assert worker.at_hand is not None
                answers.setdefault(worker.at_hand.number, {}).update(more)
                for turn in turns:
                    advance(turn)
            idle.append(worker)
    if fault is not None:
        for worker in idle:
            worker.close()
        raise fault

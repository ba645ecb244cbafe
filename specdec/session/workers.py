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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from pathlib import Path

import torch

from specdec.analysis.findings import counted
from specdec.clock import clock_for
from specdec.errors import EnvironmentFault, NumericsError
from specdec.folder.results import DonePrompt, PromptKey, ResultsFolder, finished_prompts
from specdec.folder.resumption import Beginning
from specdec.models.memory import available_bytes
from specdec.plan.plan import Plan
from specdec.plan.rules import check
from specdec.prompts import first_turn
from specdec.session.parts import Parts, open_parts, prepare
from specdec.session.session import Answers, Conversation, Session, conversations, decode_conversation

_LOOK_S = 0.5  # between two looks at the workers, in which a signal is noticed
_ENDING_S = 5.0  # a process that was told to end gets so long before it is killed


def check_workers(parts: Parts) -> None:
    """Check that the prompts of a run can be shared out.

    Raises:
        UsageError: a drafter that depends on the order of the prompts, other engines beside, too few GPUs, too little
            memory.
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
    """Compute on a worker's share of the threads, where there are workers: what is calibrated in this process is
    compared with what they do.
    """
    before, workers = torch.get_num_threads(), parts.workers
    torch.set_num_threads(max(1, before // workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def workers_note(parts: Parts) -> list[str]:
    """Return what a reader of times has to know of workers; to be called when the threads are divided."""
    workers = parts.workers
    if workers == 1:
        return []
    where = "on a GPU each" if parts.target.device.type == "cuda" else f"with {torch.get_num_threads()} threads each"
    return [
        f"Decoded by {workers} workers, {where}. They share the machine and disturb one another, so that times are "
        "longer and less even than those of one process; all methods of a prompt are timed in one worker, one after "
        "another. The calibration was measured before they began, alone."
    ]


@dataclass(frozen=True)
class _Share:
    """The run as a worker has to know it.

    Attributes:
        number: of the worker, from 0; also names its files.
    """

    number: int
    plan: Plan
    folder: Path
    cell: str
    threads: int


@dataclass(frozen=True)
class _Decoded:
    """A prompt that a worker is done with: which of its turns it decoded, and the answers to them."""

    turns: list[bool]
    answers: Answers


class _Worker:
    """The side of the worker: its own parts, and a session that writes files of its own."""

    def __init__(self, share: _Share) -> None:
        """
        Raises:
            SpecdecError: the parts cannot be made a second time.
        """
        if torch.cuda.is_available() and share.plan.target_values.get("device", "cpu") != "cpu":
            torch.cuda.set_device(share.number)
        self._parts = parts = open_parts(share.plan, share.threads)
        self._results = ResultsFolder(share.folder, str(share.number))
        measurement = parts.plan.measurement
        self._session = Session(
            parts, share.cell, self._results, parts.target.clock() or clock_for(parts.target.device)
        )
        prepare(parts)
        if measurement.warmup_tokens:
            self._session.warm_up(parts.longest_prompt, measurement.warmup_tokens)
        order = conversations(parts.prompts.prompts, measurement.repeats)
        self._conversations = {(each.repeat, each.number): each for each in order}

    def decode(self, place: tuple[int, int], kept: Mapping[PromptKey, DonePrompt], answers: Answers) -> _Decoded:
        """Decode what is left of a prompt; see `decode_conversation`."""
        turns: list[bool] = []
        try:
            decode_conversation(self._parts, self._session, self._conversations[place], kept, answers, turns.append)
        except NumericsError as error:
            error.partial = None  # on disk; too large, and on a GPU not able, to be sent
            self._results.close()
            raise
        return _Decoded(turns, answers)

    def close(self) -> None:
        self._results.close()


_made: dict[int, _Worker] = {}  # the worker of this process, by its number


def _begin() -> None:
    """Prepare a process for its work: it ends with the one that started it, and only by its word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger("specdec").setLevel(logging.ERROR)  # warnings were given once, when the run was built
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Else a worker whose run was killed would go on writing into a folder that is resumed.
    threading.Thread(target=lambda: (wait_for([parent.sentinel]), os._exit(1)), daemon=True).start()


def _decode(
    number: int,
    share: _Share | None,
    place: tuple[int, int],
    kept: Mapping[PromptKey, DonePrompt],
    answers: Answers,
) -> _Decoded:
    """Decode a prompt by the worker of a number; the first call makes it of its share, which only that call brings."""
    if share is not None:
        _made[number] = _Worker(share)
    return _made[number].decode(place, kept, answers)


def _close(number: int) -> None:
    """Drop the worker of this process, with what it has finished on disk."""
    if number in _made:
        _made.pop(number).close()


class _WorkerDied(EnvironmentFault):
    """The death of a worker, which may have cut off what it was writing."""


@dataclass
class _Process:
    """The side of the run: a worker, and what it is doing.

    Attributes:
        pool: of this one process, so that the death of another one does not end it.
        process: known from its first prompt on.
        prompts: ids of those that it has finished.
        begun: it has got its share.
    """

    share: _Share
    pool: ProcessPoolExecutor
    process: multiprocessing.process.BaseProcess | None = None
    prompts: list[str] = field(default_factory=list)
    begun: bool = False

    def give(
        self, conversation: Conversation, kept: Mapping[PromptKey, DonePrompt], answers: Answers
    ) -> Future[_Decoded]:
        """Have the process decode a prompt; return what will say that it is done."""
        mine = conversation.repeat, conversation.prompt.id
        own = {key: done for key, done in kept.items() if (key[0], first_turn(key[1])) == mine}
        before = set(multiprocessing.active_children())
        place, share = (conversation.repeat, conversation.number), None if self.begun else self.share
        future = self.pool.submit(_decode, self.share.number, share, place, own, answers)
        self.begun = True
        self.process = self.process or next(iter(set(multiprocessing.active_children()) - before), None)
        return future

    def close(self, workers: int) -> None:
        """Have the process write what still waits for its next prompt.

        Raises:
            EnvironmentFault: it died.
        """
        try:
            self.pool.submit(_close, self.share.number).result()
        except BrokenProcessPool:
            raise self.death(workers, "before it had written its last prompts") from None

    def death(self, workers: int, when: str) -> "_WorkerDied":
        """Return the fault that says how the process died."""
        # The pool waits for its process, too, and whoever comes second learns no exit code: so the pool comes first.
        self.pool.shutdown(wait=True)
        code = None if self.process is None else self.process.exitcode
        how = f" (signal {-code})" if code is not None and code < 0 else ""
        return _WorkerDied(
            f"Worker {self.share.number} of {workers} died{how} {when}, having finished "
            f"{', '.join(self.prompts) or 'none'}"
        )

    def end(self) -> None:
        """End the process at once."""
        if self.process is not None and self.process.is_alive():
            self.process.terminate()
            self.process.join(_ENDING_S)
            self.process.kill()
        self.pool.shutdown(wait=True, cancel_futures=True)


def decode_by_workers(parts: Parts, session: Session, beginning: Beginning, advance: Callable[[bool], None]) -> None:
    """Have workers decode all prompts that are not kept, and give the session what they collected, in the order of the
    run.

    Args:
        advance: called after every turn, with False for one that was kept.
    Raises:
        SpecdecError: the first fault of a worker, as it was raised there, after the others have finished the prompts at
            hand.
        EnvironmentFault: a worker died; what is on disk is kept.
    """
    folder = beginning.results.folder
    threads = torch.get_num_threads()
    shares = [_Share(number, parts.plan, folder, session.cell, threads) for number in range(parts.workers)]
    try:
        with _started(shares, folder) as processes:
            _share_out(parts, processes, beginning, advance)
    finally:
        for done in finished_prompts(folder).values():
            session.collect(done)


@contextmanager
def _started(shares: list[_Share], folder: Path) -> Iterator[list[_Process]]:
    """Start the workers, and end them. What they have finished is on disk then."""
    context = multiprocessing.get_context("spawn")
    processes = [_Process(share, ProcessPoolExecutor(1, context, _begin)) for share in shares]
    try:
        yield processes
        for each in processes:
            each.close(len(processes))
            each.pool.shutdown()
    except BaseException as error:
        for each in processes:
            each.end()
        if isinstance(error, _WorkerDied):
            kept = counted(len(finished_prompts(folder)), "prompt")
            raise EnvironmentFault(
                f"{error}; the others finished what they had begun. {kept} of the run are kept, and the same command "
                "goes on with them (resume=auto); if memory ran out, use fewer measurement.workers."
            ) from None
        raise


def _share_out(
    parts: Parts,
    processes: list[_Process],
    beginning: Beginning,
    advance: Callable[[bool], None],
) -> None:
    """Give every worker a prompt, and the next one when it is done."""
    waiting = deque(conversations(parts.prompts.prompts, parts.plan.measurement.repeats))
    answers: dict[int, Answers] = {}  # by the number of the prompt
    busy: dict[Future[_Decoded], tuple[_Process, Conversation]] = {}
    idle = deque(processes)
    fault: Exception | None = None
    while busy or (waiting and fault is None):
        while idle and waiting and fault is None:
            found = _next(waiting, answers, busy)
            if found is None:
                break
            worker = idle.popleft()
            busy[worker.give(found, beginning.kept, dict(answers.get(found.number, {})))] = worker, found
        for future in wait(busy, _LOOK_S, FIRST_COMPLETED).done:
            worker, conversation = busy.pop(future)
            try:
                decoded = future.result()
            except BrokenProcessPool:
                fault = fault or worker.death(len(processes), f"while it decoded prompt {conversation.prompt.id!r}")
                continue
            except Exception as error:
                fault = fault or error
            else:
                answers.setdefault(conversation.number, {}).update(decoded.answers)
                worker.prompts.append(conversation.prompt.id)
                for turn in decoded.turns:
                    advance(turn)
            idle.append(worker)
    if fault is not None:
        for worker in idle:
            worker.close(len(processes))
        raise fault


def _next(
    waiting: deque[Conversation], answers: Mapping[int, Answers], busy: Mapping[Future[_Decoded], object]
) -> Conversation | None:
    """Take the next prompt whose later turns continue an answer that is known; None where all wait for one at hand."""
    for conversation in waiting:
        if conversation.repeat == 0 or not conversation.prompt.follow_ups or conversation.number in answers:
            waiting.remove(conversation)
            return conversation
    assert busy
    return None

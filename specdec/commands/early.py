"""Refuses what a configuration alone shows to be wrong, before torch and its like are imported.

The check that a command makes later anyway is made first by a child process, which imports placeholders for all heavy
packages. It only makes the answer faster: where the child comes to no conclusion the command goes on, and checks again.
"""

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from specdec.commands.placeholders import import_placeholders
from specdec.errors import UsageError
from specdec.plugins import are_installed
from specdec.registry import Registry, UnknownName
from specdec.signals import STOPS

logger = logging.getLogger(__name__)

LONGEST = 20.0  # seconds that are waited for the child, which takes half a second; the command then goes on without it


def check_early(check: Callable[[], object]) -> None:
    """Raise the UsageError that `check` raises, without importing what it imports; do nothing where that is not known.

    Args:
        check: has its imports inside, and changes nothing outside of its process.
    """
    alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    if "torch" in sys.modules or not hasattr(os, "fork") or not alone:
        return
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_checked, args=(check, sending), daemon=True)
    # A signal between fork and `_checked` would run the command's handlers in the child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        child.start()
        sending.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        refused, why = receiving.recv() if receiving.poll(LONGEST) else ("", f"no answer in {LONGEST} s")
    except (EOFError, OSError) as error:  # it died, or there is no room for it
        refused, why = "", f"{type(error).__name__}: {error}"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if child.pid is not None:
            child.kill()
            child.join()
        receiving.close()
    if refused:
        raise UsageError(refused)
    if why:
        logger.debug("The configuration could not be checked early (%s).", why)


def _checked(check: Callable[[], object], sending: Connection) -> None:
    """Check in the child: send the sentence that refuses, and why there is no opinion."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    logging.disable()
    gc.disable()  # a tenth of the time, for memory that is soon given back
    try:
        import_placeholders()
        Registry.one_by_one = True
        check()
    except UnknownName as error:
        # A plugin's parts are not known here.
        sending.send(("", "plugins are installed") if are_installed() else (str(error), ""))
    except UsageError as error:
        sending.send((str(error), ""))
    except BaseException as error:
        sending.send(("", f"{type(error).__name__}: {error}"))
    else:
        sending.send(("", ""))

"""Runs a command that configures nothing: its arguments, and how it fails. Knows argparse; imports stay light."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from specdec.commands.failures import ending
from specdec.errors import UsageError


class OneSentence(argparse.ArgumentParser):
    """An argument parser that answers a bad command line with one sentence and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:].rstrip('.')}: see `{self.prog} --help`.")


@contextmanager
def told_faults() -> Iterator[None]:
    """End the process with one sentence and its exit code where the body fails; a bug keeps its traceback."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        known = ending(error)
        if known is None:
            raise
        sentence, code = known
        print(f"specdec: {sentence}", file=sys.stderr)
        raise SystemExit(code) from None

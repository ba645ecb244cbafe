"""Turns whatever can end a command into one sentence and an exit code, a bad command line too; imports stay light."""

import argparse
import errno
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from specdec.errors import EnvironmentFault, SpecdecError, UsageError, is_out_of_memory, near_misses

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOO_MANY = (errno.EMFILE, errno.ENFILE)
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, *TOO_MANY)
MEANT = {  # what is asked for by keys that are likely guesses
    "model": "the model of every command is target.model=FOLDER_OR_HUB_ID",
    "prompts.path": "a file with prompts of your own is prompts=jsonl prompts.path=FILE",
}
MEMORY_REMEDY = (
    "Try target.dtype=bfloat16, fewer measurement.max_new_tokens or a smaller model (in training: a smaller "
    "recipe.data.micro_batch_tokens)."
)


def ending(error: BaseException) -> tuple[str, int] | None:
    """Return sentence and exit code for what ended a command; None for a bug, which deserves a traceback.
    The sentence may quote files of others, so control characters, which a terminal obeys, are left out of it.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    code = EnvironmentFault.exit_code
    if isinstance(error, SpecdecError):
        sentence, code = str(error), error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        sentence, code = "Interrupted; what was finished is on disk.", 130
    elif isinstance(error, (HydraException, OmegaConfBaseException)):
        sentence, code = _composition_sentence(error), UsageError.exit_code
    elif isinstance(error, YAMLError):
        sentence, code = f"A YAML file cannot be read: {_one_line(error)}", UsageError.exit_code
    elif isinstance(error, OSError) and error.errno in DISK_FULL:
        sentence = (
            f"The disk is full: {_one_line(error)} What was finished is on disk; free some space, or write to another "
            "disk with hydra.run.dir=FOLDER."
        )
    elif isinstance(error, OSError) and error.errno in NOT_WRITABLE:
        named = f"The file {error.filename}" if error.filename else "A file"
        remedy = "Check its permissions and its disk, or write to another folder with hydra.run.dir=FOLDER."
        if error.errno in TOO_MANY:
            remedy = "Raise the limit of open files, as with `ulimit -n 4096`."
        sentence = f"{named} cannot be used ({error.strerror or _one_line(error)}). {remedy}"
    elif is_out_of_memory(error):
        sentence = f"Memory ran out: {_one_line(error)} {MEMORY_REMEDY}"
    else:
        return None
    return _plain(sentence), code


def _plain(sentence: str) -> str:
    """Return a sentence as one line without control characters and halves of characters."""
    kept = "".join(" " if character in "\n\r\t" else character for character in sentence)
    kept = "".join(character for character in kept if unicodedata.category(character) not in ("Cc", "Cf"))
    return kept.encode("utf-8", "replace").decode("utf-8")


def not_begun(error: BaseException) -> tuple[str, int]:
    """Return sentence and exit code for what ended a command before its task began: nothing but the command line, its
    YAML files and the output folder can be at fault then.
    """
    if isinstance(error, OSError):
        folder = _plain(f" {error.filename}") if error.filename else ""
        sentence = (
            f"The output folder{folder} cannot be made or written ({error.strerror or _one_line(error)}): run specdec "
            "where you may write, or name another folder with hydra.run.dir=FOLDER (hydra.sweep.dir with -m)."
        )
    else:
        why = _plain(f"{type(error).__name__}: {_one_line(error)}")[:300].rstrip(".")
        sentence = f"The command line cannot be composed ({why}): write a group as GROUP=NAME and a value as KEY=VALUE."
    return sentence, UsageError.exit_code


def _composition_sentence(error: Exception) -> str:
    """Say in one sentence what Hydra or OmegaConf found wrong in the command line or a YAML file."""
    missing = getattr(error, "missing_cfg_file", None)
    available = getattr(error, "options", None)
    if missing and available:
        group, _, name = str(missing).rpartition("/")
        names = ", ".join(available)
        return f"Unknown {group} {name!r}.{near_misses(name, available)} The options are: {names}."
    override = getattr(error, "override", None)
    if override is not None:  # the override does not parse
        why = _one_line(error).removeprefix(f"Error parsing override '{override}' ")
        return f"The argument {override!r} is not of the form KEY=VALUE: {why}"
    cause = error if hasattr(error, "full_key") else error.__cause__
    if "not in struct" in str(cause):  # an unknown key: `structure.k=4` lists the keys of the chosen structure
        key, node = str(getattr(cause, "full_key", "")), getattr(cause, "parent_node", None)
        keys = [str(name) for name in node or () if name not in ("name", "hydra")]
        group, _, leaf = key.rpartition(".")
        if key in MEANT:
            return f"Unknown key {key}: {MEANT[key]}."
        if not group:
            return f"Unknown key {key}: the configuration has no such key.{near_misses(leaf, keys)}"
        choice = node.get("name") if node is not None else None
        owner = f"{group} {choice!r}" if choice else group
        return f"Unknown key {key}: {owner} has the keys {', '.join(keys) or '(none)'}."
    text = _one_line(cause or error)
    if several := re.match(r"Ambiguous value for argument '([^=']+)=([^']*)'", text):
        key, values = several.groups()
        return f"{key} has several values: add -m to sweep over them, or write [{values}] for a list."
    if twice := re.match(r"Multiple values for ([^\s.]+)\.", text):
        return f"{twice[1]} is chosen twice: if it has a default, write {twice[1]}=NAME without the plus."
    return text


def _one_line(error: BaseException) -> str:
    text = re.sub(r"See https://\S+ for details\.?", "", str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if text.endswith((".", "?", "!")) else text + "."


class OneSentence(argparse.ArgumentParser):
    """An argument parser that answers a bad command line with one sentence and exit code 2, for commands that are no
    Hydra tasks. Their imports stay light, so that `--help` and a bad option are answered at once.
    """

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

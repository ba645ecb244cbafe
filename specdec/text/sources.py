"""Reads records from a file or the hub, and prompts from usual fields; faults name file, line and config key."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specdec import hub
from specdec.config import NonEmpty, typed
from specdec.errors import UsageError, in_one_line
from specdec.text.lines import decoded, file_digest, filled_lines, json_value

Part = Literal["train", "heldout"]  # of a training text
PARTS: tuple[Part, ...] = ("train", "heldout")


@dataclass(frozen=True)
class Records:
    """The records of a file or data set, read once, and where they come from."""

    numbered: Iterator[tuple[str, int, Mapping[str, Any]]]  # ("file:line", number from 1, record) of each
    provenance: dict[str, str]


def read_file(name: str, line_field: str | None, key: str = "prompts.path") -> Records:
    """Open the records of a prompt file, which messages name by its `key`: JSON lines or, with a `line_field`, lines of
    text in that field. Raises UsageError: missing, unreadable; while iterating, empty, not UTF-8, no JSON object.
    """
    path = Path(name).expanduser()
    what = f"Prompt file {key}={name}"
    plain = "; for plain text set prompts.format=lines" if key == "prompts.path" else ""
    digest = file_digest(path, what)

    def numbered() -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        for number, raw in filled_lines(path, what):
            where = f"{name}:{number}"
            line = decoded(where, raw, f"convert the file, or see {key}")
            if line_field is not None:
                yield where, number, {line_field: line}
            elif line.strip():
                record = json_value(name, number, line, f"{key} needs one object per line{plain}")
                if not isinstance(record, dict):
                    raise UsageError(
                        f"{where}: a JSON {type(record).__name__} where {key} needs an object with fields."
                    )
                yield where, number, record

    return Records(numbered(), {"path": name, "sha256": digest})


@typed
class SourceKeys:
    """The keys of a local file, or else of a data set on the hub in parquet or JSON: no script is ever run."""

    path: str | None
    hub_id: NonEmpty | None
    hub_config: str | None
    split: str
    revision: str | None


def read_hub(keys: SourceKeys, group: str) -> Records:
    """Open the records of a hub data set, from the local cache if they are there; messages name the config `group`.
    Raises UsageError: offline and not in the cache, no such data set or split, one that needs a script.
    """
    hub_id, split = str(keys.hub_id), keys.split
    if not Path(hub_id).expanduser().exists():
        hub.settle()  # before the library asks it

    import datasets

    data = _loaded(
        {"path": hub_id, "name": keys.hub_config, "split": split, "revision": keys.revision},
        f"{group}.hub_id={hub_id} ({group}.split={split})",
        f"The cache searched is {datasets.config.HF_DATASETS_CACHE}; without a network "
        f"{group}.path takes a local file.",
    )
    found = re.search(r"@([0-9a-f]{40})", " ".join(data.info.download_checksums or {}))
    about = {
        "hub_id": hub_id,
        "hub_config": keys.hub_config or "",
        "split": split,
        "revision": found[1] if found else keys.revision or "",
        "fingerprint": str(data._fingerprint),
    }
    return Records(_numbered(data, hub_id, split), about)


def read_data_set(name: str, split: str) -> Records:
    """Open the records of a local parquet file, which is one split whatever it is called, or of a split of a folder of
    parquet, JSON or CSV files. Raises UsageError: missing, damaged or empty; a folder without data or the split.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        where, what = {"path": str(path), "split": split}, f"prompts.path={name} (prompts.split={split})"
    else:
        files = [path]
        where, what = {"path": "parquet", "data_files": str(path), "split": "train"}, f"prompts.path={name}"
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)} {file_digest(file, f'Prompt file prompts.path={name}')}\n".encode())
    data = _loaded(where, what, "It is read as a data set: a parquet file, or a folder of parquet, JSON or CSV files.")
    return Records(_numbered(data, name, split), {"path": name, "split": split, "sha256": digest.hexdigest()})


def _loaded(where: Mapping[str, Any], what: str, remedy: str) -> Any:
    """Load a data set that holds a record, by the arguments of `datasets.load_dataset`. Messages call it `what`, and
    `remedy` is the sentence that ends the one about a data set that cannot be loaded.
    """
    import datasets
    from pyarrow import ArrowInvalid

    if "data_files" in where or Path(where["path"]).exists():
        datasets.disable_progress_bars()  # of files that are here; a download keeps its bar
    try:
        try:
            data = datasets.load_dataset(**where)
        except ArrowInvalid:  # the library does not repair a truncated file in its cache
            data = datasets.load_dataset(**where, download_mode="force_redownload")
    except Exception as error:  # datasets, the hub client and their file systems raise some twenty types here
        reason = f"{type(error).__name__}: {in_one_line(error)}"
        raise UsageError(f"Data set {what} cannot be loaded: {reason}. {remedy}") from None
    if len(data) == 0:
        raise UsageError(f"Data set {what} is empty: choose another split.")
    return data


def _numbered(data: Any, name: str, split: str) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    return ((f"{name}[{split}]:{number}", number, record) for number, record in enumerate(data, start=1))


USUAL_FIELDS = ("turns", "messages", "conversations", "prompt", "question", "instruction", "text")
"""Names of fields, the one that says most first: of several that a record has, the first one is read."""
SPEAKERS = {
    "system": "system", "human": "user", "user": "user",
    "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant", "bard": "assistant", "bing": "assistant",
}  # fmt: skip
"""Names of speakers in conversations, and the roles that chat templates know."""


def usual_prompt(record: Mapping[str, Any], where: str) -> tuple[str, Any]:
    """Return a record's usual field and its value, with an instruction's input below it. UsageError: it has none."""
    field = next((name for name in USUAL_FIELDS if record.get(name) is not None), None)
    if field is None:
        there = ", ".join(map(str, record)) or "none"
        raise UsageError(
            f"{where}: none of the usual fields ({', '.join(USUAL_FIELDS)}) is there; its keys are {there}: set "
            "prompts.field to the one with the prompt."
        )
    value, below = record[field], record.get("input")
    if field == "instruction" and isinstance(value, str) and isinstance(below, str) and below.strip():
        value = f"{value}\n\n{below}"
    return field, value


def user_turns(value: Any, field: str, where: str) -> Sequence[Any]:
    """Return the turns of the user that a field holds: a text is one turn, a list of texts has one each, and of a list
    of messages ({"role", "content"}, or {"from", "value"}) the user's are taken, behind the system's text. Raises
    UsageError: a message without a role or text, of an unknown speaker, or none of the user.
    """
    if not isinstance(value, list) or not any(isinstance(each, Mapping) for each in value):
        return value if isinstance(value, list) else [value]
    turns: list[str] = []
    system = ""
    for message in value:
        said = message if isinstance(message, Mapping) else {}
        role, text = SPEAKERS.get(str(said.get("role", said.get("from")))), said.get("content", said.get("value"))
        if isinstance(text, list):  # parts of a message, as of interfaces that also take pictures
            parts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in text]
            text = "\n\n".join(parts) if all(isinstance(part, str) for part in parts) else None
        if role is None or not isinstance(text, str):
            raise UsageError(
                f"{where}: {field} holds a message without a role ({', '.join(SPEAKERS)}) and a text; messages are "
                '{"role": "user", "content": "..."} or {"from": "human", "value": "..."}.'
            )
        if role == "system":
            system = f"{text}\n\n"
        elif role == "user":
            turns.append(system + text)
            system = ""
    if not turns:
        raise UsageError(f"{where}: {field} holds no message of the user.")
    return turns

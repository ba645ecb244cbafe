"""Recorded streams: prompts and outputs in tokens, written by a run of specdec or by another program, to be replayed
without the model that wrote them. Also plain text, cut into prompt and continuation. Knows no drafter and no
torch.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from specdec.config import BASELINE, AtLeastOne, typed
from specdec.errors import UsageError
from specdec.text.sources import json_lines, read_content, text_lines
from specdec.text.writing import write_atomically

PROMPT, OUTPUT, LENGTHS = "prompt_token_ids", "generated_token_ids", "acc_len"
CATEGORY = "recorded"  # the category of streams that name none
_NAMES = ("question_id", "request_id", "id", "prompt")  # the keys that may name a stream, in this order


@typed
class Recording:
    """The keys that target=replay and prompts=recorded share: which file, and how a plain text becomes streams."""

    path: Annotated[str, Field(min_length=1)] | None  # null is refused: no recording is the obvious one
    format: Literal["jsonl", "text"]
    tokenizer: Annotated[str, Field(min_length=1)] | None  # a folder, a hub id or pocket; text needs one
    unit: Literal["paragraph", "file"]  # of text: what becomes one stream; paragraphs end at an empty line
    prompt_tokens: AtLeastOne  # of text: as many first tokens of a stream are its prompt
    continuation_tokens: AtLeastOne | None  # of text: at most as many tokens follow the prompt; null: all


@dataclass(frozen=True)
class Stream:
    """One recorded output.

    Attributes:
        id: names the prompt; unique in a file, together with `repeat`.
        prompt: at least one token.
        generated: at least one token.
        accepted_lengths: by drafter, for every generated token: the most tokens that a round which starts there
            commits, the target's own included.
        ended: an end token closes `generated`; otherwise the recording stopped there.
        repeat: numbers several outputs after one prompt.
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    accepted_lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ended: bool = False
    repeat: int = 0

    def limit(self, max_new_tokens: int) -> int:
        """Return how many tokens a new decoding of this stream may write: never more than a record that just stops."""
        return max_new_tokens if self.ended else min(max_new_tokens, len(self.generated))


def read_streams(
    path: str | Path,
    vocab_size: int | None = None,
    *,
    key: str = "path",
    repeats: bool = False,
    context_length: int | None = None,
) -> list[Stream]:
    """Read the streams of a JSON-lines file, gzip or not, one object per line.

    A line has `prompt_token_ids` and `generated_token_ids`, and may have `category`; a name in `question_id`,
    `request_id`, `id` or `prompt`; `finish` ("end_token": the last token ends the text); `repeat`; and lengths per
    position of any number of drafters, `{"acc_eagle": {"acc_len": [...]}}`. Lines that name a `method` other than
    `baseline` are left out, so that a run's `generations.jsonl` can be read as it is.

    Args:
        vocab_size: refuses token ids from this one on.
        key: the config key that names the file, for messages.
        repeats: also reads the lines whose `repeat` is not 0; lines of one name then keep it, as outputs after one
            prompt.
        context_length: refuses streams that are longer, prompt included.
    Raises:
        UsageError: no such file, no stream in it, or a fault, named with file and line.
    """
    content, _ = read_content(str(path), f"File of recorded streams {key}")
    streams = []
    for where, number, record in json_lines(str(path), content, key):
        if record.get("method", BASELINE) != BASELINE:
            continue
        repeat = record.get("repeat", 0)
        if type(repeat) is not int:
            raise UsageError(f"{where}: repeat is {repeat!r}, not a whole number.")
        if repeat and not repeats:
            continue
        stream = _stream(where, number, record, vocab_size)
        if context_length is not None and len(stream.prompt) + len(stream.generated) > context_length:
            raise UsageError(
                f"{where}: {len(stream.prompt)} + {len(stream.generated)} tokens do not fit the target's context of "
                f"{context_length}: shorten the text or leave it out."
            )
        streams.append(stream)
    if not streams:
        raise UsageError(f"{path} holds no recorded stream for {key}: every line needs {PROMPT} and {OUTPUT}.")
    return streams if repeats else _named_apart(streams)


def write_streams(path: Path, streams: Iterable[Stream]) -> None:
    """Write streams in the form that `read_streams` reads; a path that ends in `.gz` is compressed."""
    lines = []
    for stream in streams:
        record: dict[str, Any] = {
            "id": stream.id,
            "category": stream.category,
            PROMPT: list(stream.prompt),
            OUTPUT: list(stream.generated),
            "finish": "end_token" if stream.ended else "limit",
        }
        record |= {name: {LENGTHS: list(lengths)} for name, lengths in stream.accepted_lengths.items()}
        lines.append(json.dumps(record) + "\n")
    content = "".join(lines).encode()
    write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _text_streams(content: bytes, recording: Recording, tokenizer: Any, group: str) -> list[Stream]:
    """Cut a plain text into streams: a unit's first tokens are the prompt, the others what was "generated".

    The replay of a text that no model wrote shows how much of it a drafter would have guessed. Units too short for a
    prompt and one token more are left out.
    """
    path = str(recording.path)
    name = Path(path).name
    text = "\n".join(line for _, _, line in text_lines(path, content, f"{group}.path"))
    units = [text] if recording.unit == "file" else [part for part in text.split("\n\n") if part.strip()]
    streams = []
    end = None if recording.continuation_tokens is None else recording.prompt_tokens + recording.continuation_tokens
    for number, unit in enumerate(units, 1):
        tokens = tuple(tokenizer(unit.strip("\n"), verbose=False)["input_ids"])[:end]
        prompt, generated = tokens[: recording.prompt_tokens], tokens[recording.prompt_tokens :]
        if generated:
            streams.append(Stream(f"{name}/{number}", CATEGORY, prompt, generated))
    if not streams:
        raise UsageError(
            f"{path} has no {recording.unit} of more than {group}.prompt_tokens={recording.prompt_tokens} tokens: "
            f"give a longer text, fewer prompt tokens or {group}.unit=file."
        )
    return streams


@dataclass(frozen=True)
class Recorded:
    """The content of a recording.

    Attributes:
        streams: one per prompt. Greedy decoding writes one text after a prompt, so of streams that begin with equal
            prompts the first counts and the others are left out.
        repeated: counts those left out, by category.
        tokenizer: a transformers tokenizer; None if none was given.
        sha256: the hash of the file.
    """

    streams: tuple[Stream, ...]
    repeated: Mapping[str, int]
    tokenizer: Any
    sha256: str

    @property
    def largest(self) -> int:
        """The largest token id of all streams."""
        return max(max(max(stream.prompt), max(stream.generated)) for stream in self.streams)


def open_recording(recording: Recording, group: str, vocab_size: int | None = None) -> Recorded:
    """Read the file that `recording` names.

    Args:
        group: the config group of these keys, for messages: `target` or `prompts`.
        vocab_size: refuses token ids from this one on.
    Raises:
        UsageError: no such file, no stream in it, or a fault, named with file and line; text without a tokenizer.
        ModelLoadError: a tokenizer that cannot be loaded.
    """
    if recording.path is None:
        raise UsageError(
            f"Missing key {group}.path: give the file of recorded streams (or of text, with {group}.format=text)."
        )
    from specdec.models.load import load_tokenizer, model_path

    tokenizer = None if recording.tokenizer is None else load_tokenizer(model_path(recording.tokenizer))
    if recording.tokenizer is not None and tokenizer is None:
        raise UsageError(
            f"Bad value {group}.tokenizer={recording.tokenizer}: there is no tokenizer in this folder; give another, "
            "a hub id or pocket."
        )
    content, digest = read_content(recording.path, f"File of recorded streams {group}.path")
    if recording.format == "jsonl":
        streams = read_streams(recording.path, vocab_size, key=f"{group}.path")
    elif tokenizer is None:
        raise UsageError(
            f"Missing key {group}.tokenizer: {group}.format=text needs one to turn the text into tokens; give a "
            "folder, a hub id or pocket."
        )
    else:
        streams = _text_streams(content, recording, tokenizer, group)
    first: dict[tuple[int, ...], Stream] = {}
    repeated: Counter[str] = Counter()
    for stream in streams:
        if first.setdefault(stream.prompt, stream) is not stream:
            repeated[stream.category] += 1
    return Recorded(tuple(first.values()), dict(repeated), tokenizer, digest)


def _stream(where: str, number: int, record: Mapping[str, Any], vocab_size: int | None) -> Stream:
    prompt, generated = (_tokens(where, record, key, vocab_size) for key in (PROMPT, OUTPUT))
    lengths = {}
    for key, value in record.items():
        if isinstance(value, dict) and LENGTHS in value:
            lengths[key] = _lengths(where, f"{key}.{LENGTHS}", value[LENGTHS], len(generated))
    name = next((record[key] for key in _NAMES if isinstance(record.get(key), str | int)), f"line {number}")
    category = record.get("category")
    if category is not None and not isinstance(category, str):
        raise UsageError(f"{where}: category is {category!r}, not a text.")
    ended = record.get("finish") == "end_token"
    return Stream(str(name), category or CATEGORY, prompt, generated, lengths, ended, record.get("repeat", 0))


def _tokens(where: str, record: Mapping[str, Any], key: str, vocab_size: int | None) -> tuple[int, ...]:
    tokens = record.get(key)
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise UsageError(f"{where}: {key} is not a list of token ids (at least one).")
    if min(tokens) < 0:
        raise UsageError(f"{where}: {key} holds {min(tokens)}, and no token id is negative.")
    if vocab_size is not None and max(tokens) >= vocab_size:
        raise UsageError(
            f"{where}: token id {max(tokens)} in {key} is beyond the target's vocabulary of {vocab_size} tokens: give "
            "a text that this model wrote."
        )
    return tuple(tokens)


def _lengths(where: str, name: str, value: Any, tokens: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(length) is int and length >= 1 for length in value):
        raise UsageError(
            f"{where}: {name} is not a list of whole numbers of 1 or more (the target's own token is counted)."
        )
    if len(value) != tokens:
        raise UsageError(f"{where}: {name} has {len(value)} entries for {tokens} generated tokens; give one for each.")
    return tuple(value)


def _named_apart(streams: list[Stream]) -> list[Stream]:
    """Return the same streams; of several with one id, the later ones get a number."""
    names = told_apart(stream.id for stream in streams)
    return [replace(stream, id=name) for stream, name in zip(streams, names, strict=True)]


def told_apart(names: Iterable[str]) -> Iterator[str]:
    """Yield the names; the second and later ones of a name get their number: a, a#2, a#3."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield f"{name}#{seen[name]}" if seen[name] > 1 else name

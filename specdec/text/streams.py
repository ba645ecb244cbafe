"""Recorded streams: prompts and outputs in tokens, written by a run of ours or by anybody, to be replayed without the
model that wrote them (DESIGN 3). Also plain text, cut into prompt and continuation. Knows no drafter and no torch.
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from specdec.config import BASELINE, AtLeastOne, typed
from specdec.errors import UsageError

PROMPT, OUTPUT, LENGTHS = "prompt_token_ids", "generated_token_ids", "acc_len"
CATEGORY = "recorded"  # of a stream that has none
_GZIP = b"\x1f\x8b"


@typed
class Recording:
    """Where streams come from: the keys that target=replay and prompts=recorded share."""

    path: Annotated[str, Field(min_length=1)] | None  # null is refused: there is no recording that could be meant
    format: Literal["jsonl", "text"]
    tokenizer: Annotated[str, Field(min_length=1)] | None  # a folder, a hub id or pocket; text cannot do without
    unit: Literal["paragraph", "file"]  # of text: what becomes one stream; paragraphs end at an empty line
    prompt_tokens: AtLeastOne  # of text: a stream's first tokens are its prompt
    continuation_tokens: AtLeastOne | None  # of text: at most so many after them; null is all


@dataclass(frozen=True)
class Stream:
    """One recorded output.

    Attributes:
        id: unique within a file.
        prompt: at least one token.
        generated: at least one token.
        accepted_lengths: by drafter, for every generated token: how many tokens a round that starts there would
            commit at most, the target's own included.
        ended: an end token closes `generated`; otherwise the recording stopped there.
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    accepted_lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ended: bool = False

    def limit(self, max_new_tokens: int) -> int:
        """Tokens that decoding this stream again may write: the record's own number where it just stops."""
        return max_new_tokens if self.ended else min(max_new_tokens, len(self.generated))


def read_streams(path: str | Path, vocab_size: int | None = None) -> list[Stream]:
    """The streams of a JSON-lines file, gzip or not, one object a line:

    `prompt_token_ids`, `generated_token_ids`; optional `category`; optional `question_id`, `request_id`, `id` or
    `prompt` (its name); optional `finish` ("end_token": the last token ends the text); and lengths per position of any
    number of drafters, `{"acc_eagle": {"acc_len": [...]}}`. Lines that name a `method` other than `baseline` or a
    `repeat` other than 0 are left out, so that a run's `generations.jsonl` can be read as it is.

    Raises:
        UsageError: no such file, no stream in it, or file and line of what is wrong.
    """
    streams = []
    for where, number, line in _lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", error)
            raise UsageError(f"{where}: not JSON ({reason}); a recorded stream is one object per line.") from None
        if not isinstance(record, dict):
            raise UsageError(f"{where}: a JSON {type(record).__name__} where an object with {OUTPUT} is expected.")
        if record.get("method", BASELINE) == BASELINE and record.get("repeat", 0) == 0:
            streams.append(_stream(where, number, record, vocab_size))
    if not streams:
        raise UsageError(f"{path} holds no recorded stream: every line needs {PROMPT} and {OUTPUT}.")
    return _named_apart(streams)


def write_streams(path: Path, streams: Iterable[Stream]) -> None:
    """Write streams in the form that `read_streams` reads, whole or not at all; `.gz` compresses."""
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
    part = path.with_name(path.name + ".tmp")
    part.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    part.replace(path)


def text_streams(path: str | Path, recording: Recording, tokenizer: Any) -> list[Stream]:
    """The streams of a plain text: each unit's first tokens are the prompt, the others what was "generated".

    A text that nobody decoded says how much of it a drafter would have guessed. Units too short for a prompt and one
    token more are left out.

    Raises:
        UsageError: no such file, or no unit that is long enough.
    """
    name = Path(path).name
    text = "\n".join(line for _, _, line in _lines(path, blank=True))
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
            f"{path} has no {recording.unit} of more than target.prompt_tokens={recording.prompt_tokens} tokens: "
            "give a longer text, fewer prompt tokens or target.unit=file."
        )
    return streams


@dataclass(frozen=True)
class Recorded:
    """Everything that a recording holds.

    Attributes:
        streams: one per prompt. Greedy decoding writes one text after a prompt, so of streams that begin with equal
            prompts the first counts and the others are left out.
        repeated: those left out, by category.
        tokenizer: a transformers tokenizer; None where none was given.
        sha256: of the file.
    """

    streams: tuple[Stream, ...]
    repeated: Mapping[str, int]
    tokenizer: Any
    sha256: str

    @property
    def largest(self) -> int:
        """The largest token id."""
        return max(max(max(stream.prompt), max(stream.generated)) for stream in self.streams)


def open_recording(recording: Recording, vocab_size: int | None = None) -> Recorded:
    """Read what `recording` names.

    Raises:
        UsageError: see `read_streams` and `text_streams`; text without a tokenizer.
        ModelLoadError: a tokenizer that cannot be loaded.
    """
    if recording.path is None:
        raise UsageError(
            "Missing key target.path: give the file of recorded streams (or of text, with target.format=text); where "
            "the target is another, prompts=recorded needs prompts.path."
        )
    from specdec.models.load import load_tokenizer, model_path

    tokenizer = None if recording.tokenizer is None else load_tokenizer(model_path(recording.tokenizer))
    if recording.tokenizer is not None and tokenizer is None:
        raise UsageError(f"Bad value target.tokenizer={recording.tokenizer}: there is no tokenizer in this folder.")
    if recording.format == "jsonl":
        streams = read_streams(recording.path, vocab_size)
    elif tokenizer is None:
        raise UsageError(
            "Missing key target.tokenizer: format=text needs one to make tokens of it; give a folder, a hub id "
            "or pocket."
        )
    else:
        streams = text_streams(recording.path, recording, tokenizer)
    first: dict[tuple[int, ...], Stream] = {}
    repeated: Counter[str] = Counter()
    for stream in streams:
        if first.setdefault(stream.prompt, stream) is not stream:
            repeated[stream.category] += 1
    digest = hashlib.sha256(Path(recording.path).expanduser().read_bytes()).hexdigest()
    return Recorded(tuple(first.values()), dict(repeated), tokenizer, digest)


def _lines(path: str | Path, blank: bool = False) -> Iterator[tuple[str, int, str]]:
    """("file:line", number, line) of a file, gzip or not; without the blank lines unless asked for."""
    try:
        content = Path(path).expanduser().read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise UsageError(f"Recorded streams: the file {path} does not exist.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"Recorded streams: {path} is a damaged gzip file; fetch it again.") from None
    except OSError as error:
        raise UsageError(f"Recorded streams: {path} cannot be read ({error.strerror}).") from None
    if not content.strip():
        raise UsageError(f"Recorded streams: {path} is empty.")
    # Split at newlines only: `str.splitlines` also splits at characters that may stand inside a text.
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            line = raw.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise UsageError(f"{path}:{number}: not UTF-8 text.") from None
        if blank or line.strip():
            yield f"{path}:{number}", number, line


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
    return Stream(str(name), category or CATEGORY, prompt, generated, lengths, record.get("finish") == "end_token")


_NAMES = ("question_id", "request_id", "id", "prompt")


def _tokens(where: str, record: Mapping[str, Any], key: str, vocab_size: int | None) -> tuple[int, ...]:
    tokens = record.get(key)
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise UsageError(f"{where}: {key} is not a list of token ids (at least one).")
    if min(tokens) < 0:
        raise UsageError(f"{where}: {key} holds {min(tokens)}, and no token id is negative.")
    if vocab_size is not None and max(tokens) >= vocab_size:
        raise UsageError(
            f"{where}: token id {max(tokens)} in {key} is beyond the vocabulary of {vocab_size} tokens: was it written "
            "by another model?"
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
    """The same streams; of several with one id, the later ones get a number."""
    seen: Counter[str] = Counter()
    apart = []
    for stream in streams:
        seen[stream.id] += 1
        again = f"#{seen[stream.id]}" if seen[stream.id] > 1 else ""
        apart.append(replace(stream, id=stream.id + again))
    return apart

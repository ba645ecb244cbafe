"""Recorded streams: prompts and outputs in tokens, written by a run of specdec or another program, to be replayed
without that model; also plain text, cut into prompt and continuation. Knows no drafter and no torch.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specdec.config import BASELINE, AtLeastOne, NonEmpty, typed
from specdec.errors import UsageError
from specdec.text.lengths import LARGEST, LENGTHS, FirstLengths, drafters_of, lengths_by_position
from specdec.text.lines import (
    BadLine,
    Line,
    LineFaults,
    Names,
    decoded,
    file_digest,
    filled_lines,
    json_file,
    printable,
)
from specdec.text.writing import write_atomically

PROMPT, OUTPUT = "prompt_token_ids", "generated_token_ids"
CATEGORY = "recorded"  # the category of streams that name none
_NAMES = ("question_id", "request_id", "id", "prompt")  # the keys that may name a stream, in this order


@typed
class Recording:
    """The keys that target=replay and prompts=recorded share: which file, and how a plain text becomes streams."""

    path: NonEmpty | None  # null is refused: no recording is the obvious one
    format: Literal["jsonl", "text"]
    tokenizer: NonEmpty | None  # a folder, a hub id or pocket; text needs one
    unit: Literal["paragraph", "file"]  # of text: what becomes one stream; paragraphs end at an empty line
    prompt_tokens: AtLeastOne  # of text: as many first tokens of a stream are its prompt
    continuation_tokens: AtLeastOne | None  # of text: at most as many tokens follow the prompt; null: all
    skip_bad: bool  # leave lines that cannot be used out and count them, instead of refusing the file
    lengths: NonEmpty | None  # what every stream has to have accepted lengths of

    def require_path(self, group: str) -> str:
        """Return the path. UsageError where no file is named; `group` is the config group of these keys."""
        if self.path is None:
            raise UsageError(
                f"Missing key {group}.path: give the file of recorded streams (or of text, with {group}.format=text)."
            )
        return self.path


@dataclass(frozen=True)
class Stream:
    """One recorded output."""

    id: str  # names the prompt; unique in a file, together with `repeat`
    category: str
    prompt: tuple[int, ...]  # at least one token
    generated: tuple[int, ...]  # at least one token
    # By drafter, for every generated token: the most tokens that a round which starts there commits, the target's own
    # included. They are as the file has them, often from another run than the text: `fitting_lengths` checks those that
    # are used.
    accepted_lengths: Mapping[str, Any] = field(default_factory=dict)
    ended: bool = False  # an end token closes `generated`; otherwise the recording stopped there
    repeat: int = 0  # numbers several outputs after one prompt
    # The file and line that it was read from, for messages; "" for others.
    where: str = field(default="", compare=False)

    def limit(self, max_new_tokens: int) -> int:
        """Return how many tokens a new decoding of this stream may write: never more than a record that just stops."""
        return max_new_tokens if self.ended else min(max_new_tokens, len(self.generated))


@dataclass(frozen=True)
class StreamsRead:
    """The streams of a file, and what was left out of it."""

    streams: Sequence[Stream]
    left_out: Mapping[str, Mapping[str, int]]  # reason -> category -> streams: repeated_prompt, bad_line, empty_output
    notes: tuple[str, ...]  # sentences on what was left out


def read_streams(
    path: str | Path,
    vocab_size: int | None = None,
    *,
    key: str = "path",
    repeats: bool = False,
    context_length: int | None = None,
    lengths: str | None = None,
    skip_bad: bool = False,
) -> StreamsRead:
    """Read the streams of a JSON-lines file, gzip or not, one object per line; messages name it by the config `key`.

    A line has `prompt_token_ids` and `generated_token_ids`, and may have `category`; a name in `question_id`,
    `request_id`, `id` or `prompt`; `finish` ("end_token": the last token ends the text); `repeat`; and lengths per
    position of any number of drafters, `{"acc_eagle": {"acc_len": [...]}}`, which are not looked at here. Lines that
    name a `method` other than `baseline` are left out, so that a run's `generations.jsonl` can be read as it is; so
    are, and they are counted, outputs without a token.

    Token ids from `vocab_size` on, and streams longer than `context_length`, prompt included, are refused. With
    `repeats`, lines whose `repeat` is not 0 are read too, and keep it. If any stream has the accepted lengths of the
    name `lengths`, each needs them, fitting its text. With `skip_bad`, what would be refused is left out and counted.
    Raises UsageError: no such file, no stream in it, or lines that cannot be used, named with file and line.
    """
    faults, empty = LineFaults(skip_bad), Counter[str]()
    streams: list[Stream] = []
    what, group = f"File of recorded streams {key}={path}", key.rpartition(".")[0]
    for line in json_file(Path(path).expanduser(), what, faults, f"{key} needs one object per line"):
        with faults.line():
            stream = _stream(line, key, vocab_size, repeats)
            if stream is None:
                continue
            if not stream.generated:
                empty[stream.category] += 1
                continue
            size = len(stream.prompt), len(stream.generated)
            if context_length is not None and sum(size) > context_length:
                raise BadLine(
                    f"{stream.where}: {size[0]} + {size[1]} tokens do not fit the target's context of "
                    f"{context_length}: shorten the text or leave it out."
                )
            streams.append(stream)
    if lengths is not None and any(lengths in stream.accepted_lengths for stream in streams):
        all_streams, streams = streams, []
        for stream in all_streams:
            with faults.line():
                _fitting(stream, lengths)
                streams.append(stream)
    faults.settle(f"{group}.skip_bad=true" if group in ("target", "prompts") else None)
    if not streams:
        raise UsageError(f"{path} holds no recorded stream for {key}: every line needs {PROMPT} and {OUTPUT}.")
    left_out = {"bad_line": {CATEGORY: faults.number}, "empty_output": dict(empty)}
    notes = [*faults.notes(), *([f"{empty.total():,} outputs without a token are left out."] if empty else [])]
    if not repeats:
        apart = Names()  # of several with one id, the later ones get a number
        streams = [replace(stream, id=apart(stream.id)) for stream in streams]
    return StreamsRead(streams, {why: n for why, n in left_out.items() if any(n.values())}, tuple(notes))


def fitting_lengths(streams: Sequence[Stream], name: str, option: str | None) -> tuple[list[Stream], tuple[str, ...]]:
    """Check the accepted lengths of one drafter, and return the streams with nothing but them, and notes. First lengths
    that stand for the prefill become a 1: a round that begins there commits the target's token. Raises UsageError:
    lengths that do not fit, by file and line, and the `option` that leaves bad lines out.
    """
    faults, firsts = LineFaults(skip=False), FirstLengths()
    found: list[Stream] = []
    for stream in streams:
        with faults.line():
            lengths = _fitting(stream, name)
            firsts.add(lengths, len(stream.prompt))
            found.append(replace(stream, accepted_lengths={name: lengths}))
    faults.settle(option)
    placeholders = firsts.are_placeholders
    for place, stream in enumerate(found):
        lengths = stream.accepted_lengths[name]
        if lengths[0] == 0 or placeholders:
            found[place] = replace(stream, accepted_lengths={name: (1, *lengths[1:])})
    return found, (firsts.note(name),) if placeholders else ()


def _fitting(stream: Stream, name: str) -> tuple[int, ...]:
    if name not in stream.accepted_lengths:
        raise BadLine(f"{stream.where}: no {name}.{LENGTHS}, which other lines have.")
    return lengths_by_position(stream.where, name, stream.accepted_lengths[name], len(stream.generated))


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
        record |= {name: {LENGTHS: lengths} for name, lengths in stream.accepted_lengths.items()}
        lines.append(json.dumps(record) + "\n")
    content = "".join(lines).encode()
    write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _text_streams(recording: Recording, what: str, tokenizer: Any, group: str) -> list[Stream]:
    """Cut a plain text into streams: a unit's first tokens are the prompt, the others what was "generated", so that a
    replay shows how much a drafter would have guessed. Units too short for both are left out.
    """
    path = str(recording.path)
    name = Path(path).name
    lines, remedy = filled_lines(Path(path).expanduser(), what), f"convert the file, or see {group}.path"
    text = "\n".join(decoded(f"{path}:{number}", raw, remedy) for number, raw in lines)
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
class Recorded(StreamsRead):
    """The content of a recording, with one stream per prompt: greedy decoding writes one text after a prompt, so of
    streams that begin with equal prompts the first counts and the others are left out.
    """

    tokenizer: Any  # a transformers tokenizer; None if none was given
    sha256: str  # the hash of the file

    @property
    def largest(self) -> int:
        """The largest token id of all streams."""
        return max(max(max(stream.prompt), max(stream.generated)) for stream in self.streams)


def open_recording(recording: Recording, group: str, vocab_size: int | None = None) -> Recorded:
    """Read the file that the config `group` names, `target` or `prompts`; token ids from `vocab_size` on are refused.
    Raises UsageError: no file, no stream, a fault by file and line, text without a tokenizer; or ModelLoadError.
    """
    path = recording.require_path(group)
    from specdec.models.load import load_tokenizer, model_path

    tokenizer = None if recording.tokenizer is None else load_tokenizer(model_path(recording.tokenizer))
    if recording.tokenizer is not None and tokenizer is None:
        raise UsageError(
            f"Bad value {group}.tokenizer={recording.tokenizer}: there is no tokenizer in this folder; give another, "
            "a hub id or pocket."
        )
    what, key = f"File of recorded streams {group}.path={path}", f"{group}.path"
    if recording.format == "jsonl":
        read = read_streams(path, vocab_size, key=key, lengths=recording.lengths, skip_bad=recording.skip_bad)
    elif tokenizer is None:
        raise UsageError(
            f"Missing key {group}.tokenizer: {group}.format=text needs one to turn the text into tokens; give a "
            "folder, a hub id or pocket."
        )
    else:
        read = StreamsRead(_text_streams(recording, what, tokenizer, group), {}, ())
    first: dict[tuple[int, ...], Stream] = {}
    repeated: Counter[str] = Counter()
    for stream in read.streams:
        if first.setdefault(stream.prompt, stream) is not stream:
            repeated[stream.category] += 1
    left_out = {**({"repeated_prompt": dict(repeated)} if repeated else {}), **read.left_out}
    digest = file_digest(Path(path).expanduser(), what)
    return Recorded(tuple(first.values()), left_out, read.notes, tokenizer, digest)


def _stream(line: Line, key: str, vocab_size: int | None, repeats: bool) -> Stream | None:
    """Return a line's stream, perhaps empty; None for another method or repeat. Raises BadLine: a fault of the line."""
    where, number, record = line
    if not isinstance(record, dict):
        raise BadLine(f"{where}: a JSON {type(record).__name__} where {key} needs an object with fields.")
    if record.get("method", BASELINE) != BASELINE:
        return None
    repeat = record.get("repeat", 0)
    if type(repeat) is not int:
        raise BadLine(f"{where}: repeat is {repeat!r:.40}, not a whole number.")
    if repeat and not repeats:
        return None
    prompt, generated = _tokens(where, record, PROMPT, vocab_size), _tokens(where, record, OUTPUT, vocab_size, least=0)
    name = next((record[known] for known in _NAMES if isinstance(record.get(known), str | int)), f"line {number}")
    category = record.get("category")
    if category is not None and not isinstance(category, str):
        raise BadLine(f"{where}: category is {category!r:.40}, not a text.")
    ended = record.get("finish") == "end_token"
    raw = ((name, record[name][LENGTHS]) for name in drafters_of(record))
    lengths = {name: tuple(value) if isinstance(value, list) else value for name, value in raw}
    known = printable(str(name)), printable(category or CATEGORY)
    return Stream(*known, prompt, generated, lengths, ended, repeat, where)


def _tokens(where: str, record: Mapping[str, Any], key: str, vocab_size: int | None, least: int = 1) -> tuple[int, ...]:
    tokens = record.get(key)
    if not isinstance(tokens, list) or len(tokens) < least or not all(type(token) is int for token in tokens):
        raise BadLine(f"{where}: {key} is not a list of token ids{' (at least one)' if least else ''}.")
    if min(tokens, default=0) < 0:
        raise BadLine(f"{where}: {key} holds {min(tokens)}, and no token id is negative.")
    if max(tokens, default=0) > LARGEST:
        raise BadLine(f"{where}: {key} holds a number that is larger than any token id.")
    if vocab_size is not None and max(tokens, default=-1) >= vocab_size:
        raise BadLine(
            f"{where}: token id {max(tokens)} in {key} is beyond the target's vocabulary of {vocab_size} tokens: give "
            "a text that this model wrote."
        )
    return tuple(tokens)

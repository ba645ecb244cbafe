"""Prompt sets in files or on the hub: JSON lines, plain lines or a data set, a field and a template."""

import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from specdec.config import AtLeastOne, NonEmpty, typed
from specdec.errors import UsageError
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text.lines import printable
from specdec.text.sources import (
    USUAL_FIELDS,
    Records,
    SourceKeys,
    read_data_set,
    read_file,
    read_hub,
    user_turns,
    usual_prompt,
)

LINE = "text"  # the field of a record that is made of a plain line


@typed
class FileConfig(SetConfig, SourceKeys):
    path: str | None  # a local file, gzip or not; a parquet file; a folder, of which `split` is read as of a data set
    format: Literal["jsonl", "lines"]  # of a file of text; a line of text is a record with `field` alone
    field: NonEmpty | None  # text, or a list of turns; a dot reaches into a nested record; null: the usual one there is
    template: str | None  # {field} and other keys of the record; null: the field alone
    max_characters: AtLeastOne | None  # of the field: a longer text ends with the last word that fits; null: whole
    category_field: NonEmpty | None  # null: all prompts are of one category, named as the set
    id_field: NonEmpty | None  # null: the number of the line
    reference_field: NonEmpty | None  # the right answer, in records that have one; null: outputs are not compared
    strip_end: bool  # white space at the end would stop most tokenizers inside a token


@prompts.register("jsonl", "spec_bench", "mt_bench", "humaneval", "gsm8k", "wmt22", "wmt14_en_de", "cnn_dailymail")
class FileSet(PromptSource):
    """A prompt for each record of a file; the names differ in their YAML only."""

    def __init__(self, config: FileConfig) -> None:
        self.config: FileConfig = config
        self.field = config.field
        try:  # (literal text, key after it); only plain keys, no attributes, no formats
            self._template = [(literal, key) for literal, key, _, _ in string.Formatter().parse(config.template or "")]
        except ValueError as error:
            raise UsageError(
                f"Bad value prompts.template={config.template!r}: {error}; a literal brace is written twice."
            ) from None
        if config.template is None:
            return
        keys = [key for _, key in self._template if key]
        if self.field is None:
            self.field = next((key for key in (*USUAL_FIELDS, *keys) if key in keys), USUAL_FIELDS[-1])
        if self.field not in keys:
            raise UsageError(
                f"Bad value prompts.template={config.template!r}: it should contain {{{self.field}}}, "
                "the field that prompts.field names."
            )

    def read(self) -> SourceContent:
        records = self._records()
        return SourceContent([entry for entry, _ in self._entries(records)], records.provenance)

    def check(self) -> None:
        next(self._entries(self._records()), None)

    def records(self) -> dict[str, Mapping[str, Any]]:
        """Return the record that each prompt was made of, by the prompt's id. Raises UsageError: as `read`."""
        return {entry.id: record for entry, record in self._entries(self._records())}

    def _entries(self, records: Records) -> Iterator[tuple[Entry, Mapping[str, Any]]]:
        """Yield each entry with its record; an id that is used twice is refused."""
        config, seen = self.config, set[str]()
        for where, number, record in records.numbered:
            field, turns = self.turns(where, record)
            key, name = config.category_field, number
            category = None if key is None else _lookup(record, key, where, "prompts.category_field")
            if config.id_field is not None:
                name = _lookup(record, config.id_field, where, "prompts.id_field")
            texts = tuple(self._rendered(turn, field, record, where) for turn in turns)
            answer = None if config.reference_field is None else record.get(config.reference_field)
            entry = Entry(
                f"{config.name}/{printable(str(name))}",
                printable(str(category or config.name)),
                texts,
                reference=None if answer is None else str(answer),
            )
            if entry.id in seen:
                raise UsageError(
                    f"{where}: {config.id_field} {entry.id.partition('/')[2]!r} was used before; "
                    "set prompts.id_field=null to number the prompts by line."
                )
            seen.add(entry.id)
            yield entry, record

    def _records(self) -> Records:
        config = self.config
        if config.path is not None and config.hub_id is not None:
            raise UsageError("Both prompts.path and prompts.hub_id are set: set one of them to null.")
        if config.path is not None:
            path = Path(config.path).expanduser()
            if path.is_dir() or path.suffix == ".parquet":
                return read_data_set(config.path, config.split)
            return read_file(config.path, (self.field or LINE) if config.format == "lines" else None)
        if config.hub_id is not None:
            return read_hub(config, "prompts")
        raise UsageError(
            f"Prompt set {config.name!r} needs a file: set prompts.path to a local one, or prompts.hub_id."
        )

    def turns(self, where: str, record: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """Return the field that a record's prompt is in, and the user's turns there; messages name file and line,
        `where`. Raises UsageError: the record has no such field, or none that is usual; messages that are none.
        """
        field = self.field
        if field is None:
            field, value = usual_prompt(record, where)
        else:
            value = _lookup(record, field, where, "prompts.field")
        return field, user_turns(value, field, where)

    def _rendered(self, turn: Any, field: str, record: Mapping[str, Any], where: str) -> str:
        if not (turn is None or isinstance(turn, str | int | float)):
            raise UsageError(
                f"{where}: {field} holds a {type(turn).__name__}: prompts.field should name a text or a list of texts."
            )
        if turn is None or not str(turn).strip():
            return ""  # an empty field makes an empty prompt, whatever words the template puts around it
        said, limit = str(turn), self.config.max_characters
        if limit is not None and len(said) > limit:  # after the last whole word; tokens differ by tokenizer
            head, _, cut_word = said[: limit + 1].rpartition(" ")
            said = head or cut_word[:limit]
        parts = []
        for literal, key in self._template or [("", field)]:
            parts.append(literal)
            if key is not None:
                parts.append(said if key == field else str(_lookup(record, key, where, "prompts.template")))
        text = "".join(parts)
        if not text.isascii() and text != text.encode("utf-8", "ignore").decode("utf-8"):
            raise UsageError(f"{where}: {field} holds half a character (a lone surrogate).")
        return text.rstrip() if self.config.strip_end else text


def _lookup(record: Mapping[str, Any], key: str, where: str, setting: str) -> Any:
    if key in record:
        return record[key]
    value: Any = record
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            there = ", ".join(map(str, record)) or "none"
            raise UsageError(f"{where}: no field {key!r}; its keys are {there} (set {setting}).")
        value = value[part]
    return value

"""Prompt sets in files or on the hub: JSON lines, plain lines or a data set, a field and a template."""

import string
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from specdec.config import AtLeastOne, NonEmpty, typed
from specdec.errors import UsageError
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text import sources
from specdec.text.lines import printable

LINE = "text"  # the field of a record that is made of a plain line


@prompts.register("jsonl", "spec_bench", "mt_bench", "humaneval", "gsm8k", "wmt22", "wmt14_en_de", "cnn_dailymail")
@typed
class FileSet(PromptSource, SetConfig, sources.SourceKeys):
    """A prompt for each record of a file; the names differ in their YAML only."""

    path: str | None  # a local file, gzip or not; a parquet file; a folder, of which `split` is read as of a data set
    format: Literal["jsonl", "lines"]  # of a file of text; a line of text is a record with `field` alone
    field: NonEmpty | None  # text, or a list of turns; a dot reaches into a nested record; null: the usual one there is
    template: str | None  # {field} and other keys of the record; null: the field alone
    max_characters: AtLeastOne | None  # of the field: a longer text ends with the last word that fits; null: whole
    category_field: NonEmpty | None  # null: all prompts are of one category, named as the set
    id_field: NonEmpty | None  # null: the number of the line
    reference_field: NonEmpty | None  # the right answer, in records that have one; null: outputs are not compared
    strip_end: bool  # white space at the end would stop most tokenizers inside a token

    @cached_property
    def _layout(self) -> tuple[str | None, list[tuple[str, str | None]]]:
        """The field of the prompt, which a template may name, and the template's literal texts, each with the key after
        it. Raises UsageError: a template that is none, or that lacks the field.
        """
        field = self.field
        try:  # only plain keys, no attributes, no formats
            template = [(literal, key) for literal, key, _, _ in string.Formatter().parse(self.template or "")]
        except ValueError as error:
            raise UsageError(
                f"Bad value prompts.template={self.template!r}: {error}; a literal brace is written twice."
            ) from None
        keys = [key for _, key in template if key]
        if self.template is not None and field is None:
            field = next((key for key in (*sources.USUAL_FIELDS, *keys) if key in keys), sources.USUAL_FIELDS[-1])
        if self.template is not None and field not in keys:
            raise UsageError(
                f"Bad value prompts.template={self.template!r}: it should contain {{{field}}}, "
                "the field that prompts.field names."
            )
        return field, template

    def read(self) -> SourceContent:
        records = self._records()
        return SourceContent([entry for entry, _ in self._entries(records)], records.provenance)

    def check(self) -> None:
        next(self._entries(self._records()), None)

    def records(self) -> dict[str, Mapping[str, Any]]:
        """Return the record that each prompt was made of, by the prompt's id. Raises UsageError: as `read`."""
        return {entry.id: record for entry, record in self._entries(self._records())}

    def _entries(self, records: sources.Records) -> Iterator[tuple[Entry, Mapping[str, Any]]]:
        """Yield each entry with its record; an id that is used twice is refused."""
        seen = set[str]()
        for where, number, record in records.numbered:
            field, turns = self.turns(where, record)
            key, name = self.category_field, number
            category = None if key is None else _lookup(record, key, where, "prompts.category_field")
            if self.id_field is not None:
                name = _lookup(record, self.id_field, where, "prompts.id_field")
            texts = tuple(self._rendered(turn, field, record, where) for turn in turns)
            answer = None if self.reference_field is None else record.get(self.reference_field)
            entry = Entry(
                f"{self.name}/{printable(str(name))}",
                printable(str(category or self.name)),
                texts,
                reference=None if answer is None else str(answer),
            )
            if entry.id in seen:
                raise UsageError(
                    f"{where}: {self.id_field} {entry.id.partition('/')[2]!r} was used before; "
                    "set prompts.id_field=null to number the prompts by line."
                )
            seen.add(entry.id)
            yield entry, record

    def _records(self) -> sources.Records:
        field, _ = self._layout
        if self.path is not None and self.hub_id is not None:
            raise UsageError("Both prompts.path and prompts.hub_id are set: set one of them to null.")
        if self.path is not None:
            path = Path(self.path).expanduser()
            if path.is_dir() or path.suffix == ".parquet":
                return sources.read_data_set(self.path, self.split)
            return sources.read_file(self.path, (field or LINE) if self.format == "lines" else None)
        if self.hub_id is not None:
            return sources.read_hub(self, "prompts")
        raise UsageError(f"Prompt set {self.name!r} needs a file: set prompts.path to a local one, or prompts.hub_id.")

    def turns(self, where: str, record: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """Return the field that a record's prompt is in, and the user's turns there; `where` is file and line. Raises
        UsageError: the record has no such field, or none that is usual; messages that are none.
        """
        field, _ = self._layout
        if field is None:
            field, value = sources.usual_prompt(record, where)
        else:
            value = _lookup(record, field, where, "prompts.field")
        return field, sources.user_turns(value, field, where)

    def _rendered(self, turn: Any, field: str, record: Mapping[str, Any], where: str) -> str:
        if not (turn is None or isinstance(turn, str | int | float)):
            raise UsageError(
                f"{where}: {field} holds a {type(turn).__name__}: prompts.field should name a text or a list of texts."
            )
        if turn is None or not str(turn).strip():
            return ""  # an empty field makes an empty prompt, whatever words the template puts around it
        said, limit = str(turn), self.max_characters
        if limit is not None and len(said) > limit:  # after the last whole word; tokens differ by tokenizer
            head, _, cut_word = said[: limit + 1].rpartition(" ")
            said = head or cut_word[:limit]
        parts = []
        for literal, key in self._layout[1] or [("", field)]:
            parts.append(literal)
            if key is not None:
                parts.append(said if key == field else str(_lookup(record, key, where, "prompts.template")))
        text = "".join(parts)
        if not text.isascii() and text != text.encode("utf-8", "ignore").decode("utf-8"):
            raise UsageError(f"{where}: {field} holds half a character (a lone surrogate).")
        return text.rstrip() if self.strip_end else text


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

"""Prompts that every Python installation carries: held-out standard-library modules and topics.

The pocket models never saw these texts (`specdec.text.python_sources`). Nothing is imported to be read.
"""

import ast
import hashlib
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from specdec.config import AtLeastOne, typed
from specdec.prompts.base.contract import Counts, Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text.python_sources import held_out_modules, held_out_topics, installed_topics

Function = ast.FunctionDef | ast.AsyncFunctionDef


@typed
class StdlibCodeConfig(SetConfig):
    min_characters: AtLeastOne  # characters, so that every tokenizer gets the same prompts
    max_characters: AtLeastOne
    min_body_lines: AtLeastOne  # of a function's body without its docstring


@typed
class StdlibDocsConfig(SetConfig):
    min_characters: AtLeastOne
    max_characters: AtLeastOne
    cuts: AtLeastOne  # prompts per topic, cut at equal distances


@prompts.register("stdlib_code")
class StdlibCode(PromptSource):
    """Functions of held-out modules, cut in the middle of the body, with the text before them in the file.

    Within a module they are ordered by the hash of their name: arbitrary, and the same in every Python version.
    """

    def __init__(self, config: StdlibCodeConfig) -> None:
        self.config: StdlibCodeConfig = config

    def read(self) -> SourceContent:
        entries: list[Entry] = []
        sources, absent = module_sources()
        for module, text in sources.items():
            lines, found = text.split("\n"), dict[str, str]()
            for name, function in functions_of(ast.parse(text).body):
                cut = cut_body(lines, function, self.config)
                if cut is not None:
                    found.setdefault(name, cut)  # a property's setter has its getter's name: the first stands
            for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest()):
                entries.append(Entry(f"{self.config.name}/{module}/{name}", module, (found[name],)))
        return SourceContent(entries, provenance(), absent)


@prompts.register("stdlib_docs")
class StdlibDocs(PromptSource):
    """Held-out topics of the language reference (`pydoc_data.topics`), cut between two lines of a text."""

    def __init__(self, config: StdlibDocsConfig) -> None:
        self.config: StdlibDocsConfig = config

    def read(self) -> SourceContent:
        try:
            topics = installed_topics()
        except ImportError:  # some distributions ship Python without its documentation
            topics = {}
        entries: list[Entry] = []
        absent: dict[str, int] = {}
        for topic in held_out_topics():
            if topic not in topics:
                absent[topic] = 1
                continue
            lines = topics[topic].split("\n")
            for number in range(1, self.config.cuts + 1):
                cut = len(lines) * number // (self.config.cuts + 1)
                while cut > 0 and not (lines[cut - 1].strip() and lines[cut].strip()):
                    cut -= 1  # inside a paragraph, so that there is a sentence to go on with
                text = "\n".join(paragraphs_before(lines, cut, self.config.max_characters)).rstrip()
                if len(text) >= self.config.min_characters:
                    entries.append(Entry(f"{self.config.name}/{topic}/{number}", topic, (text,)))
        return SourceContent(entries, provenance(), {"absent_topic": absent} if absent else {})


def module_source(module: str) -> str | None:
    """Return the source of a standard-library module, found without importing it; None if there is none."""
    path = Path(sysconfig.get_path("stdlib"), *module.split("."))
    for file in (path.with_name(path.name + ".py"), path / "__init__.py"):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


def module_sources() -> tuple[dict[str, str], Counts]:
    """Return the sources of the held-out modules, and counts of those that are absent."""
    sources = {module: module_source(module) for module in held_out_modules()}
    absent = {module: 1 for module, text in sources.items() if text is None}
    there = {module: text for module, text in sources.items() if text is not None}
    return there, {"absent_module": absent} if absent else {}


def paragraphs_before(lines: Sequence[str], end: int, room: int) -> Sequence[str]:
    """Return the whole lines before `end` that fit in `room` characters, if possible from a paragraph's start."""
    start = end
    while start > 0 and room > len(lines[start - 1]):
        start -= 1
        room -= len(lines[start]) + 1
    starts = (line for line in range(start, end) if lines[line].strip() and (line == 0 or not lines[line - 1].strip()))
    return lines[next(starts, start) : end]


def functions_of(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield functions and methods with their qualified names; inner functions belong to the outer one."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions_of(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, Function):
            yield prefix + node.name, node


def first_line(function: Function) -> int:
    """Return the index of a function's first line, decorators included."""
    return min(node.lineno for node in (function, *function.decorator_list)) - 1


def cut_body(lines: Sequence[str], function: Function, config: StdlibCodeConfig) -> str | None:
    """Return context, signature, docstring and half of the body; None if that is too short or too long."""
    documented = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if documented else function.body
    if not body:
        return None
    length = (body[-1].end_lineno or 0) - body[0].lineno + 1
    if length < config.min_body_lines:
        return None
    return in_context(lines, first_line(function), body[0].lineno - 1 + length // 2, config)


def in_context(lines: Sequence[str], first: int, cut: int, config: StdlibCodeConfig) -> str | None:
    """Return lines `first` to before `cut` behind as much text as there is room for; None if too short or too long."""
    head = "\n".join(lines[first:cut]).rstrip()
    room = config.max_characters - len(head)
    text = "\n".join([*paragraphs_before(lines, first, room), head])
    return text if room >= 0 and len(text) >= config.min_characters else None


def provenance() -> dict[str, str]:
    """Return where these prompts come from."""
    return {"source": "standard library of the running interpreter", "python": platform.python_version()}

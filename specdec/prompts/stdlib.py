"""Prompts that every Python installation carries: held-out standard-library modules and topics, which the pocket models
never saw (`specdec.text.python_sources`). Nothing is imported to be read.
"""

import ast
import hashlib
import platform
import re
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from specdec.config import AtLeastOne, Probability, typed
from specdec.prompts.base.contract import Counts, Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text.python_sources import held_out_modules, held_out_topics, installed_topics

Function = ast.FunctionDef | ast.AsyncFunctionDef
KINDS = ("code", "docstrings", "editing")  # of the mix


@typed
class StdlibFunctions(PromptSource, SetConfig):
    """The keys of prompts that end inside a function."""

    min_characters: AtLeastOne  # characters, so that every tokenizer gets the same prompts
    max_characters: AtLeastOne
    min_body_lines: AtLeastOne  # of a function's body without its docstring

    def cut_body(self, lines: Sequence[str], function: Function) -> str | None:
        """Return context, signature, docstring and half of the body; None if that is too short or too long."""
        documented = ast.get_docstring(function, clean=False) is not None
        body = function.body[1:] if documented else function.body
        if not body:
            return None
        length = (body[-1].end_lineno or 0) - body[0].lineno + 1
        if length < self.min_body_lines:
            return None
        return self.in_context(lines, first_line(function), body[0].lineno - 1 + length // 2)

    def in_context(self, lines: Sequence[str], first: int, cut: int) -> str | None:
        """Return lines `first` to before `cut` behind as much text as there is room for; None if too short or long."""
        head = "\n".join(lines[first:cut]).rstrip()
        room = self.max_characters - len(head)
        text = "\n".join([*paragraphs_before(lines, first, room), head])
        return text if room >= 0 and len(text) >= self.min_characters else None


@prompts.register("stdlib_code")
@typed
class StdlibCode(StdlibFunctions):
    """Functions of held-out modules, cut in the middle of the body, with the text before them in the file. Within a
    module they are ordered by the hash of their name: arbitrary, and the same in every Python version.
    """

    def read(self) -> SourceContent:
        entries: list[Entry] = []
        sources, absent = module_sources()
        for module, text in sources.items():
            lines, found = text.split("\n"), dict[str, str]()
            for name, function in functions_of(ast.parse(text).body):
                cut = self.cut_body(lines, function)
                if cut is not None:
                    found.setdefault(name, cut)  # a property's setter has its getter's name: the first stands
            for name in sorted(found, key=_hash):
                entries.append(Entry(f"{self.name}/{module}/{name}", module, (found[name],)))
        return SourceContent(entries, provenance(), absent)


@prompts.register("stdlib_mix")
@typed
class StdlibMix(StdlibFunctions):
    """Functions of held-out modules, each as one of three kinds of prompt; the kind is the category. The hash of its
    name chooses the kind of a function, so that no text is decoded twice.

    *code* is cut in the middle of the body, *docstrings* in the middle of the docstring, both with the text before them
    in the file. *editing* has a whole function and then its beginning once more with an argument renamed, so that the
    rest of the function with that one change is what a copying drafter hopes for.

    A kind takes its modules in turn; modules and the functions of each are ordered by the hash of their names:
    arbitrary, and the same in every Python version.
    """

    min_docstring_lines: AtLeastOne
    min_edit_characters: AtLeastOne  # of the function that is to be edited
    max_edit_characters: AtLeastOne
    edit_shown: Probability  # share of its lines that stand there edited already, to show what is asked for

    def read(self) -> SourceContent:
        sources, absent = module_sources()
        return SourceContent(_mixed(replace(self, limit=None), tuple(sources.items())), provenance(), absent)

    def cut_docstring(self, lines: Sequence[str], function: Function) -> str | None:
        """Return context, signature and half of the docstring, cut inside a paragraph; None if it is too short."""
        if ast.get_docstring(function, clean=False) is None:
            return None
        first, end = function.body[0].lineno - 1, function.body[0].end_lineno or 0
        if end - first < self.min_docstring_lines:
            return None
        cut = (first + end) // 2
        while cut > first and not (lines[cut - 1].strip() and lines[cut].strip()):
            cut -= 1
        return self.in_context(lines, first_line(function), cut) if cut > first else None

    def edit(self, lines: Sequence[str], function: Function) -> str | None:
        """Return the function, and its beginning with its first argument renamed; None if it does not lend itself."""
        source = textwrap.dedent("\n".join(lines[first_line(function) : function.end_lineno]))
        arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        old = next((name for name in arguments if name not in ("self", "cls")), None)
        if old is None or not self.min_edit_characters <= len(source) <= self.max_edit_characters:
            return None
        new = f"new_{old}"
        word = re.compile(rf"\b{re.escape(old)}\b")
        if new in source or len(word.findall(source)) < 3:
            return None
        body = source.split("\n")
        shown = max(2, int(self.edit_shown * len(body)))
        edited = word.sub(new, "\n".join(body[:shown]))
        return f"{source}\n\n\n{edited}".rstrip()


@lru_cache(maxsize=1)  # the runs of a sweep have the same prompts
def _mixed(config: StdlibMix, sources: Sequence[tuple[str, str]]) -> Sequence[Entry]:
    """Return the entries of a mix, made of the sources of modules by name."""
    found: dict[str, list[tuple[int, str, Entry]]] = {kind: [] for kind in KINDS}
    made_by = dict(zip(KINDS, (config.cut_body, config.cut_docstring, config.edit), strict=True))
    for module, text in sources:
        functions = dict(reversed(list(functions_of(ast.parse(text).body))))  # of a repeated name the first stands
        taken = dict.fromkeys(KINDS, 0)
        for name in sorted(functions, key=_hash):
            kind = KINDS[int(_hash(f"{module}/{name}"), 16) % len(KINDS)]
            made = made_by[kind](text.split("\n"), functions[name])
            if made is not None:
                entry = Entry(f"{config.name}/{kind}/{module}/{name}", kind, (made,))
                found[kind].append((taken[kind], _hash(f"{kind}/{module}"), entry))
                taken[kind] += 1
    return tuple(entry for kind in KINDS for *_, entry in sorted(found[kind], key=lambda each: each[:2]))


@prompts.register("stdlib_docs")
@typed
class StdlibDocs(PromptSource, SetConfig):
    """Held-out topics of the language reference (`pydoc_data.topics`), cut between two lines of a text."""

    min_characters: AtLeastOne
    max_characters: AtLeastOne
    cuts: AtLeastOne  # prompts per topic, cut at equal distances

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
            for number in range(1, self.cuts + 1):
                cut = len(lines) * number // (self.cuts + 1)
                while cut > 0 and not (lines[cut - 1].strip() and lines[cut].strip()):
                    cut -= 1  # inside a paragraph, so that there is a sentence to go on with
                text = "\n".join(paragraphs_before(lines, cut, self.max_characters)).rstrip()
                if len(text) >= self.min_characters:
                    entries.append(Entry(f"{self.name}/{topic}/{number}", topic, (text,)))
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


def provenance() -> dict[str, str]:
    return {"source": "standard library of the running interpreter", "python": platform.python_version()}


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()

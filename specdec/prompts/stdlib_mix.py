"""Three kinds of work on held-out functions of the standard library: code to go on with, docstrings, and edits.

Every function belongs to one kind, which the hash of its name chooses, so that no text is decoded twice. Nothing is
imported to be read.
"""

import ast
import hashlib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from specdec.config import AtLeastOne, Probability, typed
from specdec.prompts.base.contract import Entry, PromptSource, SourceContent, prompts
from specdec.prompts.stdlib import (
    Function,
    StdlibCodeConfig,
    cut_body,
    first_line,
    functions_of,
    in_context,
    module_sources,
    provenance,
)

KINDS = ("code", "docstrings", "editing")


@typed
class StdlibMixConfig(StdlibCodeConfig):
    min_docstring_lines: AtLeastOne
    min_edit_characters: AtLeastOne  # of the function that is to be edited
    max_edit_characters: AtLeastOne
    edit_shown: Probability  # share of its lines that stand there edited already, to show what is asked for


@prompts.register("stdlib_mix")
class StdlibMix(PromptSource):
    """Functions of held-out modules, each as one of three kinds of prompt; the kind is the category.

    *code* is cut in the middle of the body, *docstrings* in the middle of the docstring, both with the text before them
    in the file. *editing* has a whole function and then its beginning once more with an argument renamed, so that the
    rest of the function with that one change is what a copying drafter hopes for.

    A kind takes its modules in turn; modules and the functions of each are ordered by the hash of their names:
    arbitrary, and the same in every Python version.
    """

    def __init__(self, config: StdlibMixConfig) -> None:
        self.config: StdlibMixConfig = config

    def read(self) -> SourceContent:
        sources, absent = module_sources()
        entries = _entries(replace(self.config, limit=None), tuple(sources.items()))
        return SourceContent([*entries], provenance(), absent)


@lru_cache(maxsize=1)  # the runs of a sweep have the same prompts
def _entries(config: StdlibMixConfig, sources: Sequence[tuple[str, str]]) -> Sequence[Entry]:
    """Return the entries of a set, made of the sources of modules by name."""
    found: dict[str, list[tuple[int, str, Entry]]] = {kind: [] for kind in KINDS}
    for module, text in sources:
        functions = dict(reversed(list(functions_of(ast.parse(text).body))))  # of a repeated name the first stands
        taken = dict.fromkeys(KINDS, 0)
        for name in sorted(functions, key=_hash):
            kind = KINDS[int(_hash(f"{module}/{name}"), 16) % len(KINDS)]
            lines, function = text.split("\n"), functions[name]
            if kind == "code":
                made = cut_body(lines, function, config)
            else:
                made = (_cut_docstring if kind == "docstrings" else _edit)(lines, function, config)
            if made is not None:
                entry = Entry(f"{config.name}/{kind}/{module}/{name}", kind, (made,))
                found[kind].append((taken[kind], _hash(f"{kind}/{module}"), entry))
                taken[kind] += 1
    return tuple(entry for kind in KINDS for *_, entry in sorted(found[kind], key=lambda each: each[:2]))


def _cut_docstring(lines: Sequence[str], function: Function, config: StdlibMixConfig) -> str | None:
    """Return context, signature and half of the docstring, cut inside a paragraph; None if it is too short."""
    if ast.get_docstring(function, clean=False) is None:
        return None
    first, end = function.body[0].lineno - 1, function.body[0].end_lineno or 0
    if end - first < config.min_docstring_lines:
        return None
    cut = (first + end) // 2
    while cut > first and not (lines[cut - 1].strip() and lines[cut].strip()):
        cut -= 1
    return in_context(lines, first_line(function), cut, config) if cut > first else None


def _edit(lines: Sequence[str], function: Function, config: StdlibMixConfig) -> str | None:
    """Return the function, and its beginning with its first argument renamed; None if it does not lend itself."""
    source = textwrap.dedent("\n".join(lines[first_line(function) : function.end_lineno]))
    arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    old = next((name for name in arguments if name not in ("self", "cls")), None)
    if old is None or not config.min_edit_characters <= len(source) <= config.max_edit_characters:
        return None
    new = f"new_{old}"
    word = re.compile(rf"\b{re.escape(old)}\b")
    if new in source or len(word.findall(source)) < 3:
        return None
    body = source.split("\n")
    shown = max(2, int(config.edit_shown * len(body)))
    edited = word.sub(new, "\n".join(body[:shown]))
    return f"{source}\n\n\n{edited}".rstrip()


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()

"""The sets that need no file: really cut mid-body, really held out, the same every time. Of the mix, which is the
default: three kinds, disjoint, and an edit that really asks for a copy.
"""

import ast
import platform
import re
from functools import cache

import pytest

from specdec.errors import UsageError
from specdec.prompts import read_prompts, stdlib
from specdec.text.python_sources import (
    STDLIB,
    Document,
    held_out_modules,
    held_out_topics,
    installed_topics,
    is_held_out,
)


@cache
def parsed(module: str) -> tuple[str, list[stdlib.Function]]:
    source = stdlib.module_source(module)
    return source, [node for node in ast.walk(ast.parse(source)) if isinstance(node, stdlib.Function)]


@pytest.mark.slow
def test_code_prompts_stop_inside_a_function_body(load):
    loaded = load("stdlib_code", limit=None)
    assert loaded.provenance["python"] == platform.python_version()
    assert len(loaded.prompts) > 200 and len({prompt.id for prompt in loaded.prompts}) == len(loaded.prompts)
    for prompt in loaded.prompts:
        source, functions = parsed(prompt.category)
        before, text, after = source.partition(prompt.text)
        assert text and 400 <= len(text) <= 1200 and after.startswith("\n")  # verbatim, whole lines
        last = (before + text).count("\n") + 1
        name = prompt.id.rpartition("/")[2].rpartition(".")[2]
        cut = [node for node in functions if node.name == name and node.lineno < last < node.end_lineno]
        assert len(cut) == 1, prompt.id
        assert text.rstrip() == text


@pytest.mark.parametrize("name", ["stdlib_code", "stdlib_mix"])
def test_functions_are_held_out_of_the_training_corpus_by_name(load, name):
    modules = {prompt.id.split("/")[-2] for prompt in load(name, limit=None).prompts}
    assert len(modules) >= 20
    for module in modules:
        assert is_held_out(Document(STDLIB, module.replace(".", "/") + ".py", ""), held_out_modules())


def test_docs_are_cut_inside_a_paragraph_of_a_held_out_topic(load):
    loaded = load("stdlib_docs")
    topics = installed_topics()
    assert len(loaded.prompts) >= 15 and load("stdlib_docs") == loaded
    for prompt in loaded.prompts:
        assert prompt.category in held_out_topics() and len(prompt.text) <= 1200
        following = topics[prompt.category].partition(prompt.text)[2]
        assert following.startswith("\n") and following.split("\n")[1].strip(), prompt.id


@pytest.mark.parametrize("name", ["stdlib_code", "stdlib_mix"])
def test_absent_modules_are_counted_and_none_at_all_is_refused(load, monkeypatch, name):
    monkeypatch.setattr(stdlib, "held_out_modules", lambda: ["textwrap", "gone", "gone.away"])
    loaded = load(name)
    assert all("/textwrap/" in prompt.id for prompt in loaded.prompts)
    assert loaded.skipped == {"absent_module": {"gone": 1, "gone.away": 1}}
    monkeypatch.setattr(stdlib, "held_out_modules", lambda: ["gone"])
    with pytest.raises(UsageError, match=r"no usable prompt \(1 absent module\)"):
        load(name)


def test_absent_topics_are_counted(load, monkeypatch):
    monkeypatch.setattr(stdlib, "held_out_topics", lambda: ["strings", "nonsense"])
    assert load("stdlib_docs").skipped == {"absent_topic": {"nonsense": 1}}


def test_paragraphs_before_fits_the_room():
    lines = ["a", "", "bb", "cc", "", "dd"]
    assert stdlib.paragraphs_before(lines, 6, 100) == lines
    assert stdlib.paragraphs_before(lines, 6, 8) == ["dd"]  # "cc" fits, but not its paragraph
    assert stdlib.paragraphs_before(lines, 4, 5) == ["cc"]  # no paragraph starts in what fits
    assert stdlib.paragraphs_before(lines, 6, 0) == []


@pytest.fixture(scope="module")
def mixed(group_values):
    return read_prompts(group_values("prompts", "stdlib_mix", limit=None)).content.entries


@pytest.mark.slow
def test_the_default_has_six_prompts_of_each_kind_from_different_modules(load):
    loaded = load("stdlib_mix")
    assert load("stdlib_mix") == loaded
    for kind in stdlib.KINDS:
        modules = [prompt.id.split("/")[2] for prompt in loaded.prompts if prompt.category == kind]
        assert len(modules) == len(set(modules)) == 6


@pytest.mark.slow
def test_every_function_is_of_one_kind(mixed):
    functions = [entry.id.split("/", 2)[2] for entry in mixed]
    assert len(functions) == len(set(functions)) > 100


@pytest.mark.slow
def test_docstrings_stop_inside_a_paragraph_of_an_open_docstring(mixed):
    chosen = [entry for entry in mixed if entry.category == "docstrings"]
    assert len(chosen) >= 12
    for entry in chosen:
        text = entry.turns[0]
        following = stdlib.module_source(entry.id.split("/")[2]).partition(text)[2]
        assert following.startswith("\n") and following.split("\n")[1].strip(), entry.id
        name = entry.id.rpartition("/")[2].rpartition(".")[2]
        head = text[[each.start() for each in re.finditer(rf"def {name}\(", text)][-1] :]
        assert head.count('"""') + head.count("'''") == 1, entry.id


def test_an_edit_begins_the_same_function_with_its_argument_renamed(mixed):
    chosen = [entry for entry in mixed if entry.category == "editing"]
    assert len(chosen) >= 12
    for entry in chosen:
        source, between, edited = entry.turns[0].rpartition("\n\n\n")
        assert between and 350 <= len(source) <= 550, entry.id
        new = re.search(r"\bnew_(\w+)", edited)
        back = re.sub(rf"\b{new[0]}\b", new[1], edited)
        assert new[0] not in source and source.startswith(back), entry.id
        assert not re.search(rf"\b{new[1]}\b", edited) and len(back) < 0.8 * len(source), entry.id

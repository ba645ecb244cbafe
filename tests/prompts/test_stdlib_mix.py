"""The default prompts: three kinds, really held out, disjoint, and an edit that really asks for a copy."""

import re

import pytest

from specdec.prompts import read_prompts, stdlib_mix
from specdec.prompts.stdlib import module_source


@pytest.fixture(scope="module")
def everything(group_values):
    return read_prompts(group_values("prompts", "stdlib_mix", limit=None)).content.entries


@pytest.mark.slow
def test_the_default_has_six_prompts_of_each_kind_from_different_modules(load):
    loaded = load("stdlib_mix")
    assert load("stdlib_mix") == loaded
    for kind in stdlib_mix.KINDS:
        modules = [prompt.id.split("/")[2] for prompt in loaded.prompts if prompt.category == kind]
        assert len(modules) == len(set(modules)) == 6


@pytest.mark.slow
def test_every_function_is_of_one_kind(everything):
    functions = [entry.id.split("/", 2)[2] for entry in everything]
    assert len(functions) == len(set(functions)) > 100


@pytest.mark.slow
def test_docstrings_stop_inside_a_paragraph_of_an_open_docstring(everything):
    chosen = [entry for entry in everything if entry.category == "docstrings"]
    assert len(chosen) >= 12
    for entry in chosen:
        text = entry.turns[0]
        following = module_source(entry.id.split("/")[2]).partition(text)[2]
        assert following.startswith("\n") and following.split("\n")[1].strip(), entry.id
        name = entry.id.rpartition("/")[2].rpartition(".")[2]
        head = text[[each.start() for each in re.finditer(rf"def {name}\(", text)][-1] :]
        assert head.count('"""') + head.count("'''") == 1, entry.id


def test_an_edit_begins_the_same_function_with_its_argument_renamed(everything):
    chosen = [entry for entry in everything if entry.category == "editing"]
    assert len(chosen) >= 12
    for entry in chosen:
        source, between, edited = entry.turns[0].rpartition("\n\n\n")
        assert between and 350 <= len(source) <= 550, entry.id
        new = re.search(r"\bnew_(\w+)", edited)
        back = re.sub(rf"\b{new[0]}\b", new[1], edited)
        assert new[0] not in source and source.startswith(back), entry.id
        assert not re.search(rf"\b{new[1]}\b", edited) and len(back) < 0.8 * len(source), entry.id

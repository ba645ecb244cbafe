"""Files of lines, trees and costs that are spoiled at random: each is read, or refused in one sentence with code 2."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.answers import answered, files_of, lines_of, spoiled, torn
from specdec.analysis.read.foreign.spec_bench import spec_bench_times
from specdec.analysis.read.imported import ImportChoices, Imported
from specdec.analysis.read.importers import IMPORTERS
from specdec.config import config_dir
from specdec.prompts import load_prompts, read_prompts
from specdec.structures.tree import load_tree
from specdec.targets.replay import load_cost
from specdec.text.streams import read_streams

pytestmark = pytest.mark.slow  # many examples of bad input


SETTINGS = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])

STREAMS = [
    {"id": "a", "category": "x", "prompt_token_ids": [1, 2], "generated_token_ids": [3, 4, 5], "finish": "end_token",
     "acc_eagle": {"acc_len": [2, 2, 1]}},
    {"question_id": 7, "prompt_token_ids": [2], "generated_token_ids": [1, 1], "repeat": 0, "method": "baseline",
     "acc_eagle": {"acc_len": [1, 1]}},
]  # fmt: skip


def file_of(values: list[Any]) -> st.SearchStrategy[bytes]:
    whole = lines_of(values)
    return st.one_of(
        st.lists(st.sampled_from(values).flatmap(spoiled), min_size=1, max_size=3).map(lines_of), torn(whole)
    )


@SETTINGS
@given(content=file_of(STREAMS), skip=st.booleans())
def test_recorded_streams(tmp_path: Path, content: bytes, skip: bool) -> None:
    path = tmp_path / "streams.jsonl"
    path.write_bytes(content)
    answered(lambda: read_streams(path, 10, key="target.path", context_length=20, lengths="acc_eagle", skip_bad=skip))


PROMPTS = [{"text": "hello {x}", "kind": "a", "id": 1}, {"text": "more", "kind": "b", "id": 2}]
TEMPLATES = (
    "{text}",
    "Q: {text}",
    "{text} {kind}",
    "{text!x}",
    "{text:>9}",
    "{text.a}",
    "{text[0]}",
    "{0}{text}",
    "{{{text}",
)


class Letters:
    """A tokenizer with one token per character."""

    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


@SETTINGS
@given(content=file_of(PROMPTS), template=st.one_of(st.sampled_from(TEMPLATES), st.text("{}text!:.[]0 ", max_size=12)))
def test_prompt_files(tmp_path: Path, group_values: Any, content: bytes, template: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(content)
    fields = {"id_field": "id", "category_field": "kind", "template": template}
    values = group_values("prompts", "jsonl", path=str(path), **fields)
    answered(lambda: load_prompts(read_prompts(values), tokenizer=Letters(), context_length=100, max_new_tokens=10))


PAGE = Path(__file__).resolve().parents[2] / "notebooks" / "guide" / "foreign_formats.md"
EXAMPLES = re.findall(
    r"^## (\w+)[^\n]*\n.*?```(jsonl|json|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def test_the_page_has_an_example_of_every_kind():
    assert {kind for kind, _, _ in EXAMPLES} == set(IMPORTERS) - {"auto"}


@pytest.mark.parametrize(("kind", "form", "example"), EXAMPLES)
@SETTINGS
@given(data=st.data())
def test_foreign_files(tmp_path: Path, kind: str, form: str, example: str, data: st.DataObject) -> None:
    """The rounds that are read are sound: they can be written, none is doubled or accepts more than it has."""
    ways = {
        "jsonl": lambda: file_of([json.loads(line) for line in example.splitlines()]),
        "json": lambda: files_of(json.loads(example)),
        "text": lambda: torn(example.encode()),
    }
    content = data.draw(ways[form]())
    path = tmp_path / "file.jsonl"
    packed = data.draw(st.sampled_from([0, 0, 0, 30, None]))  # so many bytes of it; 0: as it is
    path.write_bytes(content if packed == 0 else gzip.compress(content)[:packed])
    gamma, bonus = data.draw(st.sampled_from([None, 2, 5])), data.draw(st.sampled_from([None, True, False]))
    choices = ImportChoices(gamma, bonus, data.draw(st.sampled_from([None, "acc_eagle"])), data.draw(st.booleans()))
    for name in (kind, "auto"):
        read: list[Imported] = []
        assert answered(lambda name=name, read=read: read.extend(IMPORTERS[name](path, choices))) or read
        for source in read:
            json.dumps([source.name, *source.notes, *source.texts["prompt"]], ensure_ascii=False).encode()
            assert source.texts["rounds"].sum() > 0 and not source.texts.duplicated(["prompt", "repeat"]).any()
            assert (source.rounds["accepted"] <= source.rounds["offered"]).all()
    if kind == "spec_bench":
        answered(lambda: spec_bench_times(path, choices.skip_bad))
    answered(lambda: read_streams(path, 10_000, key="target.path", lengths="acc_eagle", skip_bad=choices.skip_bad))


TREE = {"parents": [-1, -1, 0, 0, 1, 2], "ranks": [0, 1, 0, 1, 0, 0]}


@SETTINGS
@given(content=st.one_of(files_of(TREE), torn(yaml.safe_dump(TREE).encode())))
def test_tree_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tree.yaml"
    path.write_bytes(content)
    answered(lambda: load_tree(path))


COST = yaml.safe_load(Path(config_dir(), "cost", "h100_llama31_8b.yaml").read_text())


@SETTINGS
@given(content=st.one_of(files_of(COST), torn(yaml.safe_dump(COST).encode())))
def test_cost_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cost.yaml"
    path.write_bytes(content)
    answered(lambda: load_cost(str(path)))

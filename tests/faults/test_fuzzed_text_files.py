"""Files of lines, trees and costs that are spoiled at random: each is read, or refused in one sentence with code 2."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.answers import answered, files_of, lines_of, spoiled, torn
from specdec.analysis.read.foreign.spec_bench import spec_bench_times
from specdec.analysis.read.imported import ImportChoices
from specdec.analysis.read.importers import IMPORTERS
from specdec.config import config_dir
from specdec.cost_model import load_cost
from specdec.prompts import load_prompts, read_prompts
from specdec.structures.tree import load_tree
from specdec.text.streams import read_streams

pytestmark = pytest.mark.slow  # many examples of bad input


SETTINGS = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])

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


def choice(**more: Any) -> dict[str, Any]:
    return {"index": 0, "turns": ["a"], "new_tokens": [6], "wall_time": [0.5], **more}


RUN = {"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4}
METRICS = {"latency": 2.0, "output_throughput": 100.0, "accept_length": 2.0, "num_questions": 80}
FOREIGN: dict[str, list[Any]] = {
    "accepted_lengths": [
        {"accepted": [2, 0, 1], "id": "a", "category": "c"},
        {"accept_lengths": [3, 1], "prompt_token_ids": [1, 2, 3]},
        [1, 2],
    ],
    "positions": [
        {"id": "a", "prompt_token_ids": [1], "acc_x": {"acc_len": [2, 1, 1]}, "generated_token_ids": [1, 2, 3]},
        {"id": "a", "acc_x": {"acc_len": [3, 2, 2]}, "finish": "end_token"},
    ],
    "vllm": [
        {"request_id": "r", "metrics": {"per_step_accepted": [2, 0, 1], "per_step_drafted": [3, 3, 1]}},
        {"acceptance_histogram": [4, 3, 2, 1], "num_draft_tokens": 30, "num_spec_tokens": 3},
        {"num_drafts": 10, "num_draft_tokens": 30, "num_accepted_tokens": 10, "num_accepted_tokens_per_pos": [6, 3, 1]},
    ],
    "spec_bench": [
        {"question_id": 1, "category": "x", "choices": [choice(accept_lengths=[3, 1, 2], decoding_steps=[3])]},
        {"question_id": 2, "choices": [choice(accept_lengths=[5, 1], decoding_steps=[2])]},
    ],
    "eagle": [
        {"question_id": 1, "choices": [choice(idxs=[3])]},
        {"question_id": 2, "choices": [choice(idxs=[3], alpha=[3, 1], alpha_num=[4, 3])]},
    ],
    "specforge": [{"model": None, "gsm8k": [{**RUN, "metrics": [METRICS]}, {**RUN, "steps": 0, "metrics": [METRICS]}]}],
}
PAGE = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
"""


@pytest.mark.parametrize("name", FOREIGN)
@SETTINGS
@given(data=st.data())
def test_foreign_lines(tmp_path: Path, name: str, data: st.DataObject) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(data.draw(file_of(FOREIGN[name])))
    gamma, bonus = data.draw(st.sampled_from([None, 2, 5])), data.draw(st.sampled_from([None, True, False]))
    choices = ImportChoices(gamma, bonus, data.draw(st.sampled_from([None, "acc_x"])), data.draw(st.booleans()))
    answered(lambda: IMPORTERS["accepted_lengths" if name == "positions" else name](path, choices))
    answered(lambda: IMPORTERS["auto"](path, choices))
    if name == "spec_bench":
        answered(lambda: spec_bench_times(path, choices.skip_bad))


WORDS = ("NaN", "+Inf", "-1", "1e308", "1e400", "0.5", "x", "{", '"', "\\", " ", "\n")


@SETTINGS
@given(
    at=st.lists(st.tuples(st.integers(0, len(PAGE)), st.sampled_from(WORDS)), max_size=4), content=torn(PAGE.encode())
)
def test_pages_of_counters(tmp_path: Path, at: list[tuple[int, str]], content: bytes) -> None:
    text = PAGE
    for place, word in at:
        text = text[:place] + word + text[place + len(word) :]
    for each in (text.encode(), content):
        (tmp_path / "page.txt").write_bytes(each)
        answered(lambda: IMPORTERS["vllm_prometheus"](tmp_path / "page.txt", ImportChoices(2)))


TREE = {"parents": [-1, -1, 0, 0, 1, 2], "ranks": [0, 1, 0, 1, 0, 0]}


@SETTINGS
@given(content=st.one_of(files_of(TREE), torn(yaml.safe_dump(TREE).encode())))
def test_tree_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tree.yaml"
    path.write_bytes(content)
    answered(lambda: load_tree(path))


COSTS = Path(config_dir()) / "cost"
COST = yaml.safe_load(sorted(COSTS.glob("*.yaml"))[0].read_text())


@SETTINGS
@given(content=st.one_of(files_of(COST), torn(yaml.safe_dump(COST).encode())))
def test_cost_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cost.yaml"
    path.write_bytes(content)
    answered(lambda: load_cost(str(path), COSTS))

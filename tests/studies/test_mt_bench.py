"""Answers for FastChat's judge: the files read as FastChat reads them, and what each second turn was asked after."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from fixtures.plain_laws import plain_greedy

from specdec.errors import UsageError
from specdec.session.arm import Arm
from specdec.training.data.tokenized_corpus import train_tokenizer

QUESTIONS = [
    {"question_id": 12, "category": "coding", "turns": ["Sort a list.", "Now sort it twice."], "reference": ["a", "b"]},
    {"question_id": 3, "category": "writing", "turns": ["Write a line.", "And a second line."]},
    {"question_id": 7, "category": "riddles", "turns": ["What is it?"]},
    {"question_id": 5, "category": "writing", "turns": ["Write a list.", "sort " * 400]},
    {"question_id": 6, "category": "writing", "turns": ["list " * 400, "Write."]},
]
TEMPLATE = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}<a>"
TOKENS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_llama) -> Path:
    """A random float64 Llama with a tokenizer of bytes and a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "some-model-v1.5"
    tokenizer = train_tokenizer([json.dumps(QUESTIONS)], 262, 256)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    tiny_llama(len(tokenizer), context=256).save_pretrained(folder)
    return folder


@pytest.fixture
def on_model(study, model, tmp_path):
    """The study on that model with a look-up and Medusa's rule; questions as FastChat's file has them."""
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))

    def run(*overrides, **parts):
        target = ("target=causal", f"target.model={model}", "target.dtype=float64", "target.compile=false")
        prompts = ("prompts=mt_bench", f"prompts.path={path}", "prompts.limit=null")
        mine = ("drafter=ngram", "structure=chain", "structure.gamma=2", f"measurement.max_new_tokens={TOKENS}")
        return study("mt_bench", *target, *prompts, *mine, *overrides, **parts)

    return run


@pytest.fixture
def decoded(monkeypatch) -> dict[bool, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Prompts and answers in tokens as they are decoded, by whether a drafter drafts."""
    seen, decode = defaultdict(list), Arm.decode

    def kept(self, request, clock):
        output = decode(self, request, clock)
        seen[self.method == "ngram"].append((output.prompt, output.tokens))
        return output

    monkeypatch.setattr(Arm, "decode", kept)
    return seen


def as_fastchat_reads(folder: Path) -> dict[str, dict[int, dict]]:
    """Answers by file name and question id, as `load_model_answers` of fastchat/llm_judge/common.py has them."""
    found = {}
    for file in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
        found[file.name[: -len(".jsonl")]] = {line["question_id"]: line for line in lines}
    return found


def test_the_files_are_what_the_judge_reads(on_model, decoded, tmp_path, model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)

    def read(tokens):
        return tokenizer.decode(list(tokens), skip_special_tokens=True)

    def greedy_text(prompt):
        return read(plain_greedy(network, tokenizer(prompt, add_special_tokens=False)["input_ids"], TOKENS)).strip()

    found, _ = on_model()
    folder = tmp_path / "out/data/mt_bench"
    asked = [json.loads(line) for line in (folder / "question.jsonl").read_text(encoding="ascii").splitlines()]
    assert asked == QUESTIONS[:4]  # the last one is too long for the model, and no answer to it is demanded
    answers = as_fastchat_reads(folder / "model_answer")
    assert set(answers) == {"some-model-v1.5-ngram-typical", "some-model-v1.5-plain"}
    for name, by_question in answers.items():
        assert list(by_question) == [3, 5, 7, 12]
        for question in asked:
            answer = by_question[question["question_id"]]
            assert set(answer) == {"question_id", "answer_id", "model_id", "choices", "tstamp"}
            assert answer["model_id"] == name and answer["tstamp"] > 1e9
            (choice,) = answer["choices"]
            assert choice["index"] == 0 and len(choice["turns"]) == len(question["turns"])
            assert all(isinstance(turn, str) and turn == turn.strip() for turn in choice["turns"])
        assert by_question[5]["choices"][0]["turns"][1] == "ERROR"  # its second turn does not fit
    ids = [answer["answer_id"] for by_question in answers.values() for answer in by_question.values()]
    assert len(set(ids)) == 8
    # At temperature 0 both write the model's own greedy text, whose second turn reads the first.
    first = greedy_text("<u>Sort a list.<a>")
    second = greedy_text(f"<u>Sort a list.<a>{first}<u>Now sort it twice.<a>")
    for by_question in answers.values():
        assert by_question[12]["choices"][0]["turns"] == [first, second]
    # Elsewhere texts are sampled and part: the second turn repeats the answer of the method that is asked.
    drafted, plain = (by_question[3]["choices"][0]["turns"] for by_question in answers.values())
    assert drafted[0] != plain[0]
    prompts = {side: [read(prompt) for prompt, _ in pairs] for side, pairs in decoded.items()}
    for side, turns in ((True, drafted), (False, plain)):
        assert f"<u>Write a line.<a>{turns[0]}<u>And a second line.<a>" in prompts[side]
    words = " ".join(found.sections[0].text)
    assert "4 questions of mt_bench (6 turns) answered by ngram under typical" in words
    assert "--model-list some-model-v1.5-ngram-typical some-model-v1.5-plain" in words
    assert "2 turns did not fit" in words and "too_long: 1 writing" in words and "no chat template" not in words


@pytest.mark.slow
def test_temperatures_are_fastchats_and_one_may_be_forced(on_model, tmp_path):
    _, tables = on_model("study.choices=2", "study.model_id=mine", "prompts.chat=never")
    outputs = tables["outputs"]
    used = outputs.groupby("category")["temperature"].unique().map(list).to_dict()
    assert used == {"coding": [0.0], "writing": [0.7], "riddles": [0.7]}
    assert tables["answers"].set_index("method")["model_id"].to_dict() == {"ngram": "mine", "plain": "mine-plain"}
    assert outputs.groupby(["method", "prompt", "turn"])["choice"].nunique().eq(2).all()
    for answer in as_fastchat_reads(tmp_path / "out/data/mt_bench/model_answer")["mine"].values():
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    forced, tables = on_model("study.force_temperature=0.0", "prompts.chat=never", "verifier=greedy")
    assert (tables["outputs"]["temperature"] == 0).all()
    assert "no chat template" in " ".join(forced.sections[0].text)


@pytest.mark.parametrize(
    ("overrides", "parts", "words"),
    [
        (("prompts.id_field=null",), {}, "prompts=mt_bench"),
        ((), {"drafter": "none"}, "drafter=none"),
        ((), {"verifier": "greedy"}, "verifier=greedy"),
    ],
)
def test_mistakes_are_one_sentence_before_decoding(on_model, decoded, overrides, parts, words):
    with pytest.raises(UsageError, match=words):
        on_model(*overrides, **parts)
    assert not decoded

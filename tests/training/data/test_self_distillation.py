"""Text that the target writes itself: its own law, resumable, the same for the same seed. Questions that a chat model
asks itself: which of them, and of its answers, become text to train on.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specdec.errors import UsageError
from specdec.targets.causal import Causal
from specdec.text.document_store import Encoded, write_documents
from specdec.text.streams import read_streams
from specdec.training.data.head_data import open_sequences
from specdec.training.data.self_distillation import SelfDistillation

GENERATED = {
    "when": "always", "texts": 10, "heldout_texts": 4, "prefix_tokens": 5, "new_tokens": 11, "temperature": 0.0,
    "batch": 4,
}  # fmt: skip
GREEDY, SAMPLED = GENERATED, GENERATED | {"temperature": 1.0}


def streams(folder: Path) -> dict[str, list]:
    return {path.name: read_streams(path).streams for path in sorted(folder.rglob("*.jsonl"))}


def documents(sequences, part: str) -> list[Encoded]:
    store = sequences._parts[part].documents
    return [store[i] for i in range(len(store))]


def test_greedy_text_is_the_models_own(head_data, text_target, text_file, tmp_path):
    config = head_data(generated=GREEDY, packed=False, batch=2)
    sequences = open_sequences(config, text_target, seed=3)
    lines = text_file.read_text().splitlines()
    parts = {"train": [x for i, x in enumerate(lines, 1) if i % 10], "heldout": lines[9::10]}
    for part, count in (("train", 10), ("heldout", 4)):
        found = documents(sequences, part)
        assert len(found) == count
        for document in found:
            prompt = document.tokens[~document.scored]
            assert len(prompt) == 5 and not document.scored[:5].any() and document.scored[5:].all()
            assert any(text_target.tokenizer.decode(prompt) in line for line in parts[part])  # of its own part
            tokens = torch.from_numpy(document.tokens.astype(np.int64))[None]
            logits = text_target.model(tokens).logits[0]
            assert logits[4:-1].argmax(-1).tolist() == tokens[0, 5:].tolist()
    assert sequences.manifest["generated"] == GREEDY
    for stream in sum(streams(tmp_path / "kept").values(), []):
        assert stream.ended == (stream.generated[-1] in text_target.end_tokens)


@pytest.mark.parametrize("of", ["a text", "prompts"])
def test_a_chat_model_answers_what_users_ask(
    of, head_data, text_target, text_file, tmp_path, monkeypatch, group_values
):
    """Its answers alone are scored, behind the user's words as the tokenizer's own template has them. Prompts that are
    written to together differ in length: padding changes nothing.
    """
    chat, lines = {"sequence_length": 64, "packed": False, "batch": 2}, text_file.read_text().splitlines()
    own = GREEDY | {"when": "chat_model"}
    as_it_is = open_sequences(head_data(**chat, generated=None), text_target, seed=3)
    assert open_sequences(head_data(**chat, generated=own), text_target, seed=3).fingerprint == as_it_is.fingerprint

    monkeypatch.setattr(text_target.tokenizer, "chat_template", "if {{ messages[0]['content'] }} else", raising=False)
    source = None
    if of == "prompts":
        path = text_file.with_suffix(".jsonl")
        path.write_text("".join(f'{{"prompt": "{line}"}}\n' for line in lines))
        source = group_values("prompts", "jsonl", path=str(path))
    sequences = open_sequences(head_data(**chat, source=source, generated=own | {"texts": 20}), text_target, seed=3)
    asked: dict[str, set[str]] = {"train": set(), "heldout": set()}
    sizes = set()
    for part, count in (("train", 20), ("heldout", 4)):
        for document in documents(sequences, part):
            sizes.add(size := int((~document.scored).sum()))
            assert not document.scored[:size].any()
            prompt = text_target.tokenizer.decode(document.tokens[:size])
            question = prompt.removeprefix("if ").removesuffix(" else")
            assert question != prompt and any(line.startswith(question) for line in lines)
            assert question in lines if of == "prompts" else len(text_target.tokenizer(question)["input_ids"]) <= 5
            asked[part].add(question)
            tokens = torch.from_numpy(document.tokens.astype(np.int64))[None]
            assert text_target.model(tokens).logits[0, size - 1 : -1].argmax(-1).tolist() == tokens[0, size:].tolist()
        assert len(documents(sequences, part)) == count
    assert not asked["train"] & asked["heldout"] and (len(sizes) > 1 or of == "a text")


def test_prompts_that_leave_no_room_for_an_answer_are_left_out(head_data, text_target, tmp_path, group_values, capsys):
    path, long = tmp_path / "asked.jsonl", '{"prompt": "%s"}\n' % ("while True " * 9)
    path.write_text('{"prompt": "if"}\n' * 11 + long)
    source = group_values("prompts", "jsonl", path=str(path))
    keys = {"source": source, "generated": GREEDY | {"prefix_tokens": 1}, "batch": 1, "packed": False}
    sequences = open_sequences(head_data(**keys), text_target, seed=0)
    assert "1 of 12 prompts are left out: more than 5 tokens, or none." in capsys.readouterr().out
    assert [len(documents(sequences, part)) for part in ("train", "heldout")] == [10, 1]
    path.write_text(long * 3)
    for words, changes in (
        ("None of the 3 prompts of data.source can be used: one may have 5 tokens, data.sequence_length=16 less", {}),
        ("data.source.path=nowhere does not exist", {"source": source | {"path": "nowhere"}}),
        ("head_data@data=prompts has the target answer them", {"generated": None}),
    ):
        with pytest.raises(UsageError, match=words):
            open_sequences(head_data(**keys | changes), text_target, seed=0)


def test_the_same_seed_writes_the_same_and_an_interrupted_run_goes_on(head_data, text_target, tmp_path, monkeypatch):
    def run(folder: str, seed: int) -> dict[str, list]:
        open_sequences(head_data(generated=SAMPLED, folder=str(tmp_path / folder)), text_target, seed)
        return streams(tmp_path / folder)

    state = torch.get_rng_state()
    whole = run("whole", 3)
    assert torch.equal(state, torch.get_rng_state())
    assert list(whole) == ["heldout_00000.jsonl", "train_00000.jsonl", "train_00001.jsonl", "train_00002.jsonl"]
    continued, calls = SelfDistillation._continued, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return continued(*args)

    monkeypatch.setattr(SelfDistillation, "_continued", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("interrupted", 3)
    assert len(streams(tmp_path / "interrupted")) == 2
    assert run("interrupted", 3) == whole and len(calls) == 5  # two before, two after, and the one that was cut
    assert run("other", 4) != whole
    calls.clear()
    run("whole", 3)
    assert not calls


def test_samples_follow_the_models_law(tiny_llama, sampling, tiny_corpus, tmp_path, head_data):
    """Second tokens after one prompt against the exact law; at 5 sigma a false alarm has chance < 1e-5."""
    target = Causal(tiny_llama(7), sampling(), tiny_corpus.tokenizer)
    one = Encoded(np.array([2, 5, 3]), np.ones(3, bool))
    store = write_documents(tmp_path / "store", [("train", one), ("heldout", one)], {})
    config = head_data(generated=SAMPLED | {
        "texts": 2000, "heldout_texts": 1, "prefix_tokens": 3, "new_tokens": 2, "temperature": 0.7, "batch": 1000,
    }).generated  # fmt: skip
    writer = SelfDistillation(config, target, 1, 16)
    written = writer.documents(writer.beginnings(store, turns=False), {}, tmp_path / "written")
    counts = Counter(int(written.train[i].tokens[4]) for i in range(2000))
    law = torch.zeros(7, dtype=torch.float64)
    first = (target.model(torch.tensor([[2, 5, 3]])).logits[0, -1] / 0.7).softmax(-1)
    for token in range(7):
        law += first[token] * (target.model(torch.tensor([[2, 5, 3, token]])).logits[0, -1] / 0.7).softmax(-1)
    for token in range(7):
        p = float(law[token])
        assert abs(counts[token] / 2000 - p) < 5 * (p * (1 - p) / 2000) ** 0.5 + 1e-3


def test_conversations_go_on_where_an_answer_begins(head_data, text_target, tmp_path):
    scored = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], bool)
    document = Encoded(np.arange(10, 21), scored)
    store = write_documents(tmp_path / "store", [("train", document)] * 40 + [("heldout", document)], {})
    config = head_data(generated=GREEDY | {"texts": 50, "new_tokens": 11}).generated
    lengths = Counter(map(len, SelfDistillation(config, text_target, 1, 19).beginnings(store, turns=True)["train"]))
    assert set(lengths) == {2, 7}  # the third answer begins too late for 19 - 11 tokens
    assert lengths.total() == 40, "each conversation once"


def test_what_cannot_be_written_is_refused(head_data, text_target, text_file, table):
    for changes, says in (
        ({"prefix_tokens": 10}, "prefix_tokens=10 and new_tokens=11 are more than data.sequence_length=16 together"),
        ({"texts": 0}, "generated.texts=0"),
    ):
        with pytest.raises(UsageError, match=says):
            open_sequences(head_data(generated=GREEDY | changes), text_target, seed=3)
    text_file.write_text("if\n" * 40)
    with pytest.raises(UsageError, match="No training document of data.source is longer than data.generated.prefix"):
        open_sequences(head_data(generated=GREEDY), text_target, seed=3)
    with pytest.raises(UsageError, match="needs a target that is a model"):
        SelfDistillation(head_data(generated=GREEDY).generated, table([[0.5, 0.5], [0.5, 0.5]]), 1, 64)


def test_a_full_disk_is_noticed_before_the_target_writes(head_data, text_target, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    monkeypatch.setattr(text_target.model, "generate", None)
    needed = (10 + 4) * 16 * 16 * 8  # sequences, tokens, width, bytes
    with pytest.raises(UsageError, match=f"needs {needed:,} bytes for hidden states, and 100 are free"):
        open_sequences(head_data(generated=GREEDY, states={"cache": "disk"}), text_target, seed=3)


FIRST = "def one ( x ) : return a sum of three even numbers that somebody gives in a list"
PUBLISHED = "if two trains leave at noon and one is as fast as the other who is first to pass"
GOOD = {
    FIRST: "return x + 1",
    "why is it raining": "for no reason",
    "what is a class": PUBLISHED,
    "who is it": "not " * 40,
}
LEFT_OUT = {
    f"so , {FIRST.upper()} ?": "repeated",  # thirteen words in a row are those of an earlier question
    "True or " * 20: "in a loop",
    f"# {PUBLISHED.removeprefix('if two ')}": "of data.source.keep_out",
    "": "empty",
    "while it goes on and ...": "without an end",
}


@pytest.fixture
def chat_data(head_data, text_target, tmp_path, group_values, monkeypatch):
    """`chat_data(keep_out=[FILE])`: sequences of a chat model that asks and answers `GOOD`, and asks `LEFT_OUT`."""
    monkeypatch.setattr(text_target.tokenizer, "chat_template", "if {{ messages[0]['content'] }} else", raising=False)

    def make(**changes):
        values = group_values("head_data", "self_synthesis")
        usual, small = group_values("head_data", "python_sources")["generated"], {"texts": 7, "heldout_texts": 2}
        generated = usual | values["generated"] | small | {"new_tokens": 60, "batch": 4}
        own = {"generated": generated, "sequence_length": 200, "packed": False, "batch": 1}
        return open_sequences(head_data(source=values["source"] | changes, **own), text_target, seed=3)

    return make


@pytest.fixture
def scripted(text_target, monkeypatch):
    """The prompts that the target was given, whose continuations are those of `GOOD` and `LEFT_OUT`."""
    tokenizer, seen, questions = text_target.tokenizer, [], iter([*GOOD, *LEFT_OUT])
    answers = {f"if {question} else": answer for question, answer in (GOOD | dict.fromkeys(LEFT_OUT, "yes")).items()}

    def continued(self, prompts, seed, wrote):
        for prompt in map(tokenizer.decode, prompts):
            seen.append(prompt)
            text = next(questions) if prompt == "if " else answers[prompt]
            end = [] if text.endswith("...") else [tokenizer.eos_token_id]
            yield tokenizer(text)["input_ids"] + end

    monkeypatch.setattr(SelfDistillation, "_continued", continued)
    return seen


def answers(sequences, tokenizer):
    """The answer of each document by its prompt."""
    each = documents(sequences, "train") + documents(sequences, "heldout")
    return {tokenizer.decode(d.tokens[~d.scored]): tokenizer.decode(d.tokens[d.scored][:-1]) for d in each}


def test_what_is_new_and_no_loop_is_answered_and_learned_from(chat_data, scripted, text_target, tmp_path):
    """The file holds a text of the answer that is left out, deep in a record, and one that only a question has."""
    kept_out = tmp_path / "prompts.jsonl"
    kept_out.write_text(json.dumps({"id": 1, "turns": [{"content": PUBLISHED}]}) + "\nplain text\n")
    sequences = chat_data(keep_out=[str(kept_out)])
    assert scripted[:9] == ["if "] * 9 and sorted(scripted[9:]) == sorted(f"if {question} else" for question in GOOD)
    kept = {question: answer for question, answer in GOOD.items() if answer not in (PUBLISHED, "not " * 40)}
    assert answers(sequences, text_target.tokenizer) == {f"if {q} else": answer for q, answer in kept.items()}
    left_out = {f"questions {why}": 1 for why in LEFT_OUT.values()}
    assert sequences.manifest["left_out"] == left_out | {"answers in a loop": 1, "answers of data.source.keep_out": 1}
    assert list(sequences.manifest["of"].values()) == ["prompts.jsonl"]  # and no folder of this machine
    assert str(tmp_path) not in json.dumps(sequences.manifest)


def test_a_killed_run_asks_no_question_twice(chat_data, scripted, monkeypatch):
    whole = SelfDistillation._continued

    def killed(self, prompts, seed, wrote):
        if len(scripted) >= 9:
            raise KeyboardInterrupt
        return whole(self, prompts, seed, wrote)

    monkeypatch.setattr(SelfDistillation, "_continued", killed)
    with pytest.raises(KeyboardInterrupt):
        chat_data()
    monkeypatch.setattr(SelfDistillation, "_continued", whole)
    sequences = chat_data()
    assert scripted.count("if ") == 9 and sequences.manifest["left_out"]["questions repeated"] == 1


def test_a_model_asks_the_same_for_the_same_seed(chat_data, text_target, tmp_path, monkeypatch):
    """Everything it writes ends: a random model would not stop by itself."""
    ends = frozenset(range(0, len(text_target.tokenizer), 3))
    monkeypatch.setattr(text_target, "end_tokens", ends)
    first = chat_data()
    shutil.rmtree(tmp_path / "kept")
    again = chat_data()
    assert np.array_equal(first.batch("train", np.arange(1)).tokens, again.batch("train", np.arange(1)).tokens)


def test_bad_input_is_one_sentence(chat_data, text_target, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"^Prompt file data\.source\.keep_out=.*none\.jsonl does not exist\.$"):
        chat_data(keep_out=[str(tmp_path / "none.jsonl")])
    monkeypatch.setattr(text_target.tokenizer, "chat_template", None)
    with pytest.raises(UsageError, match=r"self_synthesis needs a tokenizer with a chat template"):
        chat_data()

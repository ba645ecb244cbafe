"""Questions that a chat model asks itself: which of them, and of its answers, become text to train on."""

import json
import shutil

import numpy as np
import pytest

from specdec.errors import UsageError
from specdec.training.data.head_data import open_sequences
from specdec.training.data.self_distillation import SelfDistillation

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


def documents(sequences, tokenizer):
    """Prompt and answer of each document."""
    stores = [part.documents for part in sequences._parts.values()]
    each = [store[number] for store in stores for number in range(len(store))]
    return {tokenizer.decode(d.tokens[~d.scored]): tokenizer.decode(d.tokens[d.scored][:-1]) for d in each}


def test_what_is_new_and_no_loop_is_answered_and_learned_from(chat_data, scripted, text_target, tmp_path):
    """The file holds a text of the answer that is left out, deep in a record, and one that only a question has."""
    kept_out = tmp_path / "prompts.jsonl"
    kept_out.write_text(json.dumps({"id": 1, "turns": [{"content": PUBLISHED}]}) + "\nplain text\n")
    sequences = chat_data(keep_out=[str(kept_out)])
    assert scripted[:9] == ["if "] * 9 and sorted(scripted[9:]) == sorted(f"if {question} else" for question in GOOD)
    kept = {question: answer for question, answer in GOOD.items() if answer not in (PUBLISHED, "not " * 40)}
    assert documents(sequences, text_target.tokenizer) == {f"if {q} else": answer for q, answer in kept.items()}
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

"""Sets in files: the published ones with their counts, chat templates, turns, templates; for T5 its prefixes, records
in records, and articles that are cut.
"""

import json
from collections import Counter

import pytest

CATEGORIES = {
    "mt_bench": ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"],
    "spec_bench": ["translation", "summarization", "qa", "math_reasoning", "rag"],
}


COUNTS = {"spec_bench": 480, "mt_bench": 80, "humaneval": 164, "gsm8k": 1319, "wmt22": 2037}


@pytest.mark.parametrize("name, count", COUNTS.items())
def test_published_sets_are_read_whole(load, name, count):
    loaded = load(name, real=True)
    assert len(loaded.prompts) == count and loaded.skipped == {} and loaded.name == name
    assert len({prompt.id for prompt in loaded.prompts}) == count
    assert all(prompt.id.startswith(f"{name}/") for prompt in loaded.prompts)
    assert all(len(prompt.tokens) == 1 + len(prompt.text) for prompt in loaded.prompts)  # one begin token
    assert name in loaded.provenance["path"] and len(loaded.provenance["sha256"]) == 64


def test_reference_answers_come_with_the_first_turn(load, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"question": "1+1?", "answer": "two\\n#### 2"}\n{"question": "2+2?"}\n{"question": "3?", "answer": 3}\n'
    )
    loaded = load("gsm8k", path=str(path))
    assert [prompt.reference for prompt in loaded.prompts] == ["two\n#### 2", None, "3"]
    assert all(prompt.reference is None for prompt in load("jsonl", path=str(path), field="question",
                                                           template="{question}").prompts)  # fmt: skip
    turns = tmp_path / "turns.jsonl"
    turns.write_text('{"text": ["Hi", "And?"], "good": "Ho"}\n')
    chat = load("jsonl", path=str(turns), reference_field="good")
    assert chat.prompts[0].reference == "Ho" and chat.follow_up(chat.prompts[0], [72, 111]).reference is None


def test_what_published_sets_hold(load):
    references = [prompt.reference for prompt in load("gsm8k", real=True).prompts]
    assert all("\n#### " in reference for reference in references) and references[0].endswith("#### 18")
    counts = Counter(prompt.category for prompt in load("spec_bench", real=True).prompts)
    assert counts == {name: 80 for name in CATEGORIES["spec_bench"]} | {n: 10 for n in CATEGORIES["mt_bench"]}
    prompts_of = load("mt_bench", real=True).prompts
    assert Counter(prompt.category for prompt in prompts_of) == dict.fromkeys(CATEGORIES["mt_bench"], 10)
    assert all(len(prompt.follow_ups) == 1 for prompt in prompts_of) and prompts_of[0].id == "mt_bench/81"


def test_templates_of_published_sets(load):
    gsm8k = load("gsm8k", real=True, limit=1).prompts[0].text
    assert gsm8k.startswith("Question: Janet’s ducks lay 16 eggs") and gsm8k.endswith("\nAnswer:")
    wmt22 = load("wmt22", real=True, limit=1).prompts[0].text
    assert "into German.\nEnglish: You can come back any time" in wmt22 and wmt22.endswith("24/7\nGerman:")
    humaneval = load("humaneval", real=True, limit=1).prompts[0]
    assert humaneval.id == "humaneval/HumanEval/0" and humaneval.text.endswith('True\n    """')


def test_limit_balances_categories_or_takes_the_first(load):
    balanced = load("mt_bench", real=True, limit=10)
    counts = Counter(prompt.category for prompt in balanced.prompts)
    assert counts == dict.fromkeys(CATEGORIES["mt_bench"], 1) | {"writing": 2, "roleplay": 2}
    more = load("mt_bench", real=True, limit=20)
    assert more.prompts[:10] == balanced.prompts
    first = load("mt_bench", real=True, limit=10, balance=False)
    assert {prompt.category for prompt in first.prompts} == {"writing"}


def test_too_long_prompts_are_counted_by_category_and_not_by_a_limit(load):
    everything = load("spec_bench", real=True)
    room = 1500
    loaded = load("spec_bench", real=True, context=room + 10)
    expected = Counter(p.category for p in everything.prompts if len(p.tokens) > room)
    assert loaded.skipped == {"too_long": expected} and expected["rag"] > 0 and expected["summarization"] > 0
    assert len(loaded.prompts) == 480 - sum(expected.values())
    assert max(len(prompt.tokens) for prompt in loaded.prompts) <= room
    limited = load("spec_bench", real=True, context=room + 10, limit=13)
    assert len(limited.prompts) == 13 and len({prompt.category for prompt in limited.prompts}) >= 12


def test_same_set_twice_is_the_same_and_the_hash_follows_the_content(load, characters):
    first, second = load("mt_bench", real=True), load("mt_bench", real=True)
    assert first == second
    assert load("mt_bench", real=True, limit=5).content_hash != first.content_hash
    chat = load("mt_bench", real=True, tokenizer=characters("yes"))
    assert chat.content_hash == first.content_hash  # of the content, not of its rendering
    assert chat.prompts[0].text != first.prompts[0].text


def test_chat_template_brings_its_own_special_tokens(load, characters):
    loaded = load("mt_bench", real=True, tokenizer=characters("yes"), limit=1)
    prompt = loaded.prompts[0]
    assert prompt.text.startswith("\x00<u>Compose") and prompt.text.endswith("<a>")
    assert prompt.tokens.count(0) == 1
    assert loaded.provenance["chat_template"] == "applied"
    never = load("mt_bench", real=True, tokenizer=characters("yes"), limit=1, chat="never").prompts[0]
    assert never.text.startswith("Compose") and never.tokens[0] == 0


def test_later_turns_follow_the_answers(load, characters, tmp_path):
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps({"question_id": 7, "category": "a", "turns": ["one", "two", "three"]}))
    answer = [ord(character) for character in " yes"]

    plain = load("mt_bench", path=str(path))
    second = plain.follow_up(plain.prompts[0], answer)
    assert (second.id, second.text, second.follow_ups) == ("mt_bench/7/turn2", "one yes\n\ntwo", ("three",))
    third = plain.follow_up(second, answer)
    assert (third.id, third.text) == ("mt_bench/7/turn3", "one yes\n\ntwo yes\n\nthree")
    assert third.turns == ("one", " yes", "two", " yes", "three")
    assert plain.follow_up(third, answer) is None

    chat = load("mt_bench", path=str(path), tokenizer=characters("yes"))
    assert chat.follow_up(chat.prompts[0], answer).text == "\x00<u>one<a>yes<u>two<a>"

    short = load("mt_bench", path=str(path), context=20)
    assert short.follow_up(short.prompts[0], answer * 5) is None


def test_jsonl_fields_and_templates(load, tmp_path):
    rows = [
        {"text": "a {b}", "kind": "x", "meta": {"lang": "de"}},
        {"text": " ", "kind": "y", "meta": {"lang": "fr"}},
        {"text": 12, "kind": "", "meta": {"lang": "it"}},
    ]
    content = "\ufeff" + "\r\n".join(json.dumps(row) for row in rows) + "\r\n\r\n"
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content.encode())
    keys = {"path": str(path), "template": "{{{meta.lang}}} {text}: ", "category_field": "kind"}
    loaded = load("jsonl", **keys)
    assert [(prompt.id, prompt.category, prompt.text) for prompt in loaded.prompts] == [
        ("jsonl/1", "x", "{de} a {b}:"),
        ("jsonl/3", "jsonl", "{it} 12:"),
    ]
    assert loaded.skipped == {"empty": {"y": 1}}
    assert load("jsonl", strip_end=False, **keys).prompts[0].text == "{de} a {b}: "


MESSAGES = [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V")]


@pytest.mark.parametrize(
    "record, turns",
    [
        ({"prompt": "P", "text": "T"}, ["P"]),
        ({"question": "Q", "answer": "A"}, ["Q"]),
        ({"instruction": "I", "input": "N", "output": "O"}, ["I\n\nN"]),
        ({"instruction": "I", "input": ""}, ["I"]),
        ({"turns": ["1", "2"], "prompt": "P"}, ["1", "2"]),
        ({"messages": [{"role": role, "content": text} for role, text in MESSAGES]}, ["S\n\nU", "V"]),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "U"}]}]}, ["U"]),
        ({"conversations": [{"from": "human", "value": "H"}, {"from": "gpt", "value": "G"}]}, ["H"]),
        ({"text": "T", "prompt": None}, ["T"]),
    ],
)
def test_json_lines_are_read_by_their_usual_fields(load, tmp_path, record, turns):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(record) + "\n")
    (prompt,) = load("jsonl", path=str(path)).prompts
    assert [prompt.text, *prompt.follow_ups] == turns


def test_lines_break_at_newlines_only(load, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\u2028still one\n\nthree\n", encoding="utf-8", newline="")
    loaded = load("wmt22", path=str(path), template="{source}")
    assert [(prompt.id, prompt.text) for prompt in loaded.prompts] == [
        ("wmt22/1", "one\u2028still one"),
        ("wmt22/3", "three"),
    ]
    assert loaded.skipped == {"empty": {"wmt22": 1}}


def test_a_real_tokenizer_and_its_chat_template(load):
    from specdec.training.data.tokenized_corpus import train_tokenizer

    tokenizer = train_tokenizer(["def f(x):\n    return x\n"] * 3, 268, 64)
    plain = load("jsonl", tokenizer=tokenizer, path=__file__, format="lines", limit=1).prompts[0]
    assert tokenizer.decode(plain.tokens) == plain.text  # no begin token: this tokenizer adds none
    tokenizer.chat_template = "{{ bos_token }}[{{ messages[0]['role'] }}] {{ messages[0]['content'] }}"
    chat = load("jsonl", tokenizer=tokenizer, path=__file__, format="lines", limit=1).prompts[0]
    assert chat.text == f"<|endoftext|>[user] {plain.text}"
    assert chat.tokens.count(tokenizer.bos_token_id) == 1


ENGLISH = ["Gutach: Increased safety for pedestrians", "They are not even 100 metres apart."]


def test_translation_pairs_as_the_hub_has_them(load, tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [{"translation": {"en": text, "de": "unread"}} for text in ENGLISH]
    path.write_text("\n".join(map(json.dumps, rows)))
    loaded = load("wmt14_en_de", path=str(path), hub_id=None)
    assert [prompt.text for prompt in loaded.prompts] == [f"translate English to German: {text}" for text in ENGLISH]
    assert [prompt.id for prompt in loaded.prompts] == ["wmt14_en_de/1", "wmt14_en_de/2"]


def test_articles_are_cut_at_a_word_and_keep_their_prefix(load, tmp_path):
    path = tmp_path / "articles.jsonl"
    rows = [
        {"article": "one two three four", "highlights": "unread", "id": "a"},
        {"article": "one two", "highlights": "unread", "id": "b"},
        {"article": "onetwothreefour", "highlights": "unread", "id": "c"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))

    def texts(limit):
        loaded = load("cnn_dailymail", path=str(path), hub_id=None, max_characters=limit)
        assert [prompt.id.partition("/")[2] for prompt in loaded.prompts] == ["a", "b", "c"]
        return [prompt.text.removeprefix("summarize: ") for prompt in loaded.prompts]

    assert texts(None) == ["one two three four", "one two", "onetwothreefour"]
    assert texts(12) == ["one two", "one two", "onetwothreef"]
    assert texts(13) == ["one two three", "one two", "onetwothreefo"]  # the word that just fits stays
    assert texts(7) == ["one two", "one two", "onetwot"]

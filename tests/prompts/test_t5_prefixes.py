"""The sets for T5: its prefixes, records inside records, lines, and articles that are cut."""

import json

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


def test_the_article_is_cut_and_not_what_the_template_adds(load, tmp_path):
    path = tmp_path / "articles.jsonl"
    path.write_text(json.dumps({"article": "one two three", "id": "a"}))
    keys = {"path": str(path), "hub_id": None, "max_characters": 5, "template": "Text: {article}\nSummary:"}
    assert load("cnn_dailymail", **keys).prompts[0].text == "Text: one\nSummary:"

"""Accepted lengths as published: which numbers are lengths, and which first entries stand for the prefill."""

import random

import pytest

from specdec.text.lengths import FirstLengths, drafters_of, whole, whole_numbers
from specdec.text.lines import BadLine


def test_whole_numbers():
    assert [whole(value) for value in (3, 3.0, 0, -1)] == [3, 3, 0, -1]
    assert [whole(value) for value in (2.5, True, "3", None, float("inf"), float("nan"), [3])] == [None] * 7
    assert whole_numbers("w", "n", [1, 2.0, 3]) == (1, 2, 3) and whole_numbers("w", "n", []) == ()
    assert whole_numbers("w", "n", (0, 1), least=1, first=0) == (0, 1)


def test_what_is_no_length():
    for value, says in (
        ("12", "n must be a list of whole numbers, found a str"),
        ([1, 0], r"n\[1\] must be a whole number of 1 or more, found 0"),
        ([1, 2.5], r"n\[1\] must be a whole number of 1 or more, found 2.5"),
        ([1, True], r"n\[1\]"),
        ([1, 2**31], r"n\[1\]"),
        ([1, float("nan")], r"n\[1\]"),
    ):
        with pytest.raises(BadLine, match=f"^file:3: {says}"):
            whole_numbers("file:3", "n", value, least=1)


def test_drafters_are_the_keys_with_lengths():
    record = {"id": "a", "acc_x": {"acc_len": [1]}, "acc_y": {"acc_len": None}, "acc_z": {"other": [1]}, "w": [1]}
    assert drafters_of(record) == ["acc_x", "acc_y"]
    assert drafters_of([1]) == drafters_of("acc_len") == []


def firsts(texts, prompts=None):
    made = FirstLengths()
    for place, lengths in enumerate(texts):
        made.add(lengths, None if prompts is None else prompts[place])
    return made


def test_a_zero_and_a_prompts_length_are_placeholders():
    assert firsts([[0, 2, 3], [0, 1]]).are_placeholders
    assert firsts([[57, 2, 3], [12, 1, 1]], prompts=[57, 12]).are_placeholders
    assert firsts([[0, 2], [1, 3]]).are_placeholders
    assert not firsts([[57, 2, 3], [12, 1, 1]], prompts=[57, 13]).are_placeholders
    assert not firsts([[2, 3], [0, 3]]).are_placeholders
    assert not firsts([]).are_placeholders and not firsts([[]]).are_placeholders


def test_ones_are_placeholders_where_chance_would_not_make_them():
    """By the share of ones elsewhere, 60%: 20 texts that all begin with one have a chance of 3.7e-5; 5 have 0.08."""
    dice = random.Random(1)

    def text(first):
        return [first, *dice.choices([1, 2, 3], [6, 3, 1], k=50)]

    assert firsts([text(1) for _ in range(20)]).are_placeholders
    assert not firsts([text(1) for _ in range(5)]).are_placeholders
    assert not firsts([text(1 + (place == 7)) for place in range(20)]).are_placeholders
    assert not firsts([[1, 1, 1] for _ in range(20)]).are_placeholders  # nothing is ever accepted
    note = firsts([text(1) for _ in range(20)]).note("acc_x")
    assert "first entry of acc_x is 1 in every text" in note and "20 texts" in note

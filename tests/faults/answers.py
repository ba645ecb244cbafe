"""The answer to bad input: a value that can be used, or one sentence with exit code 2; and input that is spoiled at
random, from values and files that are right.
"""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from specdec.errors import SpecdecError


def answered(read: Callable[[], Any]) -> str:
    """Call `read`, and return its refusal: one sentence without a traceback, exit code 2; "" where it gives a value."""
    try:
        read()
    except SpecdecError as error:
        sentence = str(error)
        assert error.exit_code == 2, sentence
        assert sentence.strip() and "\n" not in sentence and "Traceback" not in sentence, sentence
        return sentence
    return ""


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([-(2**63), 2**31, 2**63, 2**64, 10**30, 10**400]),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["", " ", "nan", "1e400", "../x", "/etc/passwd", "a\0b", "\ud800", "[red]x", "${x}", "<b>", "pocket"]
    ),
    st.just([]),
    st.just({}),
    st.lists(st.one_of(st.none(), st.integers(-2, 2**70), st.floats(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.sampled_from(["name", "_target_", "", "a", "path"]), st.integers(), max_size=2),
)
"""Values of every type that JSON and YAML know, the likely traps among them."""


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the path of every value inside `value`, itself included."""
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        found += _places(each, (*at, key))
    return found


@st.composite
def spoiled(draw: st.DrawFn, value: Any, most: int = 2) -> Any:
    """Return a copy of a value with one or more of its parts replaced, dropped or added."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, most))):
        place = draw(st.sampled_from(_places(value)))
        if not place:
            if draw(st.integers(0, 9)) == 0:
                return draw(ODD)
            continue
        owner = value
        for key in place[:-1]:
            owner = owner[key]
        kind = draw(st.sampled_from(("replace", "replace", "drop", "add")))
        if kind == "drop":
            del owner[place[-1]]
        elif kind == "add" and isinstance(owner, dict):
            owner[draw(st.sampled_from(["", "_target_", "name", "x", "0", "accepted"]))] = draw(ODD)
        else:
            owner[place[-1]] = draw(ODD)
    return value


_NUMBER = re.compile(rb"(?<![\w\"])\d+(\.\d+)?")
_NO_NUMBERS = [
    *(b"-1", b"1e400", b"NaN", b"-Infinity", b"2.5", b"9" * 400, b"1" * 5000, b"null", b"true", b"[]", b"{}"),
    *(b"[1, [2]]", b'"x"', b'"\\ud800"'),
]


@st.composite
def torn(draw: st.DrawFn, content: bytes) -> bytes:
    """Return bytes of a file that was cut off, overwritten in places, put together from parts, or got odd numbers."""
    made = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(made)))
        kind = draw(st.sampled_from(("cut", "flip", "insert", "repeat", "number")))
        numbers = [each.span() for each in _NUMBER.finditer(made)] if kind == "number" else []
        if kind == "cut":
            del made[at:]
        elif numbers:
            begin, end = draw(st.sampled_from(numbers))
            made[begin:end] = draw(st.sampled_from(_NO_NUMBERS))
        elif kind == "flip" and at < len(made):
            made[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            made[at:at] = draw(
                st.one_of(
                    st.binary(max_size=8), st.sampled_from([b"\xff", b"\0", b"\xed\xa0\x80", b"NaN", b"[" * 2000])
                )
            )
        else:
            made[at:at] = made[: draw(st.integers(0, 40))]
    return bytes(made)


def files_of(value: Any, most: int = 2) -> st.SearchStrategy[bytes]:
    """Return a JSON file of a spoiled value, or the torn file of the right one."""
    spoiled_files = spoiled(value, most=most).map(lambda value: json.dumps(value).encode())
    return st.one_of(spoiled_files, spoiled_files, torn(json.dumps(value).encode()))


def lines_of(values: list[Any]) -> bytes:
    """Return values as JSON lines; a lone half of a character stays one, as JSON can spell it."""
    return "".join(json.dumps(value) + "\n" for value in values).encode()

"""The suffix automaton against a search of the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.ngrams.suffix_automaton import START, Match, SuffixAutomaton

TEXTS = st.integers(0, 3).flatmap(lambda size: st.lists(st.integers(0, size), max_size=40))


def first_ends(text, suffix_of, before):
    """The places below `before` where a suffix of `suffix_of` ends first, each with the longest such suffix."""
    found = {}
    for length in range(1, len(suffix_of) + 1):
        suffix = suffix_of[len(suffix_of) - length :]
        ends = [end for end in range(length, before) if text[end - length : end] == suffix]
        if ends:
            found[ends[0]] = Match(length, ends[0])
    return sorted(found.values(), reverse=True)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, most=st.integers(1, 5))
def test_repeats_are_the_first_occurrences(text, most):
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, start=1):
        automaton.extend([token])
        expected = first_ends(text[:count], text[:count], count)
        assert automaton.repeats(count) == expected
        assert automaton.repeats(most) == expected[:most]


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, other=TEXTS, later=TEXTS, most=st.integers(1, 5))
def test_another_text_is_matched_in_the_first_tokens_only(text, other, later, most):
    """Tokens beyond the limit change nothing: neither the match nor where it is."""
    automaton = SuffixAutomaton()
    automaton.extend(text + later)
    place = START
    for count, token in enumerate(other, start=1):
        place = automaton.follow(place, token, len(text))
        expected = first_ends(text, other[:count], len(text) + 1)
        assert automaton.matches(place, len(text) + 1) == expected
        assert automaton.matches(place, most) == expected[:most]


def test_the_size_is_linear_in_the_text():
    for text in ([0] * 500, [number % 7 for number in range(500)], [0, 1] * 100 + [2] * 300):
        automaton = SuffixAutomaton()
        automaton.extend(text)
        assert len(automaton._next) <= 2 * len(text)
        assert sum(map(len, automaton._next)) <= 3 * len(text)

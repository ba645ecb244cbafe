"""Lookahead decoding against the window and the pool on plain lists."""

import pytest
from fixtures.drafting import decoded, dynamic, rows
from fixtures.plain_rounds import PROMPTS, Pairs, ranking

from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.structures.base import structures


def build(window, ngram, candidates, pool_from_prompt):
    values = {"window": window, "ngram": ngram, "candidates": candidates, "pool_from_prompt": pool_from_prompt}
    return lambda target: drafters.build({"name": "lookahead", **values}, target=target)


class Window:
    """2402.02057, section 3, with the results of all calls, each at its place in the window's own count: the root of
    call t is place t, because the window moves on by one place in a call. `results[t, v]` is what call t said of place
    v; call -1 are the first guesses.
    """

    def __init__(self, prompt, window, ngram, candidates, pool_from_prompt):
        self.text, self.ngram, self.candidates, self.from_prompt = list(prompt), ngram, candidates, pool_from_prompt
        first = range(1, window + ngram - 2)
        self.results = {(-1, place): prompt[(place - 1) % len(prompt)] for place in first}
        self.call, self.pool = 0, {}
        if pool_from_prompt:
            for end in range(ngram, len(prompt) + 1):
                self.note(prompt[end - ngram : end])

    def note(self, gram):
        latest = self.pool.setdefault(gram[0], [])
        if gram[1:] in latest:
            latest.remove(gram[1:])
        latest.append(gram[1:])
        if len(latest) > self.candidates:
            latest.pop(0)

    def columns(self):
        """Each column: the tokens of the oldest call that it sees, those of the later calls, and where its end is."""
        oldest = max(-1, self.call - self.ngram + 1)
        for column in range(100):
            seen = [(oldest, self.call + step) for step in range(1, column + 1)]
            own = [(oldest + step, self.call + column + step) for step in range(1, self.call - oldest)]
            if not all(place in self.results for place in seen + own):
                return
            end = self.call + column + len(own) + 1
            yield [self.results[place] for place in seen], [self.results[place] for place in own], end

    def offered(self, depth):
        rows = [[*seen, *own] for seen, own, _ in self.columns()]
        rows += [gram[:depth] for gram in self.pool.get(self.text[-1], [])]
        self.deepest = max(map(len, rows))
        return {tuple(row[:length]) for row in rows for length in range(1, len(row) + 1)}

    def learn(self, committed):
        for seen, own, end in list(self.columns()):
            choice = ranking((*self.text, *seen, *own))[0]
            self.results[self.call, end] = choice
            if len(own) == self.ngram - 2:
                self.note([[self.text[-1], *seen][-1], *own, choice])
        self.call += 1
        for token in committed:
            self.text.append(token)
            if self.from_prompt and len(self.text) >= self.ngram:
                self.note(self.text[-self.ngram :])


SIZES = [(4, 4, 3, False), (2, 3, 2, True), (3, 2, 1, False)]


@pytest.mark.parametrize("sizes", [*SIZES, (3, 3, 2, False)], ids=str)
def test_rounds_equal_the_plain_window(rounds_match, sizes):
    """Any structure whose topology follows the tokens will do, if it is large enough: rows, too."""
    window, ngram, _, _ = sizes
    shape = rows(5, 3) if sizes not in SIZES else dynamic(200, window + ngram - 3)
    rounds_match(build(*sizes), shape, lambda prompt: Window(prompt, *sizes))


@pytest.mark.parametrize("sizes", [*SIZES, (2, 7, 1, True)], ids=str)
def test_a_full_draft_is_as_large_as_it_says(sizes):
    target = Pairs(0.3)
    drafter, (window, ngram, candidates, _) = build(*sizes)(target), sizes
    assert drafter.nodes >= (window + candidates) * (ngram - 1) - 1
    shape = dynamic(drafter.nodes, drafter.depth)
    free = dynamic(1000, 100)
    for prompt in PROMPTS[:2]:
        wanted, given = (decoded(target, build(*sizes)(target), each, prompt, 30).rounds for each in (free, shape))
        assert [row.draft_tokens for row in given][:15] == [row.draft_tokens for row in wanted][:15]


def test_candidates_go_before_columns_and_left_columns_before_right_ones():
    drafter = build(3, 3, 2, True)(Pairs(0.0))
    drafter.start(TextStart([1, 2, 3, 1, 4, 5, 1], 100))  # after 1: (2, 3), then (4, 5); row 0 is 1, 2, 3
    full = drafter.draft(dynamic(50, 9))
    assert full.tokens.tolist() == [4, 5, 2, 3, 1, 2, 3]
    assert [entry.strategy for entry in full.source] == ["pool"] * 4 + ["window"] * 3
    assert drafter.draft(dynamic(50, 1)).tokens.tolist() == [4, 2, 1]
    assert drafter.draft(dynamic(5, 5)).tokens.tolist() == [4, 5, 2, 3, 1]
    assert drafter.draft(rows(2, 2)).tokens.tolist() == [4, 5, 2, 3]


def test_a_structure_that_is_too_small_is_refused():
    for shape, message in (
        (dynamic(10, 5), r"need 23 nodes, and it has 10; raise structure\.nodes"),
        (dynamic(50, 4), r"need 5 levels, and it has 4"),
        (rows(5, 6), r"need 9 paths, and it has 5"),
    ):
        with pytest.raises(UsageError, match=rf"drafter\.window=4, drafter\.ngram=4.*{message}"):
            build(4, 4, 4, False)(Pairs(0.0)).prepare(100, shape)


def test_the_structure_of_the_yaml_holds_the_window_of_the_yaml(group_values):
    drafter = drafters.build(group_values("drafter", "lookahead"), target=Pairs(0.0))
    values = {**group_values("structure", "dynamic"), **group_values("structure", "lookahead")}
    shape = structures.build(values)
    drafter.prepare(100, shape)
    assert (shape.nodes, shape.gamma) == (drafter.nodes, drafter.depth)

"""Lookahead decoding against the window and the pool on plain lists."""

import pytest

from fixtures.plain_rounds import SIZE, ranking
from specdec.drafters.base import drafters
from specdec.structures.base import structures


def dynamic(nodes, depth):
    values = {"name": "dynamic", "nodes": nodes, "depth": depth, "branching": 30, "beam": 30}
    return structures.build(values)


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


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rounds_equal_the_plain_window(rounds_match, sizes):
    window, ngram, _, _ = sizes
    rounds_match(build(*sizes), dynamic(200, window + ngram - 3 if window > 2 or ngram > 3 else ngram - 1), lambda prompt: Window(prompt, *sizes))

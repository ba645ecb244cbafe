"""Jacobi decoding against the fixed-point iteration on plain lists, and against the target's own text."""

import pytest

from fixtures.plain_rounds import ranking
from specdec.drafters.base import drafters
from specdec.structures.base import structures


def chain(gamma):
    return structures.build({"name": "chain", "gamma": gamma})


def build(guess):
    return lambda target: drafters.build({"name": "jacobi", "guess": guess}, target=target)


class Iteration:
    """2305.10427, Algorithm 1, with a guess for each position of the text, counted from its beginning."""

    def __init__(self, prompt, guess):
        self.prompt, self.text, self.guess, self.guesses, self.drafted = list(prompt), list(prompt), guess, {}, []

    def offered(self, depth):
        """y_1 ... y_depth, each from the last iteration that looked at its position, or from the rule."""
        self.drafted = []
        for position in range(len(self.text), len(self.text) + depth):
            if position in self.guesses:
                self.drafted.append(self.guesses[position])
            elif self.guess == "repeat":
                self.drafted.append([*self.text, *self.drafted][-1])
            else:
                self.drafted.append(self.prompt[position % len(self.prompt)])
        return {tuple(self.drafted[:length]) for length in range(1, depth + 1)}

    def learn(self, committed):
        """y_i becomes the argmax after x and y_1 ... y_(i-1)."""
        for place in range(len(self.drafted) + 1):
            self.guesses[len(self.text) + place] = ranking((*self.text, *self.drafted[:place]))[0]
        self.text += committed


@pytest.mark.parametrize("guess", ["repeat", "prompt"])
def test_rounds_equal_the_plain_iteration(rounds_match, guess):
    rounds_match(build(guess), chain(4), lambda prompt: Iteration(prompt, guess))

"""Jacobi decoding against the fixed-point iteration on plain lists, and against the target's own text."""

import pytest
import torch
from fixtures.drafting import chain
from fixtures.plain_rounds import SIZE, Pairs, ranking

from specdec.drafters.base import drafters
from specdec.records import Draft, TextStart, Tree


def build(guess):
    return lambda target: drafters.build({"name": "jacobi", "guess": guess}, target=target)


class Iteration:
    """2305.10427, Algorithm 1, with a guess for each position of the text, counted from its beginning."""

    def __init__(self, prompt, guess):
        self.prompt, self.text, self.guess, self.guesses, self.drafted = list(prompt), list(prompt), guess, {}, []

    def offered(self, depth):
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
        for place in range(len(self.drafted) + 1):
            self.guesses[len(self.text) + place] = ranking((*self.text, *self.drafted[:place]))[0]
        self.text += committed


@pytest.mark.parametrize("guess", ["repeat", "prompt"])
def test_rounds_equal_the_plain_iteration(rounds_match, guess):
    rounds_match(build(guess), chain(4), lambda prompt: Iteration(prompt, guess))


def logits_of(*choices):
    return torch.nn.functional.one_hot(torch.tensor(choices), SIZE).double()


def test_guesses_beyond_a_shorter_draft_are_kept_and_of_one_that_branches_those_of_the_first_path():
    drafter = build("repeat")(Pairs(0.0))
    drafter.start(TextStart([3, 5], 100))
    drafter.observe(drafter.draft(chain(4)), logits_of(1, 2, 3, 4, 6))
    drafter.commit([1])
    drafter.observe(drafter.draft(chain(1)), logits_of(7, 8))
    drafter.commit([7])
    assert drafter.draft(chain(4)).tokens.tolist() == [8, 4, 6, 6]
    drafter.start(TextStart([3, 5], 100))
    drafter.observe(Draft(torch.tensor([1, 2, 3, 4]), Tree((-1, -1, 0, 2))), logits_of(1, 6, 7, 8, 9))
    drafter.commit([1])
    assert drafter.draft(chain(3)).tokens.tolist() == [6, 8, 9]

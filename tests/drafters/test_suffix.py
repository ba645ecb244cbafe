"""The suffix drafter against a search of the whole text, round by round; lengths; earlier outputs."""

import pytest
from fixtures.slow_drafters import SlowDrafter, along_paths, along_ranks, rounds_of, same_rounds

from specdec.drafters.base import drafters

SIZE = 4
PROMPTS = [[0, 1, 2, 0, 1, 1, 0], [3], [2, 2, 1, 0, 3, 3], [0, 1, 2, 0, 1, 1, 0], [1, 0], [2, 2, 1, 0, 3, 3]]


@pytest.fixture
def build(group_values):
    return lambda target, **keys: drafters.build(group_values("drafter", "suffix", **keys), target=target)


class SlowSuffix(SlowDrafter):
    """Searches prompt, output and earlier outputs for every suffix of the text, the longest first."""

    def __init__(self, match_min=1, factor=1.0, offset=0.0, matches_max=16, earlier_outputs=65536):
        super().__init__(self.proposed)
        self.match_min, self.factor, self.offset = match_min, factor, offset
        self.matches_max, self.room = matches_max, earlier_outputs
        self.outputs, self.before, self.seen = [], {}, []

    def start(self, text, states=None):
        super().start(text, states)
        self.earlier = self.outputs[: self.before.get(tuple(text.prompt), len(self.outputs))]

    def remember(self, prompt, output):
        if tuple(prompt) in self.before or self.room == 0:
            return
        if sum(len(known) + 1 for known in self.outputs) + len(output) + 1 > self.room:
            self.room = 0
            return
        self.before[tuple(prompt)] = len(self.outputs)
        self.outputs.append(list(output))

    def copies(self, text, width):
        found = []
        for length in range(len(text), 0, -1):
            suffix = text[len(text) - length :]
            own = [end for end in range(length, len(text)) if text[end - length : end] == suffix]
            if own:
                endless = text + text[own[0] :] * width  # a copy that goes on with itself
                found.append((length, 0, own[0], endless[own[0] : own[0] + width]))
            earlier = [
                (number, end)
                for number, output in enumerate(self.earlier)
                for end in range(length, len(output) + 1)
                if output[end - length : end] == suffix
            ]
            if earlier:
                number, end = min(earlier)
                found.append((length, 1, (number, end), self.earlier[number][end : end + width]))
        # The longest match of a place counts.
        places, matches = set(), []
        for length, which, place, copy in found:
            if (which, place) not in places:
                places.add((which, place))
                matches.append((length, copy))
        return [
            copy[: max(0, int(self.factor * length + self.offset + 1e-6))]
            for length, copy in matches[: self.matches_max]
            if length >= self.match_min
        ]

    def proposed(self, text, structure):
        copies = [copy for copy in self.copies(text, structure.gamma) if copy]
        if structure.name == "chain":
            first = self.copies(text, structure.gamma)[:1]
            return along_paths(copy for copy in first if copy)
        longest = [copy for copy in copies if not any(o[: len(copy)] == copy and o != copy for o in copies)]
        if structure.name == "rows":
            distinct = [copy for place, copy in enumerate(longest) if copy not in longest[:place]]
            return along_paths(distinct[: structure.rows])

        def ranked(path):
            after = [c[len(path)] for c in copies if len(c) > len(path) and tuple(c[: len(path)]) == path]
            return list(dict.fromkeys(after))

        return along_ranks(structure.tree, ranked)


@pytest.mark.parametrize(
    ("structure", "keys"),
    [
        ("chain", {}),
        ("tree", {"factor": 100.0}),
        ("rows", {"match_min": 2, "factor": 0.75, "offset": 1.5, "earlier_outputs": 60}),
        ("chain", {"matches_max": 2, "factor": 2.0, "offset": -1.0, "earlier_outputs": 0}),
        ("tree", {"matches_max": 2, "factor": 2.0, "offset": -1.0, "earlier_outputs": 0}),
    ],
)
def test_rounds_are_those_of_a_slow_search(build, table, random_law, make_structure, structure, keys):
    """Drawn texts, so that drafts are rejected anywhere; the first prompt and a later one twice; earlier outputs."""
    target, shape = table(random_law(SIZE, 3, spread=2.5), temperature=1.0), make_structure(structure, 4)
    fast = rounds_of(target, build(target, **keys), shape, PROMPTS, 60)
    slow = rounds_of(target, SlowSuffix(**keys), shape, PROMPTS, 60)
    same_rounds(fast, slow)

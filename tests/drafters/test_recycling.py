"""Token Recycling against a matrix on plain lists."""

import pytest

from fixtures.plain_rounds import SIZE, ranking
from specdec.drafters.base import drafters
from specdec.structures.base import structures


def tree(parents):
    sizes = {"nodes": len(parents), "depth": len(parents)}
    return structures.build({"name": "tree", "file": None, "parents": parents, "accuracy": None, **sizes})


STRUCTURES = {
    "chain": structures.build({"name": "chain", "gamma": 3}),
    "rows": structures.build({"name": "rows", "k": 3, "w": 3, "budget": 100}),
    "tree": tree([-1, -1, -1, 0, 0, 1, 3, 3, 5, 6]),
}
# Of every node the rank of each choice on its path, written out from the shapes above.
RANKS = {
    "chain": [(0,), (0, 0), (0, 0, 0)],
    "rows": [(row, *(0,) * more) for row in range(3) for more in range(3)],
    "tree": [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0, 0)],
}


def build(persist=False, k=4):
    return lambda target: drafters.build({"name": "recycling", "k": k, "persist": persist}, target=target)


class Matrix:
    """2408.08696, section 3: M[x] holds the k tokens that were likeliest when x was last evaluated."""

    def __init__(self, prompt, ranks, k):
        self.text, self.ranks, self.k = list(prompt), ranks, k
        self.lines = [None] * SIZE
        self.drafted = []

    def offered(self, depth):
        self.drafted = []
        for ranks in self.ranks:
            path, token = [], self.text[-1]
            for rank in ranks:
                token = None if token is None or self.lines[token] is None else self.lines[token][rank]
                path.append(token)
            if token is not None and len(path) <= depth:
                self.drafted.append(tuple(path))
        return set(self.drafted)

    def learn(self, committed):
        for path in [(), *self.drafted]:
            self.lines[[*self.text, *path][-1]] = ranking((*self.text, *path))[: self.k]
        self.text += committed


@pytest.mark.parametrize("shape", STRUCTURES)
def test_rounds_equal_the_plain_matrix(rounds_match, shape):
    rounds_match(build(), STRUCTURES[shape], lambda prompt: Matrix(prompt, RANKS[shape], 4))

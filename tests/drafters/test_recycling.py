"""Token Recycling against a matrix on plain lists."""

import pytest
from fixtures.drafting import chain, decoded, rows, tree
from fixtures.plain_rounds import PROMPTS, SIZE, Pairs, ranking

from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.records import TextStart

STRUCTURES = {"chain": chain(3), "rows": rows(3, 3), "tree": tree(-1, -1, -1, 0, 0, 1, 3, 3, 5, 6)}
# The rank of each choice on the path of every node, written out from the shapes above.
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


def rounds_of(drafter, target, prompt, shape="tree"):
    generation = decoded(target, drafter, STRUCTURES[shape], prompt, 30)
    return [(row.draft_tokens, row.committed) for row in generation.rounds]


def test_with_persist_a_prompt_begins_with_what_finished_ones_taught():
    target = Pairs(0.0)
    drafter, fresh = build(persist=True)(target), build()(target)
    alone = [rounds_of(fresh, target, prompt) for prompt in PROMPTS]
    text = [token for _, committed in alone[0] for token in committed]
    assert rounds_of(drafter, target, PROMPTS[0]) == alone[0], "nothing was known"
    assert rounds_of(drafter, target, PROMPTS[1]) == alone[1], "the first prompt is not finished"
    drafter.remember(PROMPTS[0], text)
    rankings = [ranking((*PROMPTS[0], *text[:end]))[:4] for end in range(30)]
    lines = dict(zip([PROMPTS[0][-1], *text], rankings, strict=False))
    drafter.start(TextStart(PROMPTS[3], 100))
    draft = drafter.draft(STRUCTURES["rows"])
    first = [token for token, parent in zip(draft.tokens.tolist(), draft.tree.parents, strict=True) if parent < 0]
    assert sorted(first) == sorted(lines[PROMPTS[3][-1]][:3])
    # Finished prompts begin as they did, whoever decodes them; one that warm-up has begun learns like any other.
    assert rounds_of(drafter, target, PROMPTS[0]) == alone[0]
    assert rounds_of(drafter, target, PROMPTS[1]) != alone[1]
    taught = rounds_of(drafter, target, PROMPTS[3])
    assert taught != alone[3]
    rounds_of(drafter, target, PROMPTS[3], "chain")
    drafter.remember(PROMPTS[3], [1, 2])
    drafter.remember(PROMPTS[3], [3, 4])
    assert rounds_of(drafter, target, PROMPTS[3]) == taught


def test_a_structure_with_too_many_siblings_is_refused():
    with pytest.raises(UsageError, match=r"drafter\.k=4.*asks for 5 tokens.*raise drafter\.k"):
        build()(Pairs(0.0)).prepare(100, rows(5, 2))

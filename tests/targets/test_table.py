"""A law written as a table: what it hands over before and after a round, by the contract of targets."""

import torch

from specdec.records import Draft, TextStart, Tree


def test_states_are_those_of_the_root_and_the_accepted_nodes(table, random_law):
    """The state of a token is the token, one-hot. Root 3; its children 2 and 0; below 0: 1."""
    target, law = table(random_law(4, 0), temperature=1.0), random_law(4, 0)
    target.start(TextStart([1, 2, 0, 3], 16))
    assert target.states.argmax(-1).tolist() == [1, 2, 0]
    p = target.verify(Draft(torch.tensor([2, 0, 1]), Tree((-1, -1, 1))))
    torch.testing.assert_close(p, law[[3, 2, 0, 1]])
    target.commit((1, 2), 2)
    assert target.states.argmax(-1).tolist() == [3, 0, 1] and target.states.sum() == 3
    torch.testing.assert_close(target.verify(Draft(torch.tensor([3]), Tree((-1,)))), law[[2, 3]])
    target.commit((), 0)
    assert target.states.argmax(-1).tolist() == [2]

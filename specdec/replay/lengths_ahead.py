"""Accepted lengths by position: how far a chain that begins at each token of a greedy text would be accepted."""

import numpy as np

from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.records import Request
from specdec.replay.answers import TextStates
from specdec.replay.expected_rounds import Starts, agreement, starts_along
from specdec.structures import Structure
from specdec.targets.base import Target
from specdec.text.streams import Stream


def lengths_ahead(drafter: Drafter, target: Target, structure: Structure, stream: Stream) -> tuple[int, ...]:
    """Return for every token of a greedy text the most tokens that a round which starts there commits, the target's own
    included: with gamma up to that of `structure`, such a round accepts min(length - 1, gamma) (theory.md 4.7).

    The end of the text is no limit of a draft: what lies beyond it is not accepted.

    Args:
        structure: a chain of the largest gamma.
    Raises:
        UsageError: a drafter whose rounds depend on earlier ones, so that a position has no length of its own.
    """
    text, gamma = stream.generated, structure.gamma
    limit = len(text) + gamma + 1
    if isinstance(drafter, Lookup):
        (rounds,) = drafter.possible_rounds(stream.prompt, text, limit, [structure])
        if rounds is not None:
            return tuple(int(accepted) + 1 for accepted in rounds.accepted)
    request, replay = Request(stream.prompt, limit), drafter.capabilities.replay
    states = TextStates(target)
    if replay == "position":
        starts = Starts.of_positions(agreement(drafter, target, structure, text, request, states), gamma)
    elif replay == "start":
        starts = starts_along(drafter, target, structure, text, request, states)
    else:
        raise UsageError(
            "Bad value drafter: what this drafter accepts depends on the rounds before, so that it has no accepted "
            "length at each position; use one of another kind, such as ngram, small_model or grounded, or a finished "
            "run of it (study.run)."
        )
    return tuple(1 + int(each) for each in np.cumprod(starts.m > 0.5, axis=1).sum(axis=1))

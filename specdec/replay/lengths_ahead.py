"""Accepted lengths by position: how far a chain that begins at each token of a greedy text would be accepted."""

from collections.abc import Sequence

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


def lengths_ahead(
    drafter: Drafter, target: Target, chains: Sequence[Structure], stream: Stream
) -> dict[int, tuple[int, ...]]:
    """Return by gamma, for every token of a greedy text, the most tokens that a round which starts there commits, the
    target's own included: such a round accepts min(length - 1, gamma) (theory.md 4.7).

    The end of the text is no limit of a draft: what lies beyond it is not accepted. Drafters that look tokens up may
    draft other tokens where they draft more; of all others the deepest chain tells those of the shorter ones.

    Args:
        chains: structures, one for each gamma.
    Raises:
        UsageError: a drafter whose rounds depend on earlier ones, so that a position has no length of its own.
    """
    deepest = max(chains, key=lambda chain: chain.gamma)
    text, gamma = stream.generated, deepest.gamma
    limit = len(text) + gamma + 1
    if isinstance(drafter, Lookup):
        found = drafter.possible_rounds(stream.prompt, text, limit, chains)
        known = [rounds for rounds in found if rounds is not None]
        if len(known) == len(chains):
            return {
                chain.gamma: tuple(int(accepted) + 1 for accepted in rounds.accepted)
                for chain, rounds in zip(chains, known, strict=True)
            }
    request, replay = Request(stream.prompt, limit), drafter.capabilities.replay
    states = TextStates(target)
    if replay == "position":
        starts = Starts.of_positions(agreement(drafter, target, deepest, text, request, states), gamma)
    elif replay == "start":
        starts = starts_along(drafter, target, deepest, text, request, states)
    else:
        raise UsageError(
            "Bad value drafter: what this drafter accepts depends on the rounds before, so that it has no accepted "
            "length at each position; use one of another kind, such as ngram, small_model or grounded, or a finished "
            "run of it (study.run)."
        )
    lengths = tuple(1 + int(each) for each in np.cumprod(starts.m > 0.5, axis=1).sum(axis=1))
    return {chain.gamma: lengths for chain in chains}

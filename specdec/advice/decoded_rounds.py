"""Rounds at every gamma from those that were decoded at one: for drafters whose rounds no text tells."""

from collections.abc import Sequence

import numpy as np

from specdec.analysis.acceptance.stretches import fit_stretches, make_trace
from specdec.errors import UsageError
from specdec.records import Generation
from specdec.replay.expected_rounds import Walk

FEW = 200  # rounds: fewer do not tell kinds of stretches apart


def predicted_walks(texts: Sequence[tuple[int, Generation]], gammas: Sequence[int]) -> list[dict[int, Walk]]:
    """Return the walk of each text at each gamma, by the model of stretches fitted to their rounds (theory.md 5.7).

    A prompt whose texts took more rounds at the largest gamma than the model expects takes as many times more at every
    gamma, so that prompts differ in the prediction as they do in decoding.

    Raises:
        UsageError: too few rounds for a fit.
    """
    longest = max(gammas)
    lines = []
    for number, (prompt, text) in enumerate(texts):
        left = len(text.tokens)
        for item in text.rounds:
            room = min(max(left - 1, 0), longest)
            lines.append((number, prompt, item.tree.depth, item.accepted, item.rejected, room, len(item.committed)))
            left -= len(item.committed)
    if len(lines) < FEW:
        raise UsageError(
            f"Only {len(lines)} rounds were decoded, and a prediction of other gammas needs {FEW}: raise prompts.limit "
            "or measurement.max_new_tokens."
        )
    names = ("text", "prompt", "offered", "accepted", "rejected", "room", "committed")
    table = dict(zip(names, np.array(lines, dtype=np.int64).T, strict=True))
    offers = bool((table["offered"] < table["room"]).any())
    trace = make_trace(table, max(prompt for prompt, _ in texts) + 1)
    fit = fit_stretches(longest, offers, trace)
    lengths = np.array([len(text.tokens) for _, text in texts])
    rounds, shares = {}, {}
    for gamma in gammas:
        rounds[gamma] = fit.rounds_of(gamma, lengths)[0]
        shares[gamma] = fit.offered(gamma, lengths)
    taken = np.bincount(table["prompt"]) / np.bincount([prompt for prompt, _ in texts], rounds[longest])
    return [
        {
            gamma: Walk(
                {size: float(rounds[gamma][number] * taken[prompt] * share)
                 for size, share in enumerate(shares[gamma]) if share > 0},
                draft_s=None,
            )
            for gamma in gammas
        }
        for number, (prompt, _) in enumerate(texts)
    ]  # fmt: skip

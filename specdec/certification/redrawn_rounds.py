"""Statistical checks of single places: rounds drawn again and again from one state, their first token against the
target's law there, and the first two together.

Where drafts are point masses, one draft is made and the target called once: acceptance alone is random, and is drawn
thousands of times. Where drafts are drawn, whole rounds are drawn again, and the target is called once for each draft
that differs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.certification.chi_square import LEAST, Tally, Tested, chi_square
from specdec.clock import CpuClock
from specdec.config import CertificateConfig
from specdec.decode import decode_round
from specdec.records import Draft, Request, TextStart, chain_tree
from specdec.sampling import sample
from specdec.session.arm import Arm
from specdec.targets.base import Target

_MOST_ROUNDS = 8  # of a text before a place
_FOLLOWED = 10  # first tokens after which the second is looked at: the most likely ones
_KEPT_BYTES = 1 << 26  # of laws that are kept for drafts that may come again


def _go_to(arm: Arm, request: Request, wanted: int) -> None:
    """Write a text `wanted` rounds on, or more until one was rejected, up to a limit: the state to draw rounds from."""
    target, structure, prompt = arm.target, arm.structure, request.prompt
    length = len(prompt) + request.max_new_tokens
    capacity = length + max(target.room(structure.tree), target.room(chain_tree(1)))
    target.start(TextStart(prompt, capacity, structure.branches))
    drafts = length + structure.nodes + 1
    arm.drafter.start(TextStart(prompt, drafts, generator=request.draft_generator, in_step=True), target.states)
    written = 0
    for done in range(_MOST_ROUNDS):
        if written + structure.gamma + 2 > request.max_new_tokens:
            break
        decided, _ = decode_round(target, arm.drafter, arm.verifier, structure, request.accept_generator, CpuClock())
        written += len(decided.committed)
        if done + 1 >= wanted and len(decided.committed) <= structure.gamma:
            break


def _p(target: Target, draft: Draft) -> Tensor:
    """Return p [N+1, V] for a draft and leave the state as it was."""
    p = target.verify(draft).clone()
    target.discard()
    return p


def _decisions(
    arm: Arm, generator: torch.Generator | None, asked: CertificateConfig
) -> Iterator[tuple[Tensor, list[int], Tensor | None]]:
    """Yield for each round drawn here the law [V] of its first token, the tokens that it commits, and the law [V] of
    the second one where the round commits one; `redraws` rounds where acceptance alone is random, `redrafts` where
    drafts are as well.
    """
    draft = arm.drafter.draft(arm.structure)
    fixed = draft.q is None
    kept: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
    for number in range(asked.redraws if fixed else asked.redrafts):
        if number and not fixed:
            draft = arm.drafter.draft(arm.structure)
        key = draft.tree.parents, tuple(draft.tokens.tolist())
        p = kept.get(key)
        if p is None:
            p = _p(arm.target, draft)
            if len(kept) < _KEPT_BYTES // p.nbytes:
                kept[key] = p
        acceptance = arm.verifier.accept(draft, p, generator)
        path = acceptance.path
        tokens = [*(acceptance.tokens[node] for node in path), acceptance.next_token]
        yield p[0], tokens, p[path[0] + 1] if path else None


def _on_host(law: Tensor) -> np.ndarray:
    return law.double().cpu().numpy()


@torch.inference_mode()
def redraw(arm: Arm, request: Request, wanted: int, asked: CertificateConfig, label: str) -> list[Tested]:
    """Draw rounds again at one place of a text: test the first token, and the first two together.

    A round that commits one token is completed by the target itself: the second token is drawn from its law after the
    first, and the pair has the target's law if what the round commits has (theory.md 1.1).

    Args:
        request: the prompt, and the generators of this place alone.
        wanted: rounds of the text before the place.
        label: the place in words.
    """
    _go_to(arm, request, wanted)
    target, generator = arm.target, request.accept_generator
    total, seconds = np.zeros(target.vocab_size), defaultdict[int, Any](float)  # sums of laws [V]
    counts, alone, pairs = Counter[int](), Counter[int](), defaultdict[int, Counter[int]](Counter)
    for p, tokens, following in _decisions(arm, generator, asked):
        total += _on_host(p)
        counts[tokens[0]] += 1
        if following is None:
            alone[tokens[0]] += 1
        else:
            seconds[tokens[0]] += _on_host(following)
            pairs[tokens[0]][tokens[1]] += 1
    number = counts.total()
    law = total / number
    # The first token: a cell for each that is expected often enough, one for the others.
    cells = [int(token) for token in np.flatnonzero(number * law >= LEAST)]
    single = Tally(len(cells) + 1)
    often, seen = law[cells], np.array([counts[token] for token in cells], dtype=float)
    single.add(np.append(often, max(0.0, 1 - often.sum())), np.append(seen, number - seen.sum()))
    single.impossible = sum(times for token, times in counts.items() if law[token] == 0)
    # Pairs: cells for a likely first token with each second one that is expected often enough and with all others, and
    # one cell for all other first tokens.
    chances: list[float] = []
    observed: list[float] = []
    impossible = 0
    for token in (int(each) for each in np.argsort(-law, kind="stable")[:_FOLLOWED] if number * law[each] >= LEAST):
        drawn = pairs[token]
        if alone[token] or not drawn:
            after = _p(target, Draft(torch.tensor([token], device=target.device), chain_tree(1)))[1]
            seconds[token] += max(1, alone[token]) * _on_host(after)
            if alone[token]:
                drawn.update(sample(after.expand(alone[token], -1), generator).tolist())
        second = seconds[token] / max(1, drawn.total())
        likely = np.flatnonzero(number * law[token] * second >= LEAST)
        chances += [float(law[token] * second[cell]) for cell in likely]
        observed += [float(drawn[int(cell)]) for cell in likely]
        chances.append(float(law[token] * max(0.0, 1 - second[likely].sum())))
        observed.append(float(drawn.total() - sum(drawn[int(cell)] for cell in likely)))
        impossible += sum(times for cell, times in drawn.items() if second[cell] == 0)
    pair = Tally(len(chances) + 1)
    rest = number - sum(observed)
    pair.add(np.array([*chances, max(0.0, 1 - sum(chances))]), np.array([*observed, rest]))
    pair.impossible = impossible
    return [chi_square(f"{label}: first token", single), chi_square(f"{label}: first two tokens", pair)]

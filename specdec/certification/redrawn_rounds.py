"""Statistical checks of single places: rounds drawn again and again from one state, their first token against the
target's law there, and the first two together.

Where drafts are point masses, one draft is made and the target called once: acceptance alone is random, and is drawn
thousands of times. Where drafts are drawn, whole rounds are drawn again, and the target is called once for each draft
that differs.
"""

from collections import Counter
from collections.abc import Iterator

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

_MOST_ROUNDS = 8  # of a text before a place
_FOLLOWED = 10  # first tokens after which the second is looked at: the most likely ones
_KEPT_BYTES = 1 << 26  # of laws that are kept for drafts that may come again


class _Place:
    """One state of a text, `wanted` rounds on, or more until one was rejected, from which rounds are drawn again."""

    def __init__(self, arm: Arm, request: Request, wanted: int) -> None:
        """
        Args:
            wanted: rounds to make before the place; then more, up to a limit, until one was rejected.
        """
        self.arm, self.request = arm, request
        target, structure, prompt = arm.target, arm.structure, len(request.prompt)
        length = prompt + request.max_new_tokens
        capacity = length + max(target.room(structure.tree), target.room(chain_tree(1)))
        target.start(TextStart(request.prompt, capacity, structure.branches))
        drafts = length + structure.nodes + 1
        arm.drafter.start(
            TextStart(request.prompt, drafts, generator=request.draft_generator, in_step=True), target.states
        )
        self.generator = request.accept_generator
        written = 0
        for done in range(_MOST_ROUNDS):
            if written + structure.gamma + 2 > request.max_new_tokens:
                break
            decided, _ = decode_round(target, arm.drafter, arm.verifier, structure, self.generator, CpuClock())
            written += len(decided.committed)
            if done + 1 >= wanted and len(decided.committed) <= structure.gamma:
                break

    def p(self, draft: Draft) -> Tensor:
        """Return p [N+1, V] for a draft and leave the state as it was."""
        p = self.arm.target.verify(draft).clone()
        self.arm.target.discard()
        return p

    def after(self, token: int) -> Tensor:
        """Return the target's law [V] after one more token."""
        tokens = torch.tensor([token], device=self.arm.target.device)
        return self.p(Draft(tokens, chain_tree(1)))[1]

    def decisions(self, asked: CertificateConfig) -> Iterator[tuple[Tensor, list[int], Tensor | None]]:
        """Yield for each round drawn here the law [V] of its first token, the tokens that it commits, and the law [V]
        of the second one where the round commits one; `redraws` rounds where acceptance alone is random, `redrafts`
        where drafts are as well.
        """
        arm = self.arm
        draft = arm.drafter.draft(arm.structure)
        fixed = draft.q is None
        kept: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
        for number in range(asked.redraws if fixed else asked.redrafts):
            if number and not fixed:
                draft = arm.drafter.draft(arm.structure)
            key = draft.tree.parents, tuple(draft.tokens.tolist())
            p = kept.get(key)
            if p is None:
                p = self.p(draft)
                if len(kept) < _KEPT_BYTES // p.nbytes:
                    kept[key] = p
            acceptance = arm.verifier.accept(draft, p, self.generator)
            path = acceptance.path
            tokens = [*(acceptance.tokens[node] for node in path), acceptance.next_token]
            yield p[0], tokens, p[path[0] + 1] if path else None


class _Mean:
    """The mean of laws [V], in float64 on the host."""

    def __init__(self) -> None:
        self.total: np.ndarray | None = None
        self.number = 0
        self._last: tuple[Tensor | None, np.ndarray] = (None, np.zeros(0))

    def add(self, law: Tensor) -> None:
        if self._last[0] is None or self._last[0].data_ptr() != law.data_ptr():
            self._last = law, law.double().cpu().numpy()
        self.total = self._last[1].copy() if self.total is None else self.total + self._last[1]
        self.number += 1

    @property
    def law(self) -> np.ndarray:
        assert self.total is not None
        return self.total / self.number


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
    place = _Place(arm, request, wanted)
    first, counts = _Mean(), Counter[int]()
    pairs: dict[int, Counter[int]] = {}
    seconds: dict[int, _Mean] = {}
    alone = Counter[int]()
    for p, tokens, following in place.decisions(asked):
        first.add(p)
        counts[tokens[0]] += 1
        if following is None:
            alone[tokens[0]] += 1
        else:
            seconds.setdefault(tokens[0], _Mean()).add(following)
            pairs.setdefault(tokens[0], Counter())[tokens[1]] += 1
    law = first.law
    number = counts.total()
    followed = [int(token) for token in np.argsort(-law, kind="stable")[:_FOLLOWED] if number * law[token] >= LEAST]
    for token in followed:
        if alone[token]:
            after = place.after(token)
            drawn = sample(after.expand(alone[token], -1), place.generator).tolist()
            pairs.setdefault(token, Counter()).update(drawn)
            mean = seconds.setdefault(token, _Mean())
            for _ in drawn:
                mean.add(after)
        elif token not in seconds:
            seconds.setdefault(token, _Mean()).add(place.after(token))
    return [
        chi_square(f"{label}: first token", _first_tally(law, counts)),
        chi_square(f"{label}: first two tokens", _pair_tally(law, counts, followed, seconds, pairs)),
    ]


def _first_tally(law: np.ndarray, counts: Counter[int]) -> Tally:
    """Return the counts of the first token: a cell for each token that is expected often enough, one for the others."""
    cells = [int(token) for token in np.flatnonzero(counts.total() * law >= LEAST)]
    tally = Tally(len(cells) + 1)
    chances, observed = law[cells], np.array([counts[token] for token in cells], dtype=float)
    tally.add(np.append(chances, max(0.0, 1 - chances.sum())), np.append(observed, counts.total() - observed.sum()))
    tally.impossible = sum(number for token, number in counts.items() if law[token] == 0)
    return tally


def _pair_tally(
    law: np.ndarray,
    counts: Counter[int],
    followed: list[int],
    seconds: dict[int, _Mean],
    pairs: dict[int, Counter[int]],
) -> Tally:
    """Return the counts of pairs: cells for a likely first token with each second one that is expected often enough and
    with all others, and one cell for all other first tokens.
    """
    chances: list[float] = []
    observed: list[float] = []
    impossible = 0
    for token in followed:
        after, seen = seconds[token].law, pairs.get(token, Counter())
        likely = np.flatnonzero(counts.total() * law[token] * after >= LEAST)
        chances += [float(law[token] * after[cell]) for cell in likely]
        observed += [float(seen[int(cell)]) for cell in likely]
        chances.append(float(law[token] * max(0.0, 1 - after[likely].sum())))
        observed.append(float(seen.total() - sum(seen[int(cell)] for cell in likely)))
        impossible += sum(number for cell, number in seen.items() if after[cell] == 0)
    tally = Tally(len(chances) + 1)
    rest = counts.total() - sum(observed)
    tally.add(np.array([*chances, max(0.0, 1 - sum(chances))]), np.array([*observed, rest]))
    tally.impossible = impossible
    return tally

"""What the target's own text says about a drafter, without decoding again (DESIGN 3, THEORY 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.drafters.base import Drafter
from specdec.sampling import probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.theory.dependence import replay_rounds


@dataclass(frozen=True)
class Agreement:
    """Drafting one token before every position of a text.

    Attributes:
        proposed: [N] whether there was a proposal.
        beta: [N] sum of min(p, q) there (0 without a proposal); its mean over proposals is `alpha.text`.
        m: [N] chance that the token of the text was accepted, min(1, q/p) (0/1 when greedy).
    """

    proposed: tuple[bool, ...]
    beta: tuple[float, ...]
    m: tuple[float, ...]


@torch.inference_mode()
def agreement(
    drafter: Drafter,
    target: Target,
    structure: Structure,
    prompt: Sequence[int],
    text: Sequence[int],
    generator: torch.Generator | None,
    reference: Sequence[int] | None,
) -> Agreement:
    """One pass along the target's own text; under greedy the text itself is p, otherwise the target scores it once."""
    p = None
    if not target.sampling.greedy:
        p = probabilities(target.score(prompt, text)[:-1], target.sampling)
    laws = drafter.laws(prompt, text)
    if laws is not None:
        return _agreement_of_laws(p, laws, torch.tensor(list(text), device=laws.device))
    drafter.start(prompt, len(prompt) + len(text) + structure.nodes + 1, generator, reference)
    single = structure.resized(1)
    proposed, beta, m = [], [], []
    for index, token in enumerate(text):
        draft = drafter.draft(single)
        proposed.append(len(draft) > 0)
        if not proposed[-1]:
            beta.append(0.0)
            m.append(0.0)
        else:
            guess = int(draft.tokens[0])
            if p is None:
                beta.append(float(guess == token) if draft.q is None else float(draft.q[0, token]))
                m.append(beta[-1])
            elif draft.q is None:
                beta.append(float(p[index, guess]))
                m.append(float(guess == token))  # q is 1 there, so min(1, q/p) is 1
            else:
                beta.append(float(torch.minimum(p[index], draft.q[0]).sum()))
                m.append(min(1.0, float(draft.q[0, token] / p[index, token])))
        drafter.commit([token])
    return Agreement(tuple(proposed), tuple(beta), tuple(m))


def _agreement_of_laws(p: Tensor | None, q: Tensor, text: Tensor) -> Agreement:
    """Of a drafter that gives its law at every position; without p the text is the target's greedy choice."""
    of_text = text.unsqueeze(-1)
    q_text = q.gather(-1, of_text).squeeze(-1)
    if p is None:
        beta = m = q_text
    else:
        q = q.to(p.dtype)
        beta = torch.minimum(p, q).sum(-1)
        # A token of the text that p forbids to rounding would divide by 0; q forbids it too or accepts it.
        m = (q_text.to(p.dtype) / p.gather(-1, of_text).squeeze(-1)).nan_to_num(0.0).clamp_max(1.0)
    return Agreement((True,) * len(text), tuple(beta.tolist()), tuple(m.tolist()))


def rounds_along(
    drafter: Drafter,
    structure: Structure,
    prompt: Sequence[int],
    text: Sequence[int],
    max_new_tokens: int,
    generator: torch.Generator | None,
    reference: Sequence[int] | None,
) -> int:
    """Rounds that greedy decoding of `text` takes, drafting again from each round's start: exact for chains."""
    drafter.start(prompt, len(prompt) + len(text) + structure.nodes + 1, generator, reference)
    position = rounds = 0
    while position < len(text):
        draft = drafter.draft(structure.clamped(max_new_tokens - position - 1))
        tokens: list[int] = draft.tokens.tolist()
        accepted = 0
        while accepted < len(tokens) and text[position + accepted : position + accepted + 1] == (tokens[accepted],):
            accepted += 1
        committed = text[position : position + accepted + 1]
        drafter.commit(committed)
        position += len(committed)
        rounds += 1
    return rounds


def expected_rounds(
    drafter: Drafter,
    target: Target,
    structure: Structure,
    prompt: Sequence[int],
    text: Sequence[int],
    max_new_tokens: int,
    generator: torch.Generator | None,
    reference: Sequence[int] | None,
    along: Agreement | None,
) -> float | None:
    """Expected rounds for one text by the drafter's own form of replay; None where it has none (DESIGN 3).

    Args:
        generator: a fresh generator in the state that decoding started with.
        along: the agreement pass of the same text for a position-wise drafter, else None.
    """
    if along is not None:
        return float(replay_rounds(along.m, structure.gamma))
    if drafter.replay == "copying" and target.sampling.greedy:
        return float(rounds_along(drafter, structure, prompt, tuple(text), max_new_tokens, generator, reference))
    return None

"""The loop: draft, verify, accept, commit (Leviathan et al. 2211.17192, Algorithm 1). Knows no method by name.

The four verbs are timed; keeping the record of a round happens between rounds and is in no duration.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.clock import Clock
from specdec.drafters.base import Drafter
from specdec.errors import NumericsError
from specdec.experiment.quality import chain_laws, departure
from specdec.records import Acceptance, Draft, Generation, Marks, Round
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.verifiers.base.contract import Verifier


def cut(path_tokens: Sequence[int], next_token: int, room: int, end_tokens: frozenset[int]) -> tuple[int, ...]:
    """The tokens that a round commits: accepted, then the next one, up to the end token and the limit.

    This is the project's one rule of token accounting: the end token counts, nothing after it does.
    """
    tokens = [*path_tokens, next_token][:room]
    for index, token in enumerate(tokens):
        if token in end_tokens:
            return tuple(tokens[: index + 1])
    return tuple(tokens)


@torch.inference_mode()
def generate(
    *,
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    structure: Structure,
    prompt: Sequence[int],
    max_new_tokens: int,
    clock: Clock,
    draft_generator: torch.Generator | None = None,
    accept_generator: torch.Generator | None = None,
    reference: Sequence[int] | None = None,
) -> Generation:
    """Decode one prompt to its end token or to `max_new_tokens`.

    Raises:
        NumericsError: the target's logits were not finite; `partial` holds the rounds before.
    """
    end_tokens = target.end_tokens
    began = clock.mark()
    length = len(prompt) + max_new_tokens
    target.start(prompt, length + target.room(structure.tree), structure.branches)
    drafter.start(prompt, length + structure.nodes + 1, draft_generator, reference)
    if drafter.reads_states:
        drafter.read(target.kept_states())
    prefilled = clock.mark()
    tokens: list[int] = []
    rounds: list[Round] = []
    finish = ""
    while not finish:
        room = max_new_tokens - len(tokens)
        start = clock.mark()
        # 1. Draft: nothing is offered beyond the last token, which the target gives for free.
        draft = drafter.draft(structure.clamped(room - 1))
        drafted = clock.mark()
        # 2. Verify: one call of the target over root and draft.
        try:
            p = target.verify(draft)
            verified = clock.mark()
            # 3. Accept: here the host waits for the device, once in a round.
            acceptance = verifier.accept(draft, p, accept_generator)
            accepted = clock.mark()
            # 4. Commit.
            path_tokens = [acceptance.tokens[node] for node in acceptance.path]
            committed = cut(path_tokens, acceptance.next_token, room, end_tokens)
            target.commit(acceptance.path, acceptance.next_token)
            drafter.commit(committed)
            if drafter.reads_states:
                drafter.read(target.kept_states())
        except NumericsError as error:
            error.partial = Generation(tuple(prompt), tuple(tokens), tuple(rounds), (began, prefilled), "failed")
            raise
        tokens.extend(committed)
        if committed[-1] in end_tokens:
            finish = "end_token"
        elif len(tokens) == max_new_tokens:
            finish = "limit"
        marks = Marks(start, drafted, verified, accepted, clock.mark())
        rounds.append(
            _record(
                len(prompt) + len(tokens) - len(committed),
                draft,
                p,
                verifier,
                acceptance,
                committed,
                finish,
                marks,
                chain=structure.branches == 1 and draft.tree.is_chain,
            )
        )
    return Generation(tuple(prompt), tuple(tokens), tuple(rounds), (began, prefilled), finish)


def _record(
    context: int,
    draft: Draft,
    p: Tensor,
    verifier: Verifier,
    acceptance: Acceptance,
    committed: tuple[int, ...],
    finish: str,
    marks: Marks,
    chain: bool,
) -> Round:
    """What is kept of a round (THEORY 5): a cut inside the accepted tokens hides the rejection behind it.

    Args:
        chain: one candidate for each position, and not by chance: only then has a position a law of its own.
    """
    accepted = min(len(acceptance.path), len(committed))
    rejected = acceptance.rejected and len(committed) == len(acceptance.path) + 1
    lossy = not verifier.lossless
    return Round(
        context=context,
        draft_tokens=acceptance.tokens,
        tree=draft.tree,
        source=draft.source,
        acceptance=acceptance,
        committed=committed,
        accepted=accepted,
        rejected=rejected,
        truncation=finish,
        beta=_beta(draft, p, accepted + rejected) if chain else (),
        marks=marks,
        tv=_tv(verifier, draft, p, accepted + rejected) if lossy and chain else (),
        departure=departure(verifier, draft, p, acceptance.path, committed, rejected, chain) if lossy else None,
    )


def _beta(draft: Draft, p: Tensor, tested: int) -> tuple[float, ...]:
    """Sum of min(p, q) at each tested position of a chain: the accepted ones and the first rejected."""
    if tested == 0:
        return ()
    if draft.q is None:
        return tuple(p[:tested].gather(-1, draft.tokens[:tested].unsqueeze(-1)).squeeze(-1).tolist())
    return tuple(torch.minimum(p[:tested], draft.q[:tested]).sum(-1).tolist())


def _tv(verifier: Verifier, draft: Draft, p: Tensor, tested: int) -> tuple[float, ...]:
    """Total variation of a lossy rule from its own text without a draft at each tested position of a chain."""
    depth = torch.arange(1, tested + 1, device=p.device)
    return tuple(verifier.total_variation(p[:tested], chain_laws(draft, tested, p), depth).tolist())

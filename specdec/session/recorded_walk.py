"""Decodes recorded texts by walking along them: the generations of `generate` on target=replay, at a hundred times its
speed, because nothing is computed that the record and the drafter's own look-ups do not already say.
"""

from collections.abc import Sequence

from specdec.clock import SimulatedClock
from specdec.decode import cut
from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.folder.rounds_table import WalkedRounds
from specdec.records import Generation, Request
from specdec.replay.walk import RoundColumns, plain_columns, walk
from specdec.session.arm import Arm
from specdec.targets.base import Target
from specdec.targets.replay import Replay
from specdec.timing.simulated import Priced


def walks(target: Target, drafter: Drafter) -> bool:
    """Return True if the drafts follow from recorded text alone: the target replays it, and the drafter looks up."""
    needs_calls = drafter.capabilities.replay in (None, "calling")
    return isinstance(target, Replay) and isinstance(drafter, Lookup) and not needs_calls


def decode_by_walking(
    arms: Sequence[Arm], request: Request, clock: SimulatedClock, traced: Arm | None = None
) -> list[Generation]:
    """Decode one text by several methods on one recording (see `walks`), those of a drafter in one walk; time passes in
    their order. The arm whose single rounds will be asked for (`traced`) is decoded by the loop.
    """
    target, prompt = arms[0].target, tuple(request.prompt)
    assert isinstance(target, Replay)
    text = cut(target.stream(prompt).generated, request.max_new_tokens, target.end_tokens)
    finish = "end_token" if text[-1] in target.end_tokens else "limit"
    of_drafter: dict[int, list[Arm]] = {}
    for arm in arms:
        if isinstance(arm.drafter, Priced) and arm is not traced:
            of_drafter.setdefault(id(arm.drafter.drafter), []).append(arm)
    columns: dict[int, RoundColumns] = {}
    for speculative in of_drafter.values():
        drafter = speculative[0].drafter
        assert isinstance(drafter, Priced) and isinstance(drafter.drafter, Lookup)
        walked = walk(drafter.drafter, [arm.structure for arm in speculative], request, text)
        columns |= zip(map(id, speculative), walked, strict=True)
    written = []
    for arm in arms:
        if arm is traced:
            written.append(arm.decode(request, clock))
            continue
        began = clock.mark()
        clock.advance(target.prefill_s(request.prompt))
        prefilled = clock.mark()
        price = arm.drafter.price if isinstance(arm.drafter, Priced) else target.price
        own, chain = columns.get(id(arm)) or plain_columns(len(text)), arm.structure.branches == 1
        rounds = WalkedRounds(own, len(prompt), finish, price, chain, prefilled)
        clock.reach(float(rounds.marks[-1]))
        written.append(Generation(prompt, text, rounds, (began, prefilled), finish))
    return written

"""Live decoding of a study's arms, interleaved on every text in random order, and what each text took."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import mean
from typing import Any

import pandas as pd

from specdec.clock import Clock
from specdec.plan.time_budget import TimeBudget
from specdec.prompts import first_turn
from specdec.records import Generation
from specdec.session.arm import Arm, seeded_request
from specdec.session.rescoring import explain, log_likelihood
from specdec.structures import Structure
from specdec.studies.base.contract import Bench
from specdec.targets.base import Target
from specdec.text.streams import Stream

WARM = 4  # tokens of a run that is not counted
OUTPUTS = ("repeat", "stream", "prompt", "category", "tokens", "rounds", "seconds", "draft_s", "verify_s", "offered",
           "nodes", "accepted", "rejected", "offers", "identical", "tv", "otherwise")  # fmt: skip
"""Columns of a text, behind the keys of its arm. seconds: of all rounds, prefill apart, with draft_s and verify_s;
offered: depth of all drafts; nodes: of all drafts; offers: rounds with a draft; identical: it is the stream's text; tv:
total variation of the emitted law from the target's, summed over tokens; otherwise: chance of a decision that no
lossless rule would have made, summed over rounds; both are missing where not known (see `session.rescoring`).
"""


@dataclass(frozen=True)
class StudyArm:
    """One way of a study to decode."""

    # keys: what tells it from the study's other arms, a column each; acceptance has random numbers of its own for each
    keys: Mapping[str, Any]
    arm: Arm
    draws: str = ""  # arms of which this is equal draft by the same random numbers

    def decode(self, bench: Bench, stream: Stream, repeat: int = 0, tokens: int | None = None) -> Generation:
        """Decode the prompt of a stream, at most the run's limit or so many tokens."""
        drafting = "/".join(["draft", *filter(None, [self.draws]), str(repeat)])
        accepting = "/".join(["accept", *map(str, self.keys.values()), str(repeat)])
        limit, text, purposes = tokens or bench.parts.limit, (stream.id, stream.prompt), (drafting, accepting)
        request = seeded_request(bench.parts.target, text, limit, bench.plan.seed, purposes, stream.generated)
        output = self.arm.decode(request, bench.clock)
        bench.clock.synchronize()
        return output


@dataclass(frozen=True)
class Decoded:
    """A text that an arm wrote, beside the stream whose prompt it had."""

    arm: StudyArm
    stream: Stream
    repeat: int
    output: Generation

    def line(self, clock: Clock) -> dict[str, Any]:
        """Return the keys of the arm and OUTPUTS."""
        rounds, stream = self.output.rounds, self.stream
        marks = [each.marks for each in rounds]
        tv, otherwise = 0.0, 0.0
        if not self.arm.arm.verifier.capabilities.lossless:
            departures = [each.departure for each in rounds if each.departure is not None]
            known = len(departures) == len(rounds)
            tv = sum((sum(each.tv) for each in departures), 0.0) if known else nan
            otherwise = sum((each.otherwise or 0.0 for each in departures), 0.0) if known else nan
        return {
            **self.arm.keys,
            "repeat": self.repeat,
            "stream": stream.id,
            "prompt": first_turn(stream.id),
            "category": stream.category,
            "tokens": len(self.output.tokens),
            "rounds": len(rounds),
            "seconds": sum(clock.seconds(each.start, each.committed) for each in marks),
            "draft_s": sum(clock.seconds(each.start, each.drafted) for each in marks),
            "verify_s": sum(clock.seconds(each.drafted, each.verified) for each in marks),
            "offered": sum(each.tree.depth for each in rounds),
            "nodes": sum(len(each.draft_tokens) for each in rounds),
            "accepted": sum(each.accepted for each in rounds),
            "rejected": sum(each.rejected for each in rounds),
            "offers": sum(bool(each.draft_tokens) for each in rounds),
            "identical": self.output.tokens == stream.generated,
            "tv": tv,
            "otherwise": otherwise,
        }


def interleaved(
    bench: Bench,
    arms: Sequence[StudyArm],
    streams: Sequence[Stream],
    repeats: int,
    remember: bool = False,
    budget: TimeBudget | None = None,
) -> Iterator[Decoded]:
    """Decode every stream's prompt by all arms in random order, as often as asked for.

    remember: let each drafter remember a stream's text once all arms have written it.
    budget: leaves prompts out, which come in an order drawn by the seed; `Bench.late` says which.
    """
    prompts = [list(turns) for _, turns in itertools.groupby(streams, lambda stream: first_turn(stream.id))]
    budget = budget or TimeBudget(None)
    if budget.seconds is not None:
        random.Random(bench.plan.seed).shuffle(prompts)
    drafters = {id(each.arm.drafter): each.arm.drafter for each in arms}.values() if remember else ()
    with bench.progress("decoding", repeats * len(streams) * len(arms)) as advance:
        for repeat, turns in itertools.product(range(repeats), prompts):
            with budget.decoding([each.id for each in turns], kept=False) as there_is_time:
                if not there_is_time:
                    if repeat == 0:  # what a later repeat leaves out was decoded before
                        bench.late.append(turns[0].category)
                    continue
                for stream in turns:
                    order = list(arms)
                    random.Random(f"{bench.plan.seed}/{repeat}/{stream.id}").shuffle(order)
                    for arm in order:
                        yield Decoded(arm, stream, repeat, arm.decode(bench, stream, repeat))
                        advance()
                    for drafter in drafters:
                        drafter.remember(stream.prompt, stream.generated)


def outputs_of(bench: Bench, decoded: Iterable[Decoded], likelihood: bool = False) -> pd.DataFrame:
    """Return a line for each text: the keys of its arm, OUTPUTS, and where asked for `log_likelihood` (nats, of the
    whole text, under the target at temperature 1).
    """
    lines = []
    for each in decoded:
        line = each.line(bench.clock)
        if likelihood:
            line["log_likelihood"] = log_likelihood(bench.parts.target, each.stream.prompt, each.output.tokens)
        lines.append(line)
    return pd.DataFrame(lines, columns=None if lines else [*OUTPUTS])


def host_times(
    bench: Bench,
    arms: Sequence[StudyArm],
    stream: Stream,
    repeats: int,
    tokens: int,
    average: Callable[[Sequence[float]], float] = mean,
) -> pd.DataFrame:
    """Return repeat, the keys of each arm, and of the rounds of a run of `tokens`: nodes (mean of a draft), and the
    average seconds of drafting (draft_s) and of everything but draft and call (overhead_s).
    """
    warm_up(bench, arms, stream)
    lines: list[dict[str, Any]] = []
    for repeat in range(repeats):
        for arm in arms:
            nodes, drafts, rest = host_seconds(arm.decode(bench, stream, tokens=tokens), bench.clock)
            host = {"nodes": mean(nodes), "draft_s": average(drafts), "overhead_s": average(rest)}
            lines.append({"repeat": repeat, **arm.keys, **host})
            bench.heartbeat()
    return pd.DataFrame(lines)


def warm_up(bench: Bench, arms: Sequence[StudyArm], stream: Stream) -> None:
    """Decode a few tokens by every arm, which are not counted."""
    for arm in arms:
        arm.decode(bench, stream, tokens=WARM)


def prepare_target(bench: Bench, structures: Iterable[Structure], streams: Sequence[Stream], context: int = 1) -> None:
    """Have the target compile, where it does, for all structures behind the longest of `streams` and `context` tokens,
    plain steps included. UsageError if there is no memory for the key-value cache of the largest.
    """
    target, structures = bench.parts.target, list(structures)
    packed = target.evaluation == "packed"
    prompt = max(len(stream.prompt) for stream in streams)
    longest = max(prompt + bench.parts.limit, context + 1)
    capacity = longest + max(target.room(each.tree) for each in structures) + 1
    branches = max(each.branches for each in structures)
    target.check_memory(prompt, capacity, branches)
    tokens = {each.nodes + 1 for each in structures if packed or each.branches == 1}
    target.prepare({1, *tokens}, capacity, branches)


def outcome(target: Target, key: tuple[str, int], prompt: Sequence[int], expected: Sequence[int],
            written: Sequence[int]) -> str:  # fmt: skip
    """Return "same", "near-tie" where rounding explains the first difference, else "differs"; `key` as in `explain`."""
    parted = explain(target, key, prompt, expected, written)
    return "same" if parted is None else "near-tie" if parted.explained else "differs"


def host_seconds(output: Generation, clock: Clock) -> tuple[list[int], list[float], list[float]]:
    """Return by round the draft's nodes, the seconds of drafting, and those of everything after the target's call."""
    clock.synchronize()
    marks = [each.marks for each in output.rounds]
    drafts = [clock.seconds(each.start, each.drafted) for each in marks]
    rest = [clock.seconds(each.verified, each.committed) for each in marks]
    return [len(each.draft_tokens) for each in output.rounds], drafts, rest

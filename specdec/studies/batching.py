"""Speculation in batches: plain decoding and drafters at several batch sizes and gammas, decoded live by the batched
loop, and what calls and drafts for as many sequences cost (theory.md 7.3).
"""

import copy
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import nan
from typing import Annotated, Any

import pandas as pd
import torch
from pydantic import Field

from specdec.analysis.cost.cost_report import CostReport
from specdec.batching.batch_parts import BatchAsTarget, BatchTarget, as_one, batch_drafter, batch_target
from specdec.batching.decode_batch import BatchDecoded, BatchStep, decode_batch
from specdec.config import AtLeastOne, DraftSize, Named, typed
from specdec.cost_model import SimulatedCost, fitted_calls, measured_cost
from specdec.drafters.base import BatchDrafter, Drafter, drafters
from specdec.drafters.none import NoDrafter
from specdec.errors import UsageError
from specdec.plan.compositions import composed_parts
from specdec.prompts import Prompt
from specdec.records import chain_tree
from specdec.session.arm import seeded_request
from specdec.structures.chain import Chain
from specdec.studies.base import Ascending, Bench, Positive, Study, studies
from specdec.studies.base.live_runs import outcome
from specdec.text.streams import Stream
from specdec.text.writing import write_json
from specdec.timing.calls import calibrate, call_sizes, time_calls
from specdec.timing.machine import measure_machine

PLAIN = ("", 0)  # the arm without drafts
PLAIN_RUNS = 2  # in a repeat: all arms are compared with plain decoding, so that its noise is in all of them
Arm = tuple[str, int]  # a drafter and its gamma


@studies.register("batching")
@typed
class Batching(Study, Named):
    """Tables:

    `batching`: a line for each repeat, drafter, gamma and batch. Of the steps in which every slot of the batch had a
        sequence: tokens (over all sequences), steps, rounds (steps of each sequence), tokens_per_round, offered (draft
        tokens), places (tokens that the calls evaluated, padding to the longest draft included), seconds with their
        parts draft_s, verify_s, accept_s and commit_s; and of plain decoding of the same texts at the same batch
        baseline_tokens, baseline_steps, baseline_seconds. Of all steps: texts, all_tokens, all_seconds, prefill_s. And
        same, near_tie, differs: texts by what they are beside the plain ones.
    `offers`: drafter, gamma, offered, rounds: how often so many tokens were offered to a sequence.
    `calls`: batch, tokens (of each sequence), context, call, seconds (of a call for the whole batch), model_s (what the
        cost model of calls on one sequence says; NaN without one).
    `drafts`: drafter, gamma, batch, call, seconds (of a draft for the whole batch).
    `cost`: one line: context of the timed calls, rows and error of the cost model's fit, prompts that there were, and
        largest, the texts of a repeat at the largest batch.

    `batching.json` holds the cost model as `SimulatedCost`, and its fit.
    """

    drafters: Annotated[list[str], Field(min_length=1)]
    drafter_settings: dict[str, dict[str, Any]]
    batches: Ascending[AtLeastOne]
    gammas: Ascending[DraftSize]
    repeats: AtLeastOne
    texts: AtLeastOne
    texts_per_slot: AtLeastOne
    seconds: Positive
    calls: AtLeastOne

    def __post_init__(self) -> None:
        for name in (*self.drafters, *self.drafter_settings):
            drafters.get(name)  # refuses a name that nothing has

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        name = bench.plan.target_values["name"]
        if bench.simulated or name not in ("causal", "table"):
            raise bench.unfit(f"target.name={name}", "decodes several sequences at once, live; use target=causal.")
        made: dict[str, Drafter] = {}
        arms: list[Arm] = []  # of each drafter those that it can draft
        for name in dict.fromkeys(self.drafters):
            values = composed_parts(name, changes={"drafter": self.drafter_settings.get(name, {})})["drafter"]
            made[name] = drafters.build(values, target=bench.parts.target)
            if "chain" not in made[name].capabilities.fills:
                raise UsageError(
                    f"Bad value study.drafters={self.drafters}: {name} drafts no chains, which this study "
                    "compares; leave it out."
                )
            arms += [(name, gamma) for gamma in self.gammas if gamma <= (made[name].capabilities.deepest or gamma)]
        rig = _Rig(bench, made, arms, self.batches[-1])
        report, calls, drafts = self._calibrated(bench, rig)
        lines, offers = self._live(bench, rig)
        facts = {
            "context": int(calls["context"].iloc[0]),
            "rows": 0 if report is None else int(report.table["rows"].max()),
            "error": nan if report is None or report.by_rows is None else report.by_rows.median,
            "prompts": len(rig.prompts),
            "largest": self._texts(self.batches[-1]),
        }
        return {"batching": lines, "offers": offers, "calls": calls, "drafts": drafts, "cost": pd.DataFrame([facts])}

    def _texts(self, batch: int) -> int:
        """Return how many texts a repeat decodes at a batch: enough that slots are mostly in use."""
        return max(self.texts, self.texts_per_slot * batch)

    def _calibrated(self, bench: Bench, rig: "_Rig") -> tuple[CostReport | None, pd.DataFrame, pd.DataFrame]:
        """Fit the cost model, where there is one, to calls on one sequence; time calls and drafts at every batch."""
        report: CostReport | None = None
        cost: SimulatedCost | None = None
        if rig.contexts:
            measurement, target = bench.plan.measurement, bench.parts.target
            timer = bench.timer("cost", measurement.cost_calls, measurement.cost_seconds)
            sizes, alone = call_sizes(measurement.cost_rows, measurement.cost_dense), BatchAsTarget(rig.sized(1)[0])
            grid = time_calls(alone, rig.prompts[0].tokens, sizes, rig.contexts, timer)
            machine = measure_machine(target.device, getattr(torch, target.describe()["dtype"]))
            report = CostReport(grid, target.products(), machine)
            fit, source = report.as_dict(), "fitted by study batching to calls of the batched engine on one sequence"
            cost = measured_cost(fitted_calls(fit), {}, name="batching", source=source)
            write_json(bench.folder / "batching.json", {"cost": asdict(cost), **fit})
        prompt = sorted(rig.prompts, key=lambda prompt: len(prompt.tokens))[len(rig.prompts) // 2].tokens
        calls, drafts = list[dict[str, Any]](), list[dict[str, Any]]()
        names = dict.fromkeys(name for name, _ in rig.arms)
        with bench.progress("timing batches", len(self.batches) * len(names)) as advance:
            for batch in self.batches:
                for name in names:
                    gammas = [gamma for other, gamma in rig.arms if other == name]
                    parts, trees = as_one(*rig.sized(batch, name)), [chain_tree(gamma) for gamma in gammas]
                    timer = bench.timer(f"batch/{name}/{batch}", self.calls)
                    found = calibrate(*parts, Chain(gammas[-1]), prompt, trees, timer, gammas)
                    for tokens, times in found.calls.items():
                        here = {"batch": batch, "context": found.context - 1, "tokens": tokens}
                        model_s = nan if cost is None else cost.seconds(batch * tokens, here["context"], batch)
                        calls += [
                            {**here, "call": call, "seconds": seconds, "model_s": model_s}
                            for call, seconds in enumerate(times)
                        ]
                    # A draft that proposed nothing has no time of its own in the calibration: it costs next to nothing.
                    drafts += [
                        {"drafter": name, "gamma": gamma, "batch": batch, "call": call, "seconds": seconds}
                        for gamma in gammas
                        for call, seconds in enumerate(found.drafts[gamma] or [0.0])
                    ]
                    advance()
        return report, pd.DataFrame(calls), pd.DataFrame(drafts)

    def _live(self, bench: Bench, rig: "_Rig") -> tuple[pd.DataFrame, pd.DataFrame]:
        """Decode every repeat's texts at every batch by all arms, in random order."""
        arms, lines, offers = rig.arms, list[dict[str, Any]](), Counter[tuple[str, int, int]]()
        began, seed, target = time.perf_counter(), bench.plan.seed, bench.parts.target
        with bench.progress("decoding batches", self.repeats * len(self.batches)) as advance:
            for repeat in range(self.repeats):
                if repeat and time.perf_counter() - began > self.seconds:
                    break
                count = self._texts(self.batches[-1])  # of other prompts in every repeat, as long as there are any
                of_repeat = [rig.prompts[(repeat * count + place) % len(rig.prompts)] for place in range(count)]
                for batch in random.Random(f"{seed}/{repeat}").sample(self.batches, len(self.batches)):
                    prompts, order = of_repeat[: self._texts(batch)], [*[PLAIN] * PLAIN_RUNS, *arms]
                    random.Random(f"{seed}/{repeat}/{batch}").shuffle(order)
                    done = [(arm, rig.decoded(arm, batch, prompts, repeat)) for arm in order]
                    plain, of_arm = [decoded for arm, decoded in done if arm == PLAIN], dict(done)
                    texts = plain[0].generations
                    for prompt, output in zip(prompts, texts, strict=True):
                        bench.written.append(Stream(prompt.id, prompt.category, prompt.tokens, output.tokens))
                    sums = [_measured(decoded, batch) for decoded in plain]
                    summed = ("tokens", "steps", "seconds", "all_seconds", "all_tokens")
                    baseline = {f"baseline_{name}": sum(each[name] for each in sums) for name in summed}
                    for name, gamma in arms:
                        decoded = of_arm[name, gamma]
                        for step in (step for step in decoded.steps if len(step.rounds) == batch):
                            offers.update((name, gamma, len(each.draft_tokens)) for each in step.rounds)
                        outcomes = Counter(
                            outcome(target, (str(place), gamma), output.prompt, expected.tokens, output.tokens)
                            for place, (expected, output) in enumerate(zip(texts, decoded.generations, strict=True))
                        )
                        line = {"repeat": repeat, "drafter": name, "gamma": gamma, "batch": batch}
                        line |= {"texts": len(prompts), **_measured(decoded, batch), **baseline}
                        kinds = ("same", "near-tie", "differs")
                        lines.append(line | {kind.replace("-", "_"): outcomes[kind] for kind in kinds})
                    advance()
        counted = [(*key, rounds) for key, rounds in sorted(offers.items())]
        return pd.DataFrame(lines), pd.DataFrame(counted, columns=["drafter", "gamma", "offered", "rounds"])


class _Rig:
    """Target and drafters over one set of buffers for all batches, so that no batch pays for new memory."""

    def __init__(self, bench: Bench, made: Mapping[str, Drafter], arms: Sequence[Arm], largest: int) -> None:
        """Make room for batches of up to `largest` sequences."""
        self.bench, self.arms, parts, measurement = bench, arms, bench.parts, bench.plan.measurement
        self.prompts = list(parts.prompts.prompts)
        random.Random(bench.plan.seed).shuffle(self.prompts)
        every = {**made, PLAIN[0]: NoDrafter()}
        self._drafters = {name: batch_drafter(each, parts.target, largest) for name, each in every.items()}
        # The cost model is fitted to calls behind so many tokens; a target without arithmetic has none to explain.
        self.contexts = measurement.cost_contexts if parts.target.products() else []
        room = parts.target.room(chain_tree(max(gamma for _, gamma in (PLAIN, *arms))))
        written = len(parts.longest_prompt.tokens) + parts.limit + room
        capacity = max([written, *(context + 1 + measurement.cost_rows for context in self.contexts)])
        try:
            self._target = batch_target(parts.target, largest)
            self._target.reserve(capacity)
        except UsageError as error:
            raise UsageError(str(error).replace("measurement.batch_size", "the largest of study.batches")) from None
        for drafter in self._drafters.values():
            drafter.reserve(capacity + 1)

    def sized(self, batch: int, name: str = PLAIN[0]) -> tuple[BatchTarget, BatchDrafter]:
        """Return the target and a drafter that use the first `batch` slots."""
        target = copy.copy(self._target)
        target.slots = batch
        return target, self._drafters[name]

    def decoded(self, arm: Arm, batch: int, prompts: Sequence[Prompt], repeat: int) -> BatchDecoded:
        """Decode texts by a drafter and gamma, `batch` at once."""
        parts, seed, (name, gamma) = self.bench.parts, self.bench.plan.seed, arm
        purposes = f"draft/{repeat}", f"accept/{repeat}"
        requests = [
            seeded_request(parts.target, (prompt.id, prompt.tokens), parts.limit, seed, purposes) for prompt in prompts
        ]
        clock, verifier = self.bench.clock, parts.baseline.verifier
        return decode_batch(*self.sized(batch, name), verifier, Chain(gamma), requests, clock)


def _measured(decoded: BatchDecoded, batch: int) -> dict[str, Any]:
    """Return the sums of a decoded set of texts, in the columns of `batching`."""
    full = [step for step in decoded.steps if len(step.rounds) == batch]  # with every slot in use

    def total(steps: Sequence[BatchStep], name: str) -> Any:
        return sum(getattr(step, name) for step in steps)

    drafts = [[len(each.draft_tokens) for each in step.rounds] for step in full]
    tokens, rounds = total(full, "tokens"), len(full) * batch
    return {
        "tokens": tokens,
        **{name: total(full, name) for name in ("draft_s", "verify_s", "accept_s", "commit_s", "seconds")},
        "steps": len(full),
        "rounds": rounds,
        "tokens_per_round": tokens / rounds,
        "offered": sum(map(sum, drafts)),
        "places": sum(batch * (1 + max(each)) for each in drafts),
        **{f"all_{name}": total(decoded.steps, name) for name in ("tokens", "seconds")},
        "prefill_s": total(decoded.steps, "prefill_s"),
    }

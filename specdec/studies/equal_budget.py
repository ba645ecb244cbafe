"""Chain against rows against tree with the same number of draft nodes: rounds by replay, seconds from measured calls.

What has a choice, the shape of rows and the tree, is chosen on one half of the prompts and judged on the other, both
ways round, so that taking the best of many flatters neither.
"""

import json
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.decode import generate
from specdec.drafters import Drafter, drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.progress import progress_bar
from specdec.prompts import first_turn
from specdec.records import Request
from specdec.replay.rank_accuracy import RankCounts, rank_counts
from specdec.replay.walk import Cell
from specdec.sampling import generator_for
from specdec.structures import Structure, structures
from specdec.studies.base import Bench, Study, studies
from specdec.studies.candidates import SHAPES, Candidate, choose, halves_of, plain_shapes, trees
from specdec.studies.replayed import Strategy, check_lookup, replay, skipped
from specdec.targets.replay import Replay
from specdec.text.streams import Stream
from specdec.timing.blocks import Block, time_blocks, tokens_evaluated
from specdec.timing.calls import row_counts

_WARM = 4  # tokens


@typed
class EqualBudgetConfig:
    name: Literal["equal_budget"]
    drafters: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    budgets: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)]
    depths: Annotated[list[AtLeastOne], Field(min_length=1)]
    ranks: AtLeastOne
    contexts: Annotated[list[AtLeastOne], Field(min_length=1)]
    calls: AtLeastOne
    seconds: Annotated[float, Field(gt=0)]
    probe_tokens: AtLeastOne


@studies.register("equal_budget")
class EqualBudget(Study):
    """Tables; drafter is the name under `study.drafters`, half is 0 or 1:

    `replay`: every candidate on every text, as `replayed.replay` has it with keys drafter, shape, budget, variant and
        made_on (the half that a tree was made for, else EITHER); and the text's own half.
    `choices`: drafter, shape, budget, half, variant, made_on, structure (JSON): the candidate with most tokens per call
        on that half, to be judged on the other.
    `accuracy`: drafter, half, level (1, and 2 for all later ones), rank, tested, hits: what trees are built from.
    `block_times`: as `time_blocks` has it, with `repeat`; chains stand for all shapes, since packed calls on equally
        many tokens cost the same.
    `host_times`: repeat, drafter, shape, budget, nodes (mean of a draft), draft_s, overhead_s (accept, commit and the
        rest), medians over the rounds of a short live run of the first prompt; shape "plain" is plain decoding.
    `skipped`: see `replayed.skipped`.

    The run's own drafter and structure are not used.
    """

    def __init__(self, config: EqualBudgetConfig) -> None:
        self._config = config
        self._budgets = sorted(set(config.budgets))

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        built = self._checked(bench)
        streams = bench.texts()
        halves = halves_of(streams)
        candidates: dict[str, list[Candidate]] = {}
        counted: list[dict[str, Any]] = []
        for label, drafter in built.items():
            candidates[label] = plain_shapes(self._budgets)
            for half in (0, 1):
                counts = self._counts(drafter, bench, [each for each in streams if halves[first_turn(each.id)] == half])
                candidates[label] += trees(counts, half, self._budgets, self._config.depths)
                counted += [{"drafter": label, "half": half, **row} for row in counts.rows()]
        strategies = [
            Strategy(
                {
                    "drafter": label,
                    "shape": each.shape,
                    "budget": each.budget,
                    "variant": each.variant,
                    "made_on": each.half,
                },
                Cell(self._config.drafters[label], each.structure),
            )
            for label, several in candidates.items()
            for each in several
        ]
        table, _ = replay(bench, strategies, streams)
        table["half"] = table["prompt"].map(halves)
        choices = choose(table, candidates)
        times = self._simulated(bench, choices) if bench.simulated else self._measured(bench, built, choices, streams)
        return {
            "replay": table,
            "choices": choices,
            "accuracy": pd.DataFrame(counted),
            **times,
            "skipped": skipped(bench.parts.prompts),
        }

    def _checked(self, bench: Bench) -> dict[str, Lookup]:
        """The drafters, and all else that can be wrong, before decoding, which takes a while."""
        target = bench.parts.target
        if target.evaluation != "packed":
            raise UsageError(
                f"Bad value target.evaluation={target.evaluation}: study 'equal_budget' compares shapes by the tokens "
                "of packed calls; use target.evaluation=packed."
            )
        if len(bench.parts.prompts.prompts) < 2:
            raise UsageError(
                "Study 'equal_budget' chooses shapes on one half of the prompts and judges them on the other: it needs "
                "at least 2 prompts."
            )
        built: dict[str, Lookup] = {}
        for label, values in self._config.drafters.items():
            place = f"study.drafters.{label}"
            try:
                drafters.config(values)
                check_lookup(values["name"], "equal_budget")
                drafter = drafters.build(values, target=target)
            except UsageError as error:
                raise UsageError(re.sub(r"(?<![\w./-])drafter(?=[.=])", place, str(error))) from None
            lacking = [shape for shape in SHAPES if shape not in drafter.capabilities.fills]
            if lacking or not isinstance(drafter, Lookup):
                raise UsageError(
                    f"Bad value {place}.name={values['name']}: this drafter fills no {' and no '.join(lacking)}; use "
                    "another."
                )
            built[label] = drafter
        return built

    def _counts(self, drafter: Lookup, bench: Bench, streams: Sequence[Stream]) -> RankCounts:
        depth = min(max(self._config.depths), self._budgets[-1])
        counts = rank_counts(drafter, streams, bench.config.measurement.max_new_tokens, self._config.ranks, depth)
        bench.heartbeat()
        return counts

    def _sizes(self) -> list[Block]:
        """Plain steps and chains, so many that t(n) can be read off between them; all budgets among them."""
        rows = {*row_counts(self._budgets[-1] + 1, 4), *(n + 1 for n in self._budgets)}
        return [(1, n - 1) for n in sorted(rows)]

    def _measured(
        self, bench: Bench, built: Mapping[str, Drafter], choices: pd.DataFrame, streams: Sequence[Stream]
    ) -> dict[str, pd.DataFrame]:
        config = self._config
        times = time_blocks(
            bench.parts.target,
            streams[0].prompt,
            blocks=self._sizes(),
            contexts=config.contexts,
            calls=config.calls,
            clock=bench.clock,
            generator=generator_for(bench.config.seed, "blocks", "cost"),
            heartbeat=bench.heartbeat,
            seconds=config.seconds,
        )
        return {"block_times": times.assign(repeat=0), "host_times": self._host_times(bench, built, choices, streams)}

    def _host_times(
        self, bench: Bench, built: Mapping[str, Drafter], choices: pd.DataFrame, streams: Sequence[Stream]
    ) -> pd.DataFrame:
        plain = bench.parts.baseline
        arms: list[tuple[tuple[str, str, int], Drafter, Structure]] = [
            (("", "plain", 0), plain.drafter, plain.structure)
        ]
        for row in choices[choices["half"] == 0].itertuples():
            shape = structures.build(json.loads(str(row.structure)))
            arms.append(((str(row.drafter), str(row.shape), int(row.budget)), built[str(row.drafter)], shape))
        longest = len(streams[0].prompt) + self._config.probe_tokens + 2 * self._budgets[-1] + 2
        bench.parts.target.prepare({shape.nodes + 1 for _, _, shape in arms}, longest)
        rows = []
        with progress_bar() as progress:
            bar = progress.add_task("timing drafts", total=len(arms))
            for key, drafter, shape in arms:
                rows.append((0, *key, *self._probe(bench, drafter, shape, streams[0])))
                progress.advance(bar)
                bench.heartbeat()
        return pd.DataFrame(rows, columns=_HOST)

    def _probe(self, bench: Bench, drafter: Drafter, shape: Structure, stream: Stream) -> tuple[float, float, float]:
        """Mean nodes of a draft; median seconds of drafting, and of all in a round but that and the call."""
        clock, parts = bench.clock, bench.parts
        for tokens in (_WARM, self._config.probe_tokens):
            output = generate(
                target=parts.target,
                drafter=drafter,
                verifier=parts.primary.verifier,
                structure=shape,
                request=Request(stream.prompt, tokens),
                clock=clock,
            )
        clock.synchronize()
        marks = [each.marks for each in output.rounds]
        nodes = sum(len(each.draft_tokens) for each in output.rounds) / len(marks)
        drafts = median(clock.seconds(each.start, each.drafted) for each in marks)
        return nodes, drafts, median(clock.seconds(each.verified, each.committed) for each in marks)

    def _simulated(self, bench: Bench, choices: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Both tables by the cost model of a target without a model."""
        target = bench.parts.target
        assert isinstance(target, Replay)
        cost = target.cost
        times = [
            {
                "k": k,
                "w": w,
                "context": context,
                "evaluation": "packed",
                "rows_evaluated": tokens_evaluated(k, w, "packed"),
                "call": 0,
                "seconds": cost.seconds(tokens_evaluated(k, w, "packed"), context),
                "missing": "",
                "repeat": 0,
            }
            for context in sorted(set(self._config.contexts))
            for k, w in self._sizes()
        ]
        host = [(0, "", "plain", 0, 0.0, 0.0, cost.overhead_s)]
        for row in choices[choices["half"] == 0].itertuples():
            key = (0, row.drafter, row.shape, row.budget)
            host.append((*key, float(row.budget), cost.lookup_s, cost.overhead_s))
        return {"block_times": pd.DataFrame(times), "host_times": pd.DataFrame(host, columns=_HOST)}


_HOST = ["repeat", "drafter", "shape", "budget", "nodes", "draft_s", "overhead_s"]

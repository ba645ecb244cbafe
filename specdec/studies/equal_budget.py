"""Chain against rows against tree with the same number of draft nodes: rounds by replay, seconds from measured calls.

What has a choice, the shape of rows and the tree, is chosen on one half of the prompts and judged on the other, both
ways round, so that taking the best of many flatters neither.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.decode import generate
from specdec.drafters import Drafter, drafters
from specdec.drafters.lookup import Lookup
from specdec.errors import UsageError
from specdec.measurement.block_times import Block, time_blocks, tokens_evaluated
from specdec.measurement.cost import row_counts
from specdec.measurement.rank_accuracy import rank_counts
from specdec.measurement.stream_replay import Cell
from specdec.progress import progress_bar
from specdec.sampling import generator_for
from specdec.streams import Stream
from specdec.structures import Structure, structures
from specdec.studies.base import Bench, Study, studies
from specdec.studies.replayed import Strategy, check_lookup, replay, skipped
from specdec.targets.replay import Replay
from specdec.theory.trees import best_tree

SHAPES = ("chain", "rows", "tree")
EITHER = -1
"""In place of a half of the prompts: the candidate was made without looking at any."""
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


@dataclass(frozen=True)
class Candidate:
    """A structure that a shape can take at a budget.

    Attributes:
        variant: its size in words.
        half: of the prompts that it was made for, or EITHER.
        structure: its config values.
    """

    shape: str
    budget: int
    variant: str
    half: int
    structure: Mapping[str, Any]


@studies.register("equal_budget")
class EqualBudget(Study):
    """Tables; drafter is the name under `study.drafters`, half is 0 or 1:

    `replay`: every candidate on every text, as `replayed.replay` has it with keys drafter, shape, budget, variant and
        made_on (the half that a tree was made for, else EITHER); and the text's own half.
    `choices`: drafter, shape, budget, half, variant, made_on, structure (JSON): the candidate with most tokens per call
        on that half, to be judged on the other.
    `accuracy`: drafter, half, level ("first", "later"), rank, tested, hits: what trees are built from.
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
        halves = _halves(streams)
        candidates: dict[str, list[Candidate]] = {}
        counted: list[dict[str, Any]] = []
        for label, drafter in built.items():
            trees = self._trees(label, drafter, bench, streams, halves, counted)
            candidates[label] = [*self._plain_shapes(), *trees]
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
        choices = _choose(table, candidates)
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
            lacking = [shape for shape in SHAPES if shape not in drafter.fills]
            if lacking or not isinstance(drafter, Lookup):
                raise UsageError(
                    f"Bad value {place}.name={values['name']}: this drafter fills no {' and no '.join(lacking)}; use "
                    "another."
                )
            built[label] = drafter
        return built

    def _plain_shapes(self) -> list[Candidate]:
        """The chain and all rows of each budget."""
        found = []
        for n in self._budgets:
            found.append(Candidate("chain", n, f"gamma {n}", EITHER, {"name": "chain", "gamma": n}))
            for k in range(2, n + 1):  # one row is the chain
                if n % k == 0:
                    values = {"name": "rows", "k": k, "w": n // k, "budget": n + k}
                    found.append(Candidate("rows", n, f"{k} x {n // k}", EITHER, values))
        return found

    def _trees(
        self,
        label: str,
        drafter: Lookup,
        bench: Bench,
        streams: Sequence[Stream],
        halves: Mapping[str, int],
        counted: list[dict[str, Any]],
    ) -> list[Candidate]:
        """For each half and budget the best trees within each depth, by accuracies measured on that half, which are
        added to `counted`.
        """
        config, found = self._config, []
        limit = bench.config.measurement.max_new_tokens
        depth = min(max(config.depths), self._budgets[-1])
        for half in (0, 1):
            mine = [stream for stream in streams if halves[_prompt_of(stream)] == half]
            counts = rank_counts(drafter, mine, limit, config.ranks, depth)
            bench.heartbeat()
            for place, level in enumerate(("first", "later")):
                for rank, hits in enumerate(counts.hits[place]):
                    row = {"drafter": label, "half": half, "level": level, "rank": rank}
                    counted.append({**row, "tested": counts.tested[place], "hits": hits})
            for n in self._budgets:
                seen: set[tuple[int, ...]] = set()
                for deepest in sorted({min(each, n) for each in config.depths}):
                    parents = best_tree(counts.accuracy(deepest), n, deepest).parents
                    if parents not in seen:
                        seen.add(parents)
                        values = {"name": "tree", "file": None, "parents": list(parents), "accuracy": None}
                        shape: Structure = structures.build({**values, "nodes": n, "depth": deepest})
                        name = f"depth {shape.gamma}"
                        found.append(
                            Candidate("tree", n, name, half, {**values, "nodes": len(parents), "depth": shape.gamma})
                        )
        return found

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
                prompt=stream.prompt,
                max_new_tokens=tokens,
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


def _prompt_of(stream: Stream) -> str:
    """Turns of a conversation share one, and so are in one half."""
    return re.sub(r"/turn\d+$", "", stream.id)


def _halves(streams: Sequence[Stream]) -> dict[str, int]:
    """0 and 1 by turns, which also splits categories that stand together."""
    prompts = dict.fromkeys(_prompt_of(stream) for stream in streams)
    return {prompt: number % 2 for number, prompt in enumerate(prompts)}


def _choose(table: pd.DataFrame, candidates: Mapping[str, Sequence[Candidate]]) -> pd.DataFrame:
    """The table `choices`; of equally good candidates the one with fewer rows, or less depth."""
    keys = ["drafter", "shape", "budget"]
    structure = {
        (label, each.shape, each.budget, each.variant, each.half): json.dumps(dict(each.structure))
        for label, several in candidates.items()
        for each in several
    }
    chosen = []
    for half in (0, 1):
        mine = table[(table["half"] == half) & table["made_on"].isin([EITHER, half])]
        totals = mine.groupby([*keys, "variant", "made_on"], sort=False)[["tokens", "rounds"]].sum()
        value = totals["tokens"] / totals["rounds"]
        for best in value.groupby(keys, sort=False).idxmax():
            row = dict(zip([*keys, "variant", "made_on"], best, strict=True))
            chosen.append({**row, "half": half, "structure": structure[best]})
    return pd.DataFrame(chosen)

"""Chain against rows against tree with the same number of draft nodes: rounds by replay, seconds from measured calls.
The shape of rows and the tree are chosen on one half of the prompts and judged on the other, both ways round, so that
taking the best of many flatters neither.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from specdec.analysis.studies.equal_budget import KEYS
from specdec.config import AtLeastOne, Named, typed
from specdec.prompts import first_turn
from specdec.replay.rank_accuracy import RankCounts, rank_counts
from specdec.structures import structures
from specdec.structures.tree import given
from specdec.studies.base import Ascending, Bench, Positive, Study, halves_of, studies
from specdec.studies.base.live_runs import StudyArm, host_times, prepare_target
from specdec.studies.base.replayed import Strategy, built_lookups, replay
from specdec.theory.trees import best_tree
from specdec.timing.calls import Shape, call_sizes, time_shapes

PLAIN = {"drafter": "", "shape": "plain", "budget": 0}
SHAPES = ("chain", "rows", "tree")
EITHER = -1
"""In place of a half of the prompts: the candidate was made without looking at any."""


@studies.register("equal_budget")
@typed
class EqualBudget(Study, Named):
    """Tables; drafter is the name under `study.drafters`, shape is "chain", "rows" or "tree", half is 0 or 1:

    `replay`: every candidate on every text, as `replayed.replay` has it with keys drafter, shape, budget, variant and
        made_on (the half that a tree was made for, else EITHER); and the text's own half.
    `choices`: drafter, shape, budget, half, variant, made_on, structure (JSON): the candidate with most tokens per call
        on that half, to be judged on the other.
    `accuracy`: drafter, half, level (1, and 2 for all later ones), rank, tested, hits: what trees are built from.
    `block_times`: as `time_shapes` has it, with `repeat`; chains stand for all structures, since packed calls on
        equally many tokens cost the same.
    `host_times`: repeat, drafter, shape, budget, nodes (mean of a draft), draft_s, overhead_s (accept, commit and the
        rest), medians over the rounds of a short live run of the first prompt; shape "plain" is plain decoding.

    The run's own drafter and structure are not used.
    """

    drafters: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    budgets: Ascending[Annotated[int, Field(ge=2)]]
    depths: Ascending[AtLeastOne]
    ranks: AtLeastOne
    contexts: Ascending[AtLeastOne]
    calls: AtLeastOne
    seconds: Positive
    probe_tokens: AtLeastOne

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        bench.needs_halves("chooses structures", "compares structures by the tokens of")
        built = built_lookups(bench, self.drafters, fills=SHAPES)
        streams = bench.texts()
        halves = halves_of(streams)
        strategies: list[Strategy] = []
        counted: list[dict[str, Any]] = []
        deepest = min(self.depths[-1], self.budgets[-1])
        for label, drafter in built.items():
            candidates = [(EITHER, n, each) for n in self.budgets for each in plain_shapes(n).items()]
            for half in (0, 1):
                mine = [each for each in streams if halves[first_turn(each.id)] == half]
                counts = rank_counts(drafter, None, mine, bench.parts.limit, self.ranks, deepest)
                bench.heartbeat()
                candidates += [(half, n, each) for n in self.budgets for each in trees(counts, n, self.depths).items()]
                counted += [{"drafter": label, "half": half, **line} for line in counts.rows()]
            for half, n, (variant, values) in candidates:
                keys = {"drafter": label, "shape": values["name"], "budget": n, "variant": variant, "made_on": half}
                strategies.append(Strategy(keys, self.drafters[label], values))
        table, _ = replay(bench, strategies, streams)
        table["half"] = table["prompt"].map(halves)
        choices = choose(table, strategies)
        # Plain steps and chains, so many that t(n) can be read off between them; all budgets among them.
        tokens = {*call_sizes(self.budgets[-1] + 1, 4), *(n + 1 for n in self.budgets)}
        sizes: list[Shape] = [(1, n - 1) for n in sorted(tokens)]
        probed = choices[choices["half"] == 0]
        if bench.simulated:
            drafting = [({name: line[name] for name in KEYS}, line["budget"]) for line in probed.to_dict("records")]
            times = bench.simulated_times(sizes, self.contexts, [(PLAIN, 0), *drafting])
        else:
            parts, stream = bench.parts, streams[0]
            timer = bench.timer("blocks", self.calls, self.seconds)
            calls = time_shapes(parts.target, stream.prompt, sizes, self.contexts, timer)
            arms = [StudyArm(PLAIN, replace(parts.baseline, verifier=parts.primary.verifier))]
            for line in probed.to_dict("records"):
                structure = structures.build(json.loads(line["structure"]))
                arm = replace(parts.primary, drafter=built[line["drafter"]], structure=structure)
                arms.append(StudyArm({name: line[name] for name in KEYS}, arm))
            prepare_target(bench, [each.arm.structure for each in arms], [stream])
            host = host_times(bench, arms, stream, 1, self.probe_tokens, average=median)
            times = {"block_times": calls.assign(repeat=0), "host_times": host}
        return {"replay": table, "choices": choices, "accuracy": pd.DataFrame(counted), **times}


def plain_shapes(n: int) -> dict[str, dict[str, Any]]:
    """Return the chain and all rows of `n` nodes as config values, by their size in words."""
    shapes: dict[str, dict[str, Any]] = {f"gamma {n}": {"name": "chain", "gamma": n}}
    for k in range(2, n + 1):  # one row is the chain
        if n % k == 0:
            shapes[f"{k} x {n // k}"] = {"name": "rows", "k": k, "w": n // k, "budget": n + k}
    return shapes


def trees(counts: RankCounts, n: int, depths: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the best trees of `n` nodes within each depth by what was counted, as `plain_shapes` does."""
    shapes: dict[str, dict[str, Any]] = {}
    for deepest in sorted({min(each, n) for each in depths}):
        values = given(best_tree(counts.accuracy(deepest), n, deepest).parents)
        shapes.setdefault(f"depth {values['depth']}", values)  # a limit that does not bind changes nothing
    return shapes


def choose(table: pd.DataFrame, candidates: Sequence[Strategy]) -> pd.DataFrame:
    """Return the table `choices`: of equally good candidates the one with fewer rows, or less depth."""
    structure = {tuple(each.keys.values()): json.dumps(dict(each.structure)) for each in candidates}
    chosen = []
    for half in (0, 1):
        mine = table[(table["half"] == half) & table["made_on"].isin([EITHER, half])]
        totals = mine.groupby([*KEYS, "variant", "made_on"], sort=False)[["tokens", "rounds"]].sum()
        value = totals["tokens"] / totals["rounds"]
        for best in value.groupby(KEYS, sort=False).idxmax():
            row = dict(zip([*KEYS, "variant", "made_on"], best, strict=True))
            chosen.append({**row, "half": half, "structure": structure[best]})
    return pd.DataFrame(chosen)

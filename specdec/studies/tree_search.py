"""The best token tree to run: built on one half of the prompts from how often each choice of a drafter is right, chosen
against what calls cost, and decoded live on the other half beside chains, larger trees and dynamic ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from statistics import fmean
from typing import Any

import pandas as pd

from specdec.analysis.cost.round_seconds import RoundSeconds
from specdec.analysis.studies.tree_search import CHOSEN, PLAIN
from specdec.config import AtLeastOne, DraftSize, Named, typed
from specdec.errors import UsageError
from specdec.prompts import first_turn
from specdec.records import Tree
from specdec.replay.rank_accuracy import RankCounts, along, rank_counts, total
from specdec.structures import structures
from specdec.structures.chain import Chain
from specdec.structures.tree import TokenTree, given, save_tree
from specdec.studies.base import Ascending, Bench, Positive, Study, halves_of, studies
from specdec.studies.base.live_runs import StudyArm, host_times, interleaved, outputs_of, prepare_target
from specdec.theory.trees import RankedTree, best_tree, choose_tree, expected_tokens
from specdec.timing.calls import call_sizes, time_drafts, time_shapes


@studies.register("tree_search")
@typed
class TreeSearch(Study, Named):
    """Tables:

    `accuracy`: prompt, level (from 1), rank, tested, hits: on the first half of the prompts, how often the drafter's
        choice of that rank was the target's next token, in rounds whose choices above were right, whatever their ranks.
    `block_times`: t(n), as `time_shapes` has it, with `repeat`; chains stand for all structures, since packed calls on
        equally many tokens cost the same.
    `draft_times`: shape ("tree", "chain") and what `time_drafts` has, of the best trees of each budget within each
        depth and of all chains.
    `host_times`: as `live_runs.host_times` has it with key arm, plainly and with the largest tree.
    `arms`: arm, shape (plain, chain, tree, dynamic, chosen), budget, nodes, depth, tokens and seconds (of a round as
        predicted; NaN for dynamic trees, whose topology is not known beforehand), structure (JSON). A tree is the one
        with most predicted tokens per second of its budget; the chosen one has the most of all (theory.md 3.2) and is
        missing where plain decoding has more.
    `live`: whole runs of the second half, as `live_runs.outputs_of` has them with key arm.

    Each tree is kept in `trees/`, as `structure.file` reads it. The run's own structure is not used.
    """

    budgets: Ascending[AtLeastOne]
    depth: DraftSize
    ranks: AtLeastOne
    branching: AtLeastOne
    beam: AtLeastOne
    contexts: Ascending[AtLeastOne]
    calls: AtLeastOne
    seconds: Positive
    probe_tokens: AtLeastOne
    repeats: AtLeastOne

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        self._check(bench)
        streams = bench.texts()
        halves = halves_of(streams)
        fitted, others = ([each for each in streams if halves[first_turn(each.id)] == half] for half in (0, 1))
        drafter, target, limit = bench.parts.primary.drafter, bench.parts.target, bench.parts.limit
        counts, counted = list[RankCounts](), list[dict[str, Any]]()
        with bench.progress("measuring accuracy by rank", len(fitted)) as advance:
            for stream in fitted:
                of_text = rank_counts(drafter, target, [stream], limit, self.ranks, self.depth, self.depth)
                counts.append(of_text)
                counted += [{"prompt": first_turn(stream.id), **line} for line in of_text.rows()]
                advance()
        accuracy = total(counts).accuracy(self.depth)
        depths = range(1, self.depth + 1)
        trees = {(n, deepest): best_tree(accuracy, n, deepest) for n in self.budgets for deepest in depths}
        largest = self._arm(bench, "largest", given(trees[self.budgets[-1], self.depth].parents))
        prepare_target(bench, [largest.arm.structure], streams, self.contexts[-1])
        # A plain step and chains, so many that t(n) can be read off between them; all budgets among them.
        sizes = [(1, n) for n in sorted({0, *self.budgets, *call_sizes(self.budgets[-1], 4)})]
        timer = bench.timer("blocks", self.calls, self.seconds)
        calls = time_shapes(target, fitted[0].prompt, sizes, self.contexts, timer)
        shapes = [structures.build(given(tree.parents)) for tree in dict.fromkeys(trees.values())]
        shapes += map(Chain, depths)
        drafts = time_drafts(target, drafter, shapes, fitted[0].prompt, bench.timer("drafts", self.calls))
        drafts["shape"] = drafts["structure"].map(lambda place: shapes[place].name)
        plain = StudyArm({"arm": PLAIN}, bench.parts.baseline)
        host = host_times(bench, [plain, largest], fitted[0], 1, self.probe_tokens)
        times = {"block_times": calls.assign(repeat=0), "draft_times": drafts, "host_times": host}
        positions = [len(stream.prompt) + place for stream in fitted for place in range(len(stream.generated))]
        seconds = RoundSeconds(**times, context=fmean(positions) if positions else 1.0)
        arms = self._arms(bench, accuracy, trees, seconds)
        lines = arms[arms["shape"] != PLAIN].to_dict("records")
        drafting = [self._arm(bench, line["arm"], json.loads(line["structure"])) for line in lines]
        for each in drafting:
            if isinstance(each.arm.structure, TokenTree):
                path = bench.folder / "trees" / f"{each.keys['arm'].replace(' ', '_')}.yaml"
                save_tree(path, each.arm.structure.tree.parents)
        prepare_target(bench, [each.arm.structure for each in drafting], streams, self.contexts[-1])
        live = outputs_of(bench, interleaved(bench, [plain, *drafting], others, self.repeats))
        return {"accuracy": pd.DataFrame(counted), **times, "arms": arms, "live": live}

    def _arm(self, bench: Bench, name: str, structure: Mapping[str, Any]) -> StudyArm:
        return StudyArm({"arm": name}, replace(bench.parts.primary, structure=structures.build(structure)))

    def _check(self, bench: Bench) -> None:
        """Refuse parts that the study cannot work with, before decoding, which takes a while."""
        parts, drafter = bench.parts, bench.values.drafter["name"]
        bench.needs_model("times calls and decodes live; use target=causal.")
        bench.needs_halves("builds trees", "times")
        if "tree" not in parts.chosen.drafter.capabilities.fills:
            raise bench.unfit(f"drafter={drafter}", "needs a drafter that fills trees; use another.")
        if "tree" not in parts.primary.verifier.capabilities.handles:
            raise UsageError(
                f"Bad value verifier={bench.values.verifier['name']}: it handles no trees; use "
                "verifier=speculative_sampling."
            )
        deepest = parts.chosen.drafter.capabilities.deepest
        if deepest is not None and deepest < self.depth:
            raise UsageError(
                f"Bad value study.depth={self.depth}: drafter {drafter!r} drafts {deepest} levels at most; use "
                f"study.depth={deepest} or less."
            )
        # A drafter that ranks fewer tokens than `study.ranks` says so here.
        longest = len(parts.longest_prompt.tokens) + parts.limit
        widest = along((0,) * (self.depth - 1), self.ranks)
        parts.primary.drafter.prepare(longest + max(self.budgets[-1], widest.nodes) + 1, widest)

    def _arms(
        self,
        bench: Bench,
        accuracy: Sequence[Sequence[float]],
        trees: Mapping[tuple[int, int], RankedTree],
        seconds: RoundSeconds,
    ) -> pd.DataFrame:
        lines: list[tuple[Any, ...]] = [(PLAIN, PLAIN, 0, 0, 0, 1.0, seconds.outside(0), "{}")]
        for gamma in range(1, self.depth + 1):
            tokens = expected_tokens(range(-1, gamma - 1), [0] * gamma, accuracy)
            size = (gamma, gamma, gamma)
            values = json.dumps({"name": "chain", "gamma": gamma})
            lines.append((f"chain {gamma}", "chain", *size, tokens, seconds.chain(gamma), values))

        def of_tree(arm: str, shape: str, n: int, tree: RankedTree) -> tuple[Any, ...]:
            nodes, depth = len(tree), Tree(tree.parents).depth
            return arm, shape, n, nodes, depth, tree.tokens, seconds.tree(nodes, depth), json.dumps(given(tree.parents))

        for n in self.budgets:
            within = [of_tree(f"tree {n}", "tree", n, trees[n, deepest]) for deepest in range(1, self.depth + 1)]
            lines.append(max(within, key=lambda line: line[5] / line[6]))
        chosen = choose_tree(
            accuracy, lambda tokens: seconds.outside(tokens - 1), seconds.level, self.budgets[-1], self.depth
        )
        if len(chosen):
            lines.append(of_tree(CHOSEN, CHOSEN, len(chosen), chosen))
        drafter, rule = bench.parts.chosen.drafter.capabilities, bench.parts.primary.verifier.capabilities
        if "dynamic" in drafter.fills & rule.handles:
            for n in self.budgets:
                asked = {"name": "dynamic", "nodes": n, "depth": self.depth}
                asked |= {"branching": self.branching, "beam": self.beam}
                built = structures.build(asked)
                lines.append((f"dynamic {n}", "dynamic", n, built.nodes, built.gamma, nan, nan, json.dumps(asked)))
        columns = ["arm", "shape", "budget", "nodes", "depth", "tokens", "seconds", "structure"]
        return pd.DataFrame(lines, columns=columns)

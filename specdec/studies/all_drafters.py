"""Every registered drafter on the same prompts: in the structure of its own YAML, and in chains and trees of one size.

One session: the target is loaded once, and on each text all arms and plain decoding come in random order.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from specdec.analysis.studies.all_drafters import PLAIN
from specdec.config import AtLeastOne, typed
from specdec.drafters import Drafter, drafters
from specdec.errors import UsageError
from specdec.plan.compositions import composed_parts
from specdec.prompts import first_turn
from specdec.records import Generation, Request
from specdec.sampling import generator_for
from specdec.session.arm import Arm
from specdec.session.divergence import explain
from specdec.structures import Structure, structures
from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.live_runs import WARM, LiveRuns
from specdec.text.streams import Stream
from specdec.verifiers import verifiers


@typed
class AllDraftersConfig:
    name: Literal["all_drafters"]
    leave_out: list[str]
    drafters: dict[str, dict[str, Any]]
    nodes: AtLeastOne
    shapes: list[Literal["chain", "tree"]]
    repeats: AtLeastOne


@dataclass(frozen=True)
class _Entry:
    """An arm with the setting that it stands for: "default", "chain" or "tree"."""

    setting: str
    arm: Arm

    @property
    def name(self) -> str:
        return self.arm.method if self.setting == "default" else f"{self.arm.method}, {self.setting}"


@studies.register("all_drafters")
class AllDrafters(Study):
    """Tables:

    `arms`: arm, drafter, setting (default, chain, tree), structure (in words), nodes (of a full draft), lossless
        (drafter and rule claim it), and what the drafter says of itself: parameters, weight_bytes, training_tokens,
        training_seconds; 0 for what was never trained, NaN where the drafter does not say.
    `live`: repeat, arm ("baseline" for plain decoding), stream, prompt, category, tokens, rounds, nodes (verified),
        draft_s, verify_s, round_s (sums over rounds), outcome: "same" as the plain text, "near-tie" where rounding
        explains the first difference, else "differs".
    `skipped`: see `Bench.skipped`.
    """

    def __init__(self, config: AllDraftersConfig) -> None:
        """
        Raises:
            UsageError: a drafter's name that nothing has.
        """
        self._config = config
        for name in (*config.leave_out, *config.drafters):
            drafters.get(name)

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        self._check(bench)
        entries = list(self._entries(bench))
        streams = bench.texts()
        self._prepare(bench, entries, streams)
        return {
            "arms": pd.DataFrame([_facts(entry) for entry in entries]),
            "live": self._live(bench, entries, streams),
            "skipped": bench.skipped(),
        }

    def _check(self, bench: Bench) -> None:
        if bench.simulated:
            raise UsageError(
                "Bad value target.name=replay: study 'all_drafters' decodes live; use target=causal, or compare "
                "drafters that look tokens up with +experiment=ngrammys_grid."
            )

    def _entries(self, bench: Bench) -> Iterator[_Entry]:
        """Build every drafter once, and yield the arms that it can fill.

        Raises:
            UsageError: a drafter cannot be made for this target; the sentence ends with how to leave it out.
        """
        config, target = self._config, bench.parts.target
        for name in drafters.names():
            if name in config.leave_out:
                continue
            values = composed_parts(name, changes=config.drafters.get(name))
            try:
                drafter = drafters.build(values["drafter"], target=target)
            except UsageError as error:
                raise UsageError(
                    f"{error} Or leave it out: study.leave_out=[{','.join([*config.leave_out, name])}]."
                ) from None
            own = structures.build(values["structure"])
            rule = verifiers.build(values["verifier"])
            for setting, structure in self._shapes(drafter, own):
                if structure.name not in drafter.capabilities.fills & rule.capabilities.handles:
                    continue
                if structure.name not in target.capabilities.structures:
                    continue
                target.check_draft(structure)
                yield _Entry(
                    setting, Arm(method=name, target=target, drafter=drafter, structure=structure, verifier=rule)
                )

    def _shapes(self, drafter: Drafter, own: Structure) -> list[tuple[str, Structure]]:
        """Return the drafter's own structure, and those of the equal number of nodes."""
        nodes, deepest = self._config.nodes, drafter.capabilities.deepest
        depth = nodes if deepest is None else min(nodes, deepest)
        found = [("default", own if deepest is None else own.clamped(deepest))]
        if "chain" in self._config.shapes and depth == nodes:
            found.append(("chain", structures.build({"name": "chain", "gamma": nodes})))
        if "tree" in self._config.shapes:
            tree = composed_parts("none", "structure=tree")["structure"]
            found.append(("tree", structures.build({**tree, "nodes": nodes, "depth": min(tree["depth"], depth)})))
        return found

    def _prepare(self, bench: Bench, entries: Sequence[_Entry], streams: Sequence[Stream]) -> None:
        shapes = {(entry.name,): entry.arm.structure for entry in entries}
        LiveRuns(bench, ("arm",), (PLAIN,), shapes, streams).prepare(1)
        longest = max(streams, key=lambda stream: len(stream.prompt))
        length = len(longest.prompt) + bench.config.measurement.limit
        with bench.progress("warming up", len(entries)) as advance:
            for entry in entries:
                structure = entry.arm.structure
                entry.arm.drafter.prepare(length + structure.nodes + 1, structure)
                self._decode(bench, entry.arm, longest, 0, WARM)
                advance()

    def _live(self, bench: Bench, entries: Sequence[_Entry], streams: Sequence[Stream]) -> pd.DataFrame:
        limit = bench.config.measurement.limit
        plain = _Entry("default", bench.parts.baseline)
        lines: list[dict[str, Any]] = []
        with bench.progress("decoding", self._config.repeats * len(streams) * (1 + len(entries))) as advance:
            for repeat in range(self._config.repeats):
                for stream in streams:
                    order = [plain, *entries]
                    random.Random(f"{bench.config.seed}/{repeat}/{stream.id}").shuffle(order)
                    for entry in order:
                        output = self._decode(bench, entry.arm, stream, repeat, limit)
                        bench.clock.synchronize()
                        about = {"repeat": repeat, "arm": PLAIN if entry is plain else entry.name}
                        lines.append({**about, **_outcome(bench, entry, stream, output)})
                        advance()
                    for drafter in {id(entry.arm.drafter): entry.arm.drafter for entry in entries}.values():
                        drafter.remember(stream.prompt, stream.generated)
        return pd.DataFrame(lines)

    def _decode(self, bench: Bench, arm: Arm, stream: Stream, repeat: int, limit: int) -> Generation:
        request = Request(
            stream.prompt,
            limit,
            draft_generator=generator_for(bench.config.seed, stream.id, f"draft/{repeat}"),
            reference=stream.generated,
        )
        return arm.decode(request, bench.clock)


def _outcome(bench: Bench, entry: _Entry, stream: Stream, output: Generation) -> dict[str, Any]:
    seconds = bench.clock.seconds
    marks = [each.marks for each in output.rounds]
    target = bench.parts.target
    parted = explain(target, (stream.id, entry.arm.gamma), output.prompt, stream.generated, output.tokens)
    return {
        "stream": stream.id,
        "prompt": first_turn(stream.id),
        "category": stream.category,
        "tokens": len(output.tokens),
        "rounds": len(output.rounds),
        "nodes": sum(len(each.draft_tokens) for each in output.rounds),
        "draft_s": sum(seconds(each.start, each.drafted) for each in marks),
        "verify_s": sum(seconds(each.drafted, each.verified) for each in marks),
        "round_s": sum(seconds(each.start, each.committed) for each in marks),
        "outcome": "same" if parted is None else "near-tie" if parted.explained else "differs",
    }


def _facts(entry: _Entry) -> dict[str, Any]:
    arm = entry.arm
    described, target = arm.drafter.describe(), arm.target.describe()
    training = described.get("training") or {}
    # A drafter without weights was never trained, and one with the target's own needs no training beside it.
    borrowed = bool(target.get("sha256")) and described.get("sha256") == target["sha256"]
    trained = "parameters" in described and not borrowed
    training = training if trained else {}
    return {
        "arm": entry.name,
        "drafter": arm.method,
        "setting": entry.setting,
        "structure": arm.structure.label,
        "nodes": arm.structure.nodes,
        "lossless": arm.drafter.capabilities.lossless and arm.verifier.capabilities.lossless,
        "parameters": int(described.get("parameters", 0)),
        "weight_bytes": int(described.get("weight_bytes", 0)),
        "training_tokens": float(training.get("tokens", "nan" if trained else 0)),
        "training_seconds": float(training.get("seconds", "nan" if trained else 0)),
    }

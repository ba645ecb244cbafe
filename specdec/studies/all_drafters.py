"""Every registered drafter on the same prompts: in the structure of its own YAML, and in chains and trees of one size.

One session: the target is loaded once, and on each text all arms and plain decoding come in random order.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pandas as pd

from specdec.analysis.sections import counted
from specdec.analysis.studies.all_drafters import PLAIN
from specdec.config import AtLeastOne, DraftSize, Named, typed
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.plan.compositions import composed_parts
from specdec.plan.time_budget import TimeBudget
from specdec.progress import stage
from specdec.session.arm import Arm
from specdec.structures import structures
from specdec.structures.chain import Chain
from specdec.studies.base import Bench, Positive, Study, studies
from specdec.studies.base.live_runs import StudyArm, interleaved, outcome, outputs_of, prepare_target, warm_up
from specdec.verifiers import verifiers


@studies.register("all_drafters")
@typed
class AllDrafters(Study, Named):
    """Tables:

    `arms`: arm, drafter, setting (default, chain, tree), structure (in words), nodes (of a full draft), lossless
        (drafter and rule claim it), and what the drafter says of itself: parameters, weight_bytes, training_tokens,
        training_seconds; 0 for what was never trained, NaN where the drafter does not say.
    `live`: every text, as `live_runs.outputs_of` has it with keys drafter, setting and arm ("baseline" for plain
        decoding); and outcome: "same" as the plain text, "near-tie" where rounding explains the first difference, else
        "differs".
    """

    leave_out: list[str]
    drafters: dict[str, dict[str, Any]]
    nodes: DraftSize
    shapes: list[Literal["chain", "tree"]]
    repeats: AtLeastOne
    budget_seconds: Positive | None

    def __post_init__(self) -> None:
        for name in (*self.leave_out, *self.drafters):
            drafters.get(name)  # refuses a name that nothing has

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        bench.needs_model(
            "decodes live; use target=causal, or compare drafters that look tokens up with +experiment=ngrammys_grid."
        )
        budget = TimeBudget(self.budget_seconds)
        arms = list(self._arms(bench))
        streams = bench.texts()
        prepare_target(bench, [each.arm.structure for each in arms], streams)
        longest = max(streams, key=lambda stream: len(stream.prompt))
        length = len(longest.prompt) + bench.parts.limit
        with stage("Prepare", counted(len(arms), "arm"), len(arms), told=False) as under_way:
            for each in arms:
                under_way.figures = str(each.keys["arm"])
                each.arm.drafter.prepare(length + each.arm.structure.nodes + 1, each.arm.structure)
                warm_up(bench, [each], longest)
                under_way.advance()
        plain = StudyArm({"arm": PLAIN, "drafter": "none", "setting": "default"}, bench.parts.baseline)
        decoded = list(interleaved(bench, [plain, *arms], streams, self.repeats, remember=True, budget=budget))
        outcomes = []
        for done in decoded:
            key, stream = (done.stream.id, done.arm.arm.gamma), done.stream
            outcomes.append(outcome(bench.parts.target, key, stream.prompt, stream.generated, done.output.tokens))
        live = outputs_of(bench, decoded).assign(outcome=outcomes)
        return {"arms": pd.DataFrame([_facts(each) for each in arms]), "live": live}

    def _arms(self, bench: Bench) -> Iterator[StudyArm]:
        """Build every drafter once, and yield the arms that it can fill."""
        target = bench.parts.target
        for name in drafters.names():
            if name in self.leave_out:
                continue
            values = composed_parts(name, changes={"drafter": self.drafters.get(name, {})})
            try:
                drafter = drafters.build(values["drafter"], target=target)
            except UsageError as error:
                raise UsageError(
                    f"{error} Or leave it out: study.leave_out=[{','.join([*self.leave_out, name])}]."
                ) from None
            rule, can = verifiers.build(values["verifier"]), drafter.capabilities
            own = structures.build(values["structure"])
            shapes = [("default", own if can.deepest is None else own.clamped(can.deepest))]
            depth = self.nodes if can.deepest is None else min(self.nodes, can.deepest)
            if "chain" in self.shapes and depth == self.nodes:
                shapes.append(("chain", Chain(self.nodes)))
            if "tree" in self.shapes:
                tree = composed_parts("none", "structure=tree")["structure"]
                sizes = {"nodes": self.nodes, "depth": min(tree["depth"], depth)}
                shapes.append(("tree", structures.build(tree | sizes)))
            for setting, structure in shapes:
                fillable = can.fills & rule.capabilities.handles
                if structure.name not in fillable.intersection(target.capabilities.structures):
                    continue
                target.check_draft(structure)
                arm = Arm(method=name, target=target, drafter=drafter, structure=structure, verifier=rule)
                label = name if setting == "default" else f"{name}, {setting}"
                yield StudyArm({"arm": label, "drafter": name, "setting": setting}, arm)


def _facts(of: StudyArm) -> dict[str, Any]:
    arm = of.arm
    described, target = arm.drafter.describe(), arm.target.describe()
    training = described.get("training") or {}
    # A drafter without weights was never trained, and one with the target's own needs no training beside it.
    borrowed = bool(target.get("sha256")) and described.get("sha256") == target["sha256"]
    trained = "parameters" in described and not borrowed
    training = training if trained else {}
    return {
        **of.keys,
        "structure": arm.structure.label,
        "nodes": arm.structure.nodes,
        "lossless": arm.drafter.capabilities.lossless and arm.verifier.capabilities.lossless,
        "parameters": int(described.get("parameters", 0)),
        "weight_bytes": int(described.get("weight_bytes", 0)),
        "training_tokens": float(training.get("tokens", "nan" if trained else 0)),
        "training_seconds": float(training.get("seconds", "nan" if trained else 0)),
    }

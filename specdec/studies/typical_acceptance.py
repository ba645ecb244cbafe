"""Greedy, lossless rejection and typical acceptance on one draft, decoded live: how many tokens a call yields as the
temperature rises, and what the text loses (Medusa, 2401.10774, 2.3.1).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, Named, typed
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.studies.base import Bench, Positive, Study, studies
from specdec.studies.base.live_runs import StudyArm, interleaved, outputs_of, warm_up
from specdec.verifiers.typical import Typical, TypicalConfig

NO_EPSILON = 0.0  # of rules that have no epsilon


@studies.register("typical_acceptance")
@typed
class TypicalAcceptance(Study, Named):
    """Tables:

    `outputs`: a line for every text: rule ("plain", "greedy", "rejection", "typical"), temperature, epsilon
        (NO_EPSILON but for typical), and what `live_runs.outputs_of` has, with log_likelihood.
    `settings`: epsilon and delta of typical acceptance as the temperature rises, and the temperature of the sweep.

    Greedy text has temperature 0, where the three rules are one. All rules of a temperature alternate on a prompt, in
    random order. The run's verifier is the lossless rule.
    """

    typical: TypicalConfig
    temperatures: Annotated[list[Positive], Field(min_length=1)]
    epsilons: list[Annotated[float, Field(gt=0.0, lt=1.0)]]
    epsilon_temperature: Positive
    repeats: AtLeastOne

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        parts, strict, typical = bench.parts, bench.plan.chosen.rule, self.typical
        can, handled, values = strict.capabilities, Typical.capabilities.handles, bench.values
        drafter, shape = values.drafter["name"], values.structure["name"]
        bench.needs_model("decodes at several temperatures, which recorded texts do not have; use a model.", "target")
        if not can.lossless or can.greedy_only:
            why = "compares with a rule that is lossless at all temperatures; use verifier=speculative_sampling."
            raise bench.unfit(f"verifier={values.verifier['name']}", why)
        if shape not in handled:
            raise UsageError(f"Bad value structure={shape}: study.typical handles {', '.join(sorted(handled))}.")
        if drafter == "none" or drafters.get(drafter).capabilities.needs_reference:
            raise bench.unfit(f"drafter={drafter}", "needs one that proposes at any temperature; use another.")
        greedy, usual = strict.for_greedy(), Typical(typical)
        # Rules by temperature: name, epsilon, and the rule itself; "plain" drafts nothing.
        rules = {0.0: [("plain", NO_EPSILON, greedy), ("greedy", NO_EPSILON, greedy)]}
        for temperature in sorted({*self.temperatures, self.epsilon_temperature}):
            rules[temperature] = [("plain", NO_EPSILON, strict), ("rejection", NO_EPSILON, strict)]
            rules[temperature].append(("typical", typical.epsilon, usual))
        rules[self.epsilon_temperature] += [
            ("typical", epsilon, Typical(replace(typical, epsilon=epsilon, delta=None)))
            for epsilon in sorted({*self.epsilons} - {typical.epsilon})
        ]
        streams = bench.texts()
        capacity = len(parts.longest_prompt.tokens) + parts.limit + parts.primary.structure.nodes + 1
        outputs = []
        for temperature, several in rules.items():
            drafting = replace(parts.primary, drafter=bench.at_temperature(temperature, capacity))
            arms = []
            for rule, epsilon, verifier in several:
                arm = replace(parts.baseline if rule == "plain" else drafting, verifier=verifier)
                keys = {"rule": rule, "epsilon": epsilon, "temperature": temperature}
                arms.append(StudyArm(keys, arm, draws=str(temperature)))
            warm_up(bench, arms, streams[0])
            outputs.append(outputs_of(bench, interleaved(bench, arms, streams, self.repeats), likelihood=True))
        settings = {"epsilon": typical.epsilon, "delta": typical.delta}
        settings |= {"epsilon_temperature": self.epsilon_temperature}
        return {"outputs": pd.concat(outputs, ignore_index=True), "settings": pd.DataFrame([settings], dtype=float)}

"""Greedy, lossless rejection and typical acceptance on one draft, decoded live: how many tokens a call yields as the
temperature rises, and what the text loses (Medusa, 2401.10774, 2.3.1).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.live_runs import StudyArm, interleaved, outputs_of, warm_up
from specdec.verifiers import Verifier
from specdec.verifiers.typical import Typical, TypicalConfig

NO_EPSILON = 0.0
"""In place of epsilon, of rules that have none."""

Positive = Annotated[float, Field(gt=0.0)]


@typed
class TypicalAcceptanceConfig:
    name: Literal["typical_acceptance"]
    typical: TypicalConfig
    temperatures: Annotated[list[Positive], Field(min_length=1)]
    epsilons: list[Annotated[float, Field(gt=0.0, lt=1.0)]]
    epsilon_temperature: Positive
    repeats: AtLeastOne


Rule = tuple[str, float, Verifier]
"""Name, epsilon, and the rule itself; "plain" drafts nothing."""


@studies.register("typical_acceptance")
class TypicalAcceptance(Study):
    """Tables:

    `outputs`: a line for every text: rule ("plain", "greedy", "rejection", "typical"), temperature, epsilon
        (NO_EPSILON but for typical), and what `live_runs.outputs_of` has, with log_likelihood.
    `settings`: epsilon and delta of typical acceptance as the temperature rises, and the temperature of the sweep.
    `skipped`: see `Bench.skipped`.

    Greedy text has temperature 0, where the three rules are one. All rules of a temperature alternate on a prompt, in
    random order. The run's verifier is the lossless rule.
    """

    def __init__(self, config: TypicalAcceptanceConfig) -> None:
        self._config = config

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        rules = self._rules(bench)
        streams, parts = bench.texts(), bench.parts
        longest = max(len(prompt.tokens) for prompt in parts.prompts.prompts)
        capacity = longest + bench.parts.limit + parts.primary.structure.nodes + 1
        outputs = []
        for temperature, several in rules.items():
            drafting = replace(parts.primary, drafter=bench.at_temperature(temperature, capacity))
            arms = []
            for name, epsilon, verifier in several:
                arm = replace(parts.baseline if name == "plain" else drafting, verifier=verifier)
                keys = {"rule": name, "epsilon": epsilon, "temperature": temperature}
                arms.append(StudyArm(keys, arm, draws=str(temperature)))
            warm_up(bench, arms, streams[0])
            outputs.append(outputs_of(bench, interleaved(bench, arms, streams, self._config.repeats), likelihood=True))
        settings = {
            "epsilon": self._config.typical.epsilon,
            "delta": self._config.typical.delta,
            "epsilon_temperature": self._config.epsilon_temperature,
        }
        return {
            "outputs": pd.concat(outputs, ignore_index=True),
            "settings": pd.DataFrame([settings], dtype=float),
            "skipped": bench.skipped(),
        }

    def _rules(self, bench: Bench) -> dict[float, list[Rule]]:
        """Return the rules by temperature, and check all that can be wrong before anything is decoded.

        Raises:
            UsageError: a part that the study cannot work with.
        """
        values, study = bench.values, "study 'typical_acceptance'"
        strict, typical = bench.plan.chosen.rule, Typical(self._config.typical)
        shape = values.structure["name"]
        if bench.simulated:
            raise UsageError(
                f"Bad value target=replay: {study} decodes at several temperatures, which recorded texts do not have; "
                "use a model."
            )
        if not strict.capabilities.lossless or strict.capabilities.greedy_only:
            raise UsageError(
                f"Bad value verifier={values.verifier['name']}: {study} compares with a rule that is lossless at all "
                "temperatures; use verifier=speculative_sampling."
            )
        if shape not in typical.capabilities.handles:
            raise UsageError(
                f"Bad value structure={shape}: study.typical handles {', '.join(sorted(typical.capabilities.handles))}."
            )
        if drafters.get(values.drafter["name"]).capabilities.needs_reference or values.drafter["name"] == "none":
            raise UsageError(
                f"Bad value drafter={values.drafter['name']}: {study} needs one that proposes at any temperature; use "
                "another."
            )
        greedy = strict.for_greedy()
        rules: dict[float, list[Rule]] = {0.0: [("plain", NO_EPSILON, greedy), ("greedy", NO_EPSILON, greedy)]}
        usual = self._config.typical.epsilon
        for temperature in sorted({*self._config.temperatures, self._config.epsilon_temperature}):
            rules[temperature] = [
                ("plain", NO_EPSILON, strict),
                ("rejection", NO_EPSILON, strict),
                ("typical", usual, typical),
            ]
        for epsilon in sorted({*self._config.epsilons} - {usual}):
            swept = Typical(replace(self._config.typical, epsilon=epsilon, delta=None))
            rules[self._config.epsilon_temperature].append(("typical", epsilon, swept))
        return rules

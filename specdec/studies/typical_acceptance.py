"""Greedy, lossless rejection and typical acceptance on one draft, decoded live: how many tokens a call yields as the
temperature rises, and what the text loses (Medusa, 2401.10774, 2.3.1).
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.drafters import Drafter, drafters
from specdec.errors import UsageError
from specdec.prompts import first_turn
from specdec.records import Generation, Request
from specdec.sampling import generator_for
from specdec.session.output_quality import log_likelihood
from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.live_runs import WARM, decoding_seconds, departures
from specdec.text.streams import Stream
from specdec.verifiers import Verifier, verifiers
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


@dataclass(frozen=True)
class _Rule:
    """An acceptance rule at one temperature; `plain` drafts nothing."""

    name: str
    epsilon: float
    verifier: Verifier


@studies.register("typical_acceptance")
class TypicalAcceptance(Study):
    """Tables:

    `outputs`: a line for every text: rule ("plain", "greedy", "rejection", "typical"), temperature, epsilon
        (NO_EPSILON but for typical), repeat, stream, prompt, category, tokens, rounds, seconds (prefill apart),
        log_likelihood (nats, of the whole text, under the target at temperature 1), tv (total variation of the emitted
        law from the target's at that temperature, summed over tokens), otherwise (chance of a decision that a lossless
        rule would not have made, summed over rounds) and offers (rounds with a proposal); tv and otherwise are missing
        where they are not known (see `session.output_quality`).
    `settings`: epsilon and delta of typical acceptance as the temperature rises, and the temperature of the sweep.
    `skipped`: see `Bench.skipped`.

    Greedy text has temperature 0, where the three rules are one. All rules of a temperature alternate on a prompt, in
    random order. The run's verifier is the lossless rule.
    """

    def __init__(self, config: TypicalAcceptanceConfig) -> None:
        self._config = config

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        rules = self._rules(bench)
        streams = bench.texts()
        longest = max(len(prompt.tokens) for prompt in bench.parts.prompts.prompts)
        capacity = longest + bench.config.measurement.limit + bench.parts.primary.structure.nodes + 1
        lines: list[dict[str, Any]] = []
        each = len(streams) * self._config.repeats
        with bench.progress("decoding", each * sum(len(several) for several in rules.values())) as advance:
            for temperature, several in rules.items():
                drafter = bench.at_temperature(temperature, capacity)
                for rule in several:
                    self._decode(bench, rule, drafter, streams[0], (temperature, 0), WARM)
                for repeat in range(self._config.repeats):
                    for stream in streams:
                        order = list(several)
                        random.Random(f"{bench.config.seed}/{repeat}/{stream.id}").shuffle(order)
                        for rule in order:
                            lines.append(self._line(bench, rule, drafter, stream, (temperature, repeat)))
                            advance()
        settings = {
            "epsilon": self._config.typical.epsilon,
            "delta": self._config.typical.delta,
            "epsilon_temperature": self._config.epsilon_temperature,
        }
        return {
            "outputs": pd.DataFrame(lines).astype({"tv": float, "otherwise": float}),
            "settings": pd.DataFrame([settings], dtype=float),
            "skipped": bench.skipped(),
        }

    def _rules(self, bench: Bench) -> dict[float, list[_Rule]]:
        """Return the rules by temperature, and check all that can be wrong before anything is decoded.

        Raises:
            UsageError: a part that the study cannot work with.
        """
        config, study = bench.config, "study 'typical_acceptance'"
        strict, typical = verifiers.build(config.verifier), Typical(self._config.typical)
        shape = config.structure["name"]
        if bench.simulated:
            raise UsageError(
                f"Bad value target=replay: {study} decodes at several temperatures, which recorded texts do not have; "
                "use a model."
            )
        if not strict.capabilities.lossless or strict.capabilities.greedy_only:
            raise UsageError(
                f"Bad value verifier={config.verifier['name']}: {study} compares with a rule that is lossless at all "
                "temperatures; use verifier=speculative_sampling."
            )
        if shape not in typical.capabilities.handles:
            raise UsageError(
                f"Bad value structure={shape}: study.typical handles {', '.join(sorted(typical.capabilities.handles))}."
            )
        if drafters.get(config.drafter["name"]).capabilities.needs_reference or config.drafter["name"] == "none":
            raise UsageError(
                f"Bad value drafter={config.drafter['name']}: {study} needs one that proposes at any temperature; use "
                "another."
            )
        lowest = [_Rule("plain", NO_EPSILON, strict.for_greedy()), _Rule("greedy", NO_EPSILON, strict.for_greedy())]
        rules: dict[float, list[_Rule]] = {0.0: lowest}
        usual = self._config.typical.epsilon
        for temperature in sorted({*self._config.temperatures, self._config.epsilon_temperature}):
            rules[temperature] = [
                _Rule("plain", NO_EPSILON, strict),
                _Rule("rejection", NO_EPSILON, strict),
                _Rule("typical", usual, typical),
            ]
        for epsilon in sorted({*self._config.epsilons} - {usual}):
            swept = Typical(replace(self._config.typical, epsilon=epsilon, delta=None))
            rules[self._config.epsilon_temperature].append(_Rule("typical", epsilon, swept))
        return rules

    def _line(
        self, bench: Bench, rule: _Rule, drafter: Drafter, stream: Stream, at: tuple[float, int]
    ) -> dict[str, Any]:
        """Decode one text at a temperature and repeat, and return its line of `outputs`."""
        target = bench.parts.target
        limit = target.limit(stream.prompt, bench.config.measurement.limit)
        output = self._decode(bench, rule, drafter, stream, at, limit)
        bench.clock.synchronize()
        tv, otherwise = departures(output, rule.verifier)
        return {
            "rule": rule.name,
            "temperature": at[0],
            "epsilon": rule.epsilon,
            "repeat": at[1],
            "stream": stream.id,
            "prompt": first_turn(stream.id),
            "category": stream.category,
            "tokens": len(output.tokens),
            "rounds": len(output.rounds),
            "seconds": decoding_seconds(output, bench.clock),
            "log_likelihood": log_likelihood(target, stream.prompt, output.tokens),
            "tv": tv,
            "otherwise": otherwise,
            "offers": sum(bool(each.draft_tokens) for each in output.rounds),
        }

    def _decode(
        self, bench: Bench, rule: _Rule, drafter: Drafter, stream: Stream, at: tuple[float, int], tokens: int
    ) -> Generation:
        parts, seed = bench.parts, bench.config.seed
        temperature, repeat = at
        purpose = f"{rule.name}/{rule.epsilon}/{temperature}/{repeat}"
        arm = parts.baseline if rule.name == "plain" else replace(parts.primary, drafter=drafter)
        request = Request(
            stream.prompt,
            tokens,
            draft_generator=generator_for(seed, stream.id, f"draft/{temperature}/{repeat}"),
            accept_generator=generator_for(seed, stream.id, f"accept/{purpose}", parts.target.device),
        )
        return replace(arm, verifier=rule.verifier).decode(request, bench.clock)

"""Lenient speculative sampling at several leniences (Leviathan et al. 2211.17192, A.5): the alpha of each drafter, and
decoding live, sampled and greedy: tokens per round, time, and what the text loses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.drafters import Drafter, drafters
from specdec.errors import UsageError
from specdec.plan.compositions import composed_parts
from specdec.prompts import first_turn
from specdec.records import Request
from specdec.replay.expected_rounds import agreement
from specdec.sampling import generator_for
from specdec.structures import structures
from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.live_runs import Decoded, StudyArm, interleaved, outputs_of, warm_up
from specdec.verifiers.lenient import Lenient, LenientConfig

Form = Literal["sampled", "greedy"]

PLAIN = 0.0
"""In place of a lenience, of texts that were decoded without drafts."""


@typed
class LenienceConfig:
    name: Literal["lenience"]
    lenient: LenientConfig
    leniences: Annotated[list[Annotated[float, Field(gt=0.0, le=1.0)]], Field(min_length=1)]
    forms: Annotated[list[Form], Field(min_length=1)]
    temperature: Annotated[float, Field(gt=0.0)]
    others: list[str]
    repeats: AtLeastOne


@studies.register("lenience")
class Lenience(Study):
    """Tables:

    `outputs`: every text, as `live_runs.outputs_of` has it with keys form and lenience (PLAIN without drafts) and with
        log_likelihood.
    `alphas`: drafter, own (the run's drafter), form, lenience, stream, prompt, chance (sum over positions of the chance
        that a token drawn from q passes) and positions, along the plain text of the form.
    `settings`: gamma and temperature.
    `skipped`: see `Bench.skipped`.

    Sampled: min(1, p / (l q)), both laws at the study's temperature. Greedy: the drafter proposes its likeliest token
    (it is made for temperature 0), and the rule compares p at the study's temperature with l max p; text without drafts
    is the target's greedy text. All rules of a form alternate on a prompt, in random order.
    """

    def __init__(self, config: LenienceConfig) -> None:
        self._config = config

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        self._check(bench)
        made = {form: self._made(bench, form) for form in self._config.forms}
        streams = bench.texts()
        bench.standardise(self._config.temperature)
        outputs: list[pd.DataFrame] = []
        alphas: list[dict[str, Any]] = []
        for form, drafters_of_form in made.items():
            arms = self._arms(bench, form, drafters_of_form[0][1])
            warm_up(bench, arms, streams[0])
            decoded = list(interleaved(bench, arms, streams, self._config.repeats))
            outputs.append(outputs_of(bench, decoded, likelihood=True))
            for each in decoded:
                if each.repeat == 0 and each.arm.keys["lenience"] == PLAIN:
                    alphas += self._alphas(bench, form, drafters_of_form, each)
        settings = {"gamma": bench.parts.primary.gamma, "temperature": self._config.temperature}
        return {
            "outputs": pd.concat(outputs, ignore_index=True),
            "alphas": pd.DataFrame(alphas),
            "settings": pd.DataFrame([settings], dtype=float),
            "skipped": bench.skipped(),
        }

    def _check(self, bench: Bench) -> None:
        """Check all that can be wrong before anything is decoded.

        Raises:
            UsageError: a part that the study cannot work with.
        """
        values, study = bench.values, "study 'lenience'"
        name, shape = values.drafter["name"], values.structure["name"]
        if bench.simulated:
            raise UsageError(
                f"Bad value target=replay: {study} needs the law of a target, which recorded texts do not "
                "have; use a model."
            )
        if shape not in Lenient.capabilities.handles:
            raise UsageError(f"Bad value structure={shape}: the lenient rule handles chains only; use structure=chain.")
        can = drafters.get(name).capabilities
        if can.needs_reference or can.replay in (None, "calling"):
            raise UsageError(
                f"Bad value drafter={name}: {study} needs one whose alpha can be read off a text at any temperature, "
                "such as small_model; use another."
            )

    @property
    def _leniences(self) -> list[float]:
        """All leniences, from strict on; 1 is always among them, because the others are compared with it."""
        return sorted({1.0, *self._config.leniences}, reverse=True)

    def _made(self, bench: Bench, form: Form) -> list[tuple[str, Drafter]]:
        """Return drafters with their names, the run's own first, made for a form: for greedy text at temperature 0."""
        bench.standardise(0.0 if form == "greedy" else self._config.temperature)
        own = bench.values.drafter
        values = [(str(own["name"]), own), *((name, composed_parts(name)["drafter"]) for name in self._config.others)]
        made = [(name, drafters.build(each, target=bench.parts.target)) for name, each in values]
        structure = bench.parts.primary.structure
        longest = max(len(prompt.tokens) for prompt in bench.parts.prompts.prompts)
        made[0][1].prepare(longest + bench.parts.limit + structure.nodes + 1, structure)
        bench.standardise(0.0)  # as `Bench.texts` expects it
        return made

    def _rule(self, form: Form, lenience: float) -> Lenient:
        return Lenient(replace(self._config.lenient, form=form, lenience=lenience))

    def _arms(self, bench: Bench, form: Form, drafter: Drafter) -> list[StudyArm]:
        """Return plain decoding, and the run's drafter at each lenience."""
        parts = bench.parts
        plain = replace(parts.baseline, verifier=self._rule(form, 1.0))
        arms = [StudyArm({"form": form, "lenience": PLAIN}, plain, draws=form)]
        for lenience in self._leniences:
            arm = replace(parts.primary, drafter=drafter, verifier=self._rule(form, lenience))
            arms.append(StudyArm({"form": form, "lenience": lenience}, arm, draws=form))
        return arms

    def _alphas(
        self, bench: Bench, form: Form, made: Sequence[tuple[str, Drafter]], plain: Decoded
    ) -> list[dict[str, Any]]:
        """Return lines of `alphas` along one text: one for each drafter and lenience."""
        chain, target, lines = structures.build({"name": "chain", "gamma": 1}), bench.parts.target, []
        stream, text = plain.stream, plain.output.tokens
        for place, (name, drafter) in enumerate(made):
            for lenience in self._leniences:
                generator = generator_for(bench.plan.seed, stream.id, "alpha")
                request = Request(stream.prompt, len(text), draft_generator=generator)
                along = agreement(drafter, target, chain, text, request, rule=self._rule(form, lenience))
                lines.append(
                    {"drafter": name, "own": place == 0, "form": form, "lenience": lenience, "stream": stream.id}
                    | {
                        "prompt": first_turn(stream.id),
                        "chance": float(along.beta.sum()),
                        "positions": int(along.proposed.sum()),
                    }
                )
        return lines

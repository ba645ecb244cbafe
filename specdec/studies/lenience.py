"""Lenient speculative sampling at several leniences (Leviathan et al. 2211.17192, A.5): the alpha of each drafter, and
decoding live, sampled and greedy: tokens per round, time, and what the text loses.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.analysis.studies.lenience import PLAIN, STRICT
from specdec.config import AtLeastOne, Named, typed
from specdec.drafters import Drafter, drafters
from specdec.errors import UsageError
from specdec.plan.compositions import composed_parts
from specdec.prompts import first_turn
from specdec.records import Request
from specdec.replay.expected_rounds import TextReplay
from specdec.replay.walk import TextReading
from specdec.sampling import generator_for
from specdec.structures.chain import Chain
from specdec.studies.base import Bench, Positive, Study, studies
from specdec.studies.base.live_runs import StudyArm, interleaved, outputs_of, warm_up
from specdec.verifiers.lenient import Lenient, LenientConfig

Form = Literal["sampled", "greedy"]


@studies.register("lenience")
@typed
class Lenience(Study, Named):
    """Tables:

    `outputs`: every text, as `live_runs.outputs_of` has it with keys form and lenience (PLAIN without drafts) and with
        log_likelihood.
    `alphas`: drafter, own (the run's drafter), form, lenience, stream, prompt, chance (sum over positions of the chance
        that a token drawn from q passes) and positions, along the plain text of the form.
    `settings`: gamma and temperature.

    Sampled: min(1, p / (l q)), both laws at the study's temperature. Greedy: the drafter proposes its likeliest token
    (it is made for temperature 0), and the rule compares p at the study's temperature with l max p; text without drafts
    is the target's greedy text. All rules of a form alternate on a prompt, in random order.
    """

    lenient: LenientConfig
    leniences: Annotated[list[Annotated[float, Field(gt=0.0, le=1.0)]], Field(min_length=1)]
    forms: Annotated[list[Form], Field(min_length=1)]
    temperature: Positive
    others: list[str]
    repeats: AtLeastOne

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        parts, own = bench.parts, bench.values.drafter
        bench.needs_model("needs the law of a target, which recorded texts do not have; use a model.", "target")
        shape, can = bench.values.structure["name"], drafters.get(own["name"]).capabilities
        if shape not in Lenient.capabilities.handles:
            raise UsageError(f"Bad value structure={shape}: the lenient rule handles chains only; use structure=chain.")
        if can.needs_reference or can.replay in (None, "calling"):
            why = "needs one whose alpha can be read off a text at any temperature, such as small_model; use another."
            raise bench.unfit(f"drafter={own['name']}", why)
        leniences = sorted({STRICT, *self.leniences}, reverse=True)  # others are compared with the strict rule
        values = {str(own["name"]): own, **{name: composed_parts(name)["drafter"] for name in self.others}}
        capacity = len(parts.longest_prompt.tokens) + parts.limit + parts.primary.structure.nodes + 1
        made: dict[Form, dict[str, Drafter]] = {}
        for form in self.forms:
            bench.standardise(0.0 if form == "greedy" else self.temperature)
            made[form] = {name: drafters.build(each, target=parts.target) for name, each in values.items()}
            made[form][own["name"]].prepare(capacity, parts.primary.structure)
        bench.standardise(0.0)  # as `Bench.texts` expects it
        streams = bench.texts()
        bench.standardise(self.temperature)
        outputs: list[pd.DataFrame] = []
        alphas: list[dict[str, Any]] = []
        for form, of_form in made.items():
            rules = {each: Lenient(replace(self.lenient, form=form, lenience=each)) for each in leniences}
            drafting = replace(parts.primary, drafter=of_form[own["name"]])
            arms = [
                StudyArm({"form": form, "lenience": lenience}, replace(drafting, verifier=rule), draws=form)
                for lenience, rule in rules.items()
            ]
            plain = StudyArm({"form": form, "lenience": PLAIN}, replace(parts.baseline, verifier=rules[STRICT]), form)
            warm_up(bench, [plain, *arms], streams[0])
            decoded = list(interleaved(bench, [plain, *arms], streams, self.repeats))
            outputs.append(outputs_of(bench, decoded, likelihood=True))
            # The chances that tokens of each drafter pass each rule along the plain text.
            for each in (each for each in decoded if each.repeat == 0 and each.arm is plain):
                stream, text, reading = each.stream, each.output.tokens, TextReading(parts.target)
                for (name, drafter), (lenience, rule) in product(of_form.items(), rules.items()):
                    generator = generator_for(bench.plan.seed, stream.id, "alpha")
                    request = Request(stream.prompt, len(text), draft_generator=generator)
                    along = TextReplay(drafter, parts.target, Chain(1), text, request, reading).agreement(rule)
                    keys = {"drafter": name, "own": name == own["name"], "form": form, "lenience": lenience}
                    place = {"stream": stream.id, "prompt": first_turn(stream.id)}
                    chances = {"chance": float(along.beta.sum()), "positions": int(along.proposed.sum())}
                    alphas.append(keys | place | chances)
        settings = pd.DataFrame([{"gamma": parts.primary.gamma, "temperature": self.temperature}], dtype=float)
        texts = pd.concat(outputs, ignore_index=True)
        return {"outputs": texts, "alphas": pd.DataFrame(alphas), "settings": settings}

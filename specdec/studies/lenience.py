"""Lenient speculative sampling at several leniences (Leviathan et al. 2211.17192, A.5): the alpha of each drafter, and
decoding live, sampled and greedy: tokens per round, time, and what the text loses.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.drafters import Drafter, drafters
from specdec.errors import UsageError
from specdec.plan.compositions import composed_parts
from specdec.prompts import first_turn
from specdec.records import Generation, Request
from specdec.replay.expected_rounds import agreement
from specdec.sampling import generator_for
from specdec.session.output_quality import log_likelihood
from specdec.structures import structures
from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.live_runs import WARM, decoding_seconds, departures
from specdec.text.streams import Stream
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


@dataclass(frozen=True)
class _Cell:
    """One form at one lenience, or plain decoding."""

    form: Form
    lenience: float
    rule: Lenient
    drafter: Drafter | None


@studies.register("lenience")
class Lenience(Study):
    """Tables:

    `outputs`: a line for every text: form, lenience (PLAIN without drafts), repeat, stream, prompt, category, tokens,
        rounds, seconds (prefill apart), draft_s, verify_s, offered (draft tokens), accepted, rejected, log_likelihood
        (nats, of the whole text, under the target at temperature 1), tv (total variation of the emitted law from the
        target's, summed over tokens), otherwise (chance of a decision that speculative sampling would not have made,
        summed over rounds) and offers (rounds with a proposal).
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
        self._at(bench, self._config.temperature)
        lines: list[dict[str, Any]] = []
        alphas: list[dict[str, Any]] = []
        each = len(self._leniences) + 1
        with bench.progress("decoding", len(made) * len(streams) * self._config.repeats * each) as advance:
            for form, made_here in made.items():
                cells = self._cells(form, made_here[0][1])
                for cell in cells:
                    self._decode(bench, cell, streams[0], 0, WARM)
                for repeat in range(self._config.repeats):
                    for stream in streams:
                        order = list(cells)
                        random.Random(f"{bench.config.seed}/{repeat}/{stream.id}").shuffle(order)
                        for cell in order:
                            output = self._decode(bench, cell, stream, repeat)
                            lines.append(self._line(bench, cell, stream, repeat, output))
                            if cell.drafter is None and repeat == 0:
                                alphas += self._alphas(bench, form, made_here, stream, output)
                            advance()
        settings = {"gamma": bench.parts.primary.gamma, "temperature": self._config.temperature}
        return {
            "outputs": pd.DataFrame(lines).astype({"tv": float, "otherwise": float}),
            "alphas": pd.DataFrame(alphas),
            "settings": pd.DataFrame([settings], dtype=float),
            "skipped": bench.skipped(),
        }

    def _check(self, bench: Bench) -> None:
        """Check all that can be wrong before anything is decoded.

        Raises:
            UsageError: a part that the study cannot work with.
        """
        config, study = bench.config, "study 'lenience'"
        name, shape = config.drafter["name"], config.structure["name"]
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

    def _at(self, bench: Bench, temperature: float) -> None:
        target = bench.parts.target
        target.standardise(replace(target.sampling, temperature=temperature))

    def _made(self, bench: Bench, form: Form) -> list[tuple[str, Drafter]]:
        """Return drafters with their names, the run's own first, made for a form: for greedy text at temperature 0."""
        self._at(bench, 0.0 if form == "greedy" else self._config.temperature)
        own = bench.config.drafter
        values = [(str(own["name"]), own), *((name, composed_parts(name)["drafter"]) for name in self._config.others)]
        made = [(name, drafters.build(each, target=bench.parts.target)) for name, each in values]
        structure = bench.parts.primary.structure
        longest = max(len(prompt.tokens) for prompt in bench.parts.prompts.prompts)
        made[0][1].prepare(longest + bench.config.measurement.limit + structure.nodes + 1, structure)
        self._at(bench, 0.0)  # as `Bench.texts` expects it
        return made

    def _rule(self, form: Form, lenience: float) -> Lenient:
        return Lenient(replace(self._config.lenient, form=form, lenience=lenience))

    def _cells(self, form: Form, drafter: Drafter) -> list[_Cell]:
        """Return plain decoding, and the run's drafter at each lenience."""
        plain = _Cell(form, PLAIN, self._rule(form, 1.0), None)
        return [plain, *(_Cell(form, each, self._rule(form, each), drafter) for each in self._leniences)]

    def _alphas(
        self, bench: Bench, form: Form, made: Sequence[tuple[str, Drafter]], stream: Stream, plain: Generation
    ) -> list[dict[str, Any]]:
        """Return lines of `alphas` along one text: one for each drafter and lenience."""
        chain, target, lines = structures.build({"name": "chain", "gamma": 1}), bench.parts.target, []
        for place, (name, drafter) in enumerate(made):
            for lenience in self._leniences:
                generator = generator_for(bench.config.seed, stream.id, "alpha")
                request = Request(stream.prompt, len(plain.tokens), draft_generator=generator)
                rule = self._rule(form, lenience)
                along = agreement(drafter, target, chain, plain.tokens, request, rule=rule)
                lines.append(
                    {"drafter": name, "own": place == 0, "form": form, "lenience": lenience, "stream": stream.id}
                    | {"prompt": first_turn(stream.id), "chance": sum(along.beta), "positions": sum(along.proposed)}
                )
        return lines

    def _line(self, bench: Bench, cell: _Cell, stream: Stream, repeat: int, output: Generation) -> dict[str, Any]:
        """Return a text's line of `outputs`."""
        clock = bench.clock
        clock.synchronize()
        tv, otherwise = departures(output, cell.rule)
        return {
            "form": cell.form,
            "lenience": cell.lenience,
            "repeat": repeat,
            "stream": stream.id,
            "prompt": first_turn(stream.id),
            "category": stream.category,
            "tokens": len(output.tokens),
            "rounds": len(output.rounds),
            "seconds": decoding_seconds(output, clock),
            "draft_s": sum(clock.seconds(each.marks.start, each.marks.drafted) for each in output.rounds),
            "verify_s": sum(clock.seconds(each.marks.drafted, each.marks.verified) for each in output.rounds),
            "offered": sum(len(each.draft_tokens) for each in output.rounds),
            "accepted": sum(each.accepted for each in output.rounds),
            "rejected": sum(each.rejected for each in output.rounds),
            "log_likelihood": log_likelihood(bench.parts.target, stream.prompt, output.tokens),
            "tv": tv,
            "otherwise": otherwise,
            "offers": sum(bool(each.draft_tokens) for each in output.rounds),
        }

    def _decode(self, bench: Bench, cell: _Cell, stream: Stream, repeat: int, tokens: int | None = None) -> Generation:
        parts, seed = bench.parts, bench.config.seed
        arm = parts.baseline if cell.drafter is None else replace(parts.primary, drafter=cell.drafter)
        purpose = f"accept/{cell.form}/{cell.lenience}/{repeat}"
        request = Request(
            stream.prompt,
            parts.target.limit(stream.prompt, tokens or bench.config.measurement.limit),
            draft_generator=generator_for(seed, stream.id, f"draft/{cell.form}/{repeat}"),
            accept_generator=generator_for(seed, stream.id, purpose, parts.target.device),
        )
        return replace(arm, verifier=cell.rule).decode(request, bench.clock)

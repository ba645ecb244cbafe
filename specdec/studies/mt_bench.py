"""Answers to MT-Bench's questions for FastChat's judge (Zheng et al., 2306.05685), by the run's drafter and rule and by
plain decoding. A rule that is not lossless writes other texts, which a likelihood alone does not judge.
"""

import json
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from specdec.analysis.studies.mt_bench import PLAIN
from specdec.config import AtLeastOne, Named, typed
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.prompts import Prompt, prompts
from specdec.prompts.files import FileSet
from specdec.session.parts import prepare
from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.live_runs import Decoded, StudyArm, warm_up
from specdec.text.streams import Stream
from specdec.text.writing import write_atomically

FOLDER = "data/mt_bench"
"""The folder below the run's, as FastChat (lm-sys/FastChat) names it below fastchat/llm_judge. It has `question.jsonl`
and for each model `model_answer/MODEL_ID.jsonl`, all ASCII, because FastChat opens files in the machine's encoding."""
NO_ANSWER = "ERROR"
"""The words that FastChat writes in the place of a turn that could not be answered."""

Temperature = Annotated[float, Field(ge=0.0)]


@studies.register("mt_bench")
@typed
class MtBench(Study, Named):
    """Files, below FOLDER of the run's folder: `model_answer/MODEL_ID.jsonl` for the drafter and for plain decoding,
    and `question.jsonl` with the questions that were answered, as FastChat has them.

    Tables:

    `outputs`: a line for every turn that was answered, as `live_runs.Decoded` has it with key method ("plain" or the
        drafter); temperature, prompt (the question), choice and turn (1, 2).
    `answers`: a line for every file: method, verifier, model_id, path (below the run's folder), questions, missing
        (turns beyond the target's context, which stand as NO_ANSWER) and chat (a chat template was applied).

    The second turn of each method follows that method's own first answer. Both answer a question in random order.
    """

    model_id: Annotated[str, Field(pattern=r"^[^/\s][^/]*$")] | None
    temperatures: dict[str, Temperature]
    other_temperature: Temperature
    force_temperature: Temperature | None
    choices: AtLeastOne

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        asked = self._questions(bench)
        by_temperature: dict[float, list[Prompt]] = defaultdict(list)
        for prompt in asked:
            usual = self.temperatures.get(prompt.category, self.other_temperature)
            by_temperature[usual if self.force_temperature is None else self.force_temperature].append(prompt)
        parts, values, folder = bench.parts, bench.values, bench.folder / FOLDER
        drafter, rule, hottest = values.drafter["name"], bench.plan.chosen.rule, max(by_temperature)
        bench.needs_model("writes texts, which only a model does; use a model.", "target")
        if drafter == "none" or drafters.get(drafter).capabilities.needs_reference:
            why = "needs one that proposes, and at any temperature; use another. Plain decoding answers in every run."
            raise bench.unfit(f"drafter={drafter}", why)
        if rule.capabilities.greedy_only and hottest > 0:
            raise UsageError(
                f"Bad value verifier={values.verifier['name']}: it is right only at temperature 0, and study "
                f"'mt_bench' answers at up to {hottest:g}; set study.force_temperature=0.0."
            )
        prepare(parts)
        capacity = parts.target.context_length + parts.primary.structure.nodes + 1
        lines: list[dict[str, Any]] = []
        given: dict[str, list[dict[str, Any]]] = {PLAIN: [], drafter: []}
        with bench.progress("answering", len(asked) * len(given)) as advance:
            for temperature, several in sorted(by_temperature.items()):
                drafting = replace(parts.primary, drafter=bench.at_temperature(temperature, capacity))
                here = rule.for_greedy() if temperature == 0 else rule  # finds nothing drafted in plain decoding
                both = ((PLAIN, parts.baseline), (drafter, drafting))
                arms = [StudyArm({"method": method}, replace(arm, verifier=here)) for method, arm in both]
                warm_up(bench, arms, _turn(several[0]))
                for prompt in several:
                    order = list(arms)
                    random.Random(f"{bench.plan.seed}/{prompt.id}").shuffle(order)
                    for arm in order:
                        choices = self._answered(bench, arm, prompt, temperature, lines)
                        answer = {"question_id": asked[prompt]["question_id"], "choices": choices}
                        given[arm.keys["method"]].append(answer | {"tstamp": time.time()})
                        advance()
        wanted = self.choices * sum(1 + len(prompt.follow_ups) for prompt in asked)
        questions = (json.dumps(question) + "\n" for question in asked.values())
        write_atomically(folder / "question.jsonl", "".join(questions))
        target, written = PurePath(bench.plan.model).name, []
        for method, answers in given.items():
            own = f"{target}-{method}-{values.verifier['name']}"
            name = f"{self.model_id or target}-{PLAIN}" if method == PLAIN else self.model_id or own
            path, records = folder / "model_answer" / f"{name}.jsonl", list[str]()
            for answer in sorted(answers, key=lambda each: (isinstance(each["question_id"], str), each["question_id"])):
                told = json.dumps([name, *answer.values()])
                about = {"answer_id": uuid.uuid5(uuid.NAMESPACE_URL, told).hex, "model_id": name}
                records.append(json.dumps({"question_id": answer["question_id"], **about, **answer}) + "\n")
            write_atomically(path, "".join(records))
            line = {"method": method, "verifier": values.verifier["name"], "model_id": name}
            line["path"] = str(path.relative_to(bench.folder))
            line |= {"questions": len(asked), "missing": wanted - sum(each["method"] == method for each in lines)}
            written.append(line | {"chat": parts.prompts.provenance["chat_template"] == "applied"})
        return {"outputs": pd.DataFrame(lines), "answers": pd.DataFrame(written)}

    def _questions(self, bench: Bench) -> dict[Prompt, dict[str, Any]]:
        """Return the questions by prompt, as FastChat's file has them."""
        values = bench.plan.config["prompts"]
        source = prompts.build(values)
        if not isinstance(source, FileSet) or source.id_field is None:
            raise UsageError(
                f"Bad value prompts={values['name']}: study 'mt_bench' answers questions that have an id; use "
                "prompts=mt_bench prompts.path=question.jsonl."
            )
        records, id_field = source.records(), source.id_field
        found: dict[Prompt, dict[str, Any]] = {}
        for prompt in bench.parts.prompts.prompts:
            record = records[prompt.id]
            turns = source.turns(prompt.id, record)[1]
            question = {"question_id": record[id_field], "category": prompt.category, "turns": [*turns]}
            found[prompt] = question | {key: record[key] for key in ("reference",) if key in record}
        return found

    def _answered(
        self, bench: Bench, arm: StudyArm, prompt: Prompt, temperature: float, lines: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Answer a question's turns `choices` times; return FastChat's choices, and add a line of `outputs` a turn."""
        choices: list[dict[str, Any]] = []
        for choice in range(self.choices):
            turns: list[str] = []
            answers: dict[str, tuple[int, ...]] = {}
            for number, turn in enumerate(bench.parts.prompts.turns(prompt, answers), 1):
                stream = _turn(turn)
                output = arm.decode(bench, stream, choice)
                line = Decoded(arm, stream, choice, output).line(bench.clock)
                place = {"prompt": prompt.id, "choice": choice, "turn": number}
                lines.append({**line, **place, "temperature": temperature})
                turns.append(bench.parts.prompts.said(turn, output.tokens))
                answers[turn.id] = output.tokens
                if arm.keys["method"] == PLAIN:
                    bench.written.append(replace(stream, generated=output.tokens))
            missing = 1 + len(prompt.follow_ups) - len(turns)
            choices.append({"index": choice, "turns": turns + [NO_ANSWER] * missing})
        return choices


def _turn(prompt: Prompt) -> Stream:
    return Stream(prompt.id, prompt.category, prompt.tokens, ())

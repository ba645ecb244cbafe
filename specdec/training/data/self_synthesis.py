"""Questions that a chat model makes up itself: it goes on with its chat template where the user's turn begins (Magpie,
2406.08464), so that no data set is needed. Repeats, loops and texts of given prompt files are left out.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.progress import tell
from specdec.prompts import Entry
from specdec.prompts.base.loading import Renderer
from specdec.text.document_store import DocumentStore
from specdec.text.lines import decoded, file_digest, filled_lines
from specdec.text.repetition import loop_share
from specdec.text.streams import Stream
from specdec.training.data.self_distillation import SelfDistillation
from specdec.training.data_recipes import SelfSynthesisConfig

_MARK = "specdec"  # stands for the question in the template
_WORD = re.compile(r"\w+")


class SelfSynthesis:
    """Has a target ask questions and answer them, and keeps those that are worth learning from.

    Attributes:
        provenance: the names of the files that are kept out, by their sha256.
        left_out: how many questions and answers are left out so far, by reason.
    """

    def __init__(self, config: SelfSynthesisConfig, writer: SelfDistillation) -> None:
        """Have `writer`'s target answer the questions. Raises UsageError: a target without a chat template; a file that
        is kept out is missing, empty or not UTF-8.
        """
        self.config, self.writer, self.tokenizer = config, writer, writer.tokenizer
        named = {path: f"Prompt file data.source.keep_out={path}" for path in config.keep_out}
        self.provenance = {file_digest(Path(path).expanduser(), named[path]): Path(path).name for path in named}
        self._kept_out = {
            phrase for path in named for text in _texts(path, named[path]) for phrase in self._phrases(text)
        }
        self.left_out: Counter[str] = Counter()
        template = Renderer(self.tokenizer, writer.chat, writer.longest, None).prompt(Entry("", "", (_MARK,))).text
        self._before, mark, _ = template.partition(_MARK)
        if not writer.chat or not mark:
            raise UsageError(
                "data.source.name=self_synthesis needs a tokenizer with a chat template that "
                "shows what a user says: use a chat model, or another head_data@data."
            )

    def documents(self, folder: Path) -> DocumentStore:
        """Write the questions and answers that are not written yet, and return those that are kept as documents.
        `folder` is the place of both, which an interrupted run goes on with. Raises UsageError: fewer than two
        questions are kept, or none leaves room for an answer.
        """
        writer, config = self.writer, self.writer.config
        asker = SelfDistillation(
            replace(config, new_tokens=self.config.new_tokens, temperature=self.config.temperature),
            writer.target, writer.seed, writer.longest,
        )  # fmt: skip
        before = tuple(self.tokenizer(self._before, add_special_tokens=False)["input_ids"])
        count = sum(config.counts.values())
        questions: list[str] = []
        earlier: set[tuple[str, ...]] = set()  # phrases of these questions
        what = "Tokens of questions that the target asks"
        for _, stream in asker.written({"train": [before] * count}, folder / "questions", what):
            question = self.tokenizer.decode(stream.generated, skip_special_tokens=True).strip()
            phrases = self._phrases(question)
            fault = "without an end" if not stream.ended else "empty" if not question else self._fault(question, stream)
            if not fault and phrases & earlier:
                fault = "repeated"
            if fault:
                self.left_out[f"questions {fault}"] += 1
            else:
                questions.append(question)
                earlier |= phrases
        left_out = ", ".join(f"{number} {why.removeprefix('questions ')}" for why, number in self.left_out.items())
        tell(f"The target asked {count} questions, of which {len(questions)} are used; left out: {left_out or 'none'}.")
        prompts = writer.split(writer.asked(questions, rendered=True))

        def keeps(answer: Stream) -> bool:
            fault = self._fault(self.tokenizer.decode(answer.generated, skip_special_tokens=True), answer)
            if fault:
                self.left_out[f"answers {fault}"] += 1
            return not fault

        return writer.documents(prompts, {"of": self.provenance, "left_out": self.left_out}, folder, keeps)

    def _fault(self, text: str, stream: Stream) -> str:
        if self._phrases(text) & self._kept_out:
            return "of data.source.keep_out"
        looping = loop_share(stream.generated, self.config.repetition_period) >= self.config.repetition_share
        return "in a loop" if looping else ""

    def _phrases(self, text: str) -> set[tuple[str, ...]]:
        """Return each `words` words in a row of a text, in lower case; of a shorter text all its words."""
        words, size = _WORD.findall(text.lower()), self.config.words
        return {tuple(words[place : place + size]) for place in range(max(1, len(words) - size + 1))} - {()}


def _texts(path: str, what: str) -> Iterator[str]:
    """Yield every text of a prompt file: of a line of JSON all that it holds, at any depth; another line as it is."""
    for number, raw in filled_lines(Path(path).expanduser(), what):
        line = decoded(f"{what}:{number}", raw, "convert the file")
        try:
            yield from _strings(json.loads(line))
        except ValueError:
            yield line


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(part)

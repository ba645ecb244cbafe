"""Text that the target writes itself: it continues the beginnings of documents, so that heads learn its own law and not
that of its training text (self-distillation; Medusa, 2401.10774, section 2.3.2), or answers what users ask. A chat
model makes up the questions, too: it goes on with its template where the user's turn begins (Magpie, 2406.08464).

Kept as recorded streams, a file per batch: an interrupted run goes on with the next file, and streams can be replayed.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from specdec.errors import UsageError
from specdec.models.cache import CACHE
from specdec.progress import stage, tell
from specdec.prompts import Entry
from specdec.prompts.base.loading import Renderer
from specdec.sampling import sample
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.text.document_store import Documents, DocumentStore, Encoded, batched, write_documents
from specdec.text.lines import decoded, file_digest, filled_lines
from specdec.text.repetition import loop_share
from specdec.text.sources import PARTS, Part
from specdec.text.streams import Stream, read_streams, write_streams
from specdec.training.data_recipes import SelfDistillationConfig, SelfSynthesisConfig

logger = logging.getLogger(__name__)

Prompts = dict[Part, list[tuple[int, ...]]]  # the tokens of the prompts of each part

_CHARACTERS = 4  # of a token, about
_HELD_OUT = 10  # the prompts of a set of which one is held out, at most
_MARK = "specdec"  # stands for the question in the template
_WORD = re.compile(r"\w+")


def _pieces(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yield texts in pieces of whole lines, each just longer than `characters`; a shorter text is a piece."""
    for text in texts:
        start = end = 0
        for line in text.splitlines(keepends=True):
            end += len(line)
            if end - start > characters:
                yield text[start:end]
                start = end
        if not start and text.strip():
            yield text


def _cut_anywhere(documents: Documents, count: int, length: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Take `length` tokens, `count` times, from anywhere in the documents; a long document is taken more often."""
    room = np.maximum(documents.lengths - length + 1, 0)
    if not room.sum():
        return []
    places = rng.integers(int(room.sum()), size=count)
    ends = np.cumsum(room)
    chosen = np.searchsorted(ends, places, side="right")
    starts = documents.starts[chosen] + places - (ends - room)[chosen]
    return [tuple(map(int, documents.tokens[start : start + length])) for start in starts]


def _before_answers(documents: Documents, count: int, longest: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Take conversations in random order, each up to one of its answers that at most `longest` tokens precede."""
    found: list[tuple[int, ...]] = []
    for number in rng.permutation(len(documents)):
        if len(found) == count:
            break
        document = documents[int(number)]
        answers = np.flatnonzero(document.scored[1:] & ~document.scored[:-1]) + 1
        answers = answers[answers <= longest]
        if len(answers):
            found.append(tuple(map(int, document.tokens[: int(rng.choice(answers))])))
    return found


def scored_behind(prompt: Sequence[int], answer: Iterable[int]) -> Encoded:
    """Return a prompt and its answer, the tokens to be predicted, as a document."""
    tokens = np.array([*prompt, *answer], dtype=np.uint32)
    return Encoded(tokens, np.arange(len(tokens)) >= len(prompt))


class SelfDistillation:
    """Makes prompts of texts, continues them with the target, and returns documents whose continuation is scored."""

    def __init__(self, config: SelfDistillationConfig, target: Target, seed: int, longest: int) -> None:
        """Write texts of at most `longest` tokens, beginnings and continuations together. Raises UsageError: a target
        that is no causal language model, or lengths that are more than that together.
        """
        if not isinstance(target, Causal):
            raise UsageError("data.generated needs a target that is a model: use target=causal, or set it to null.")
        if config.prefix_tokens + config.new_tokens > longest:
            raise UsageError(
                f"data.generated.prefix_tokens={config.prefix_tokens} and new_tokens={config.new_tokens} are "
                f"more than data.sequence_length={longest} together: lower them, or raise that."
            )
        self.config, self.target, self.seed, self.longest = config, target, seed, longest
        self.tokenizer = target.tokenizer
        self.chat = getattr(self.tokenizer, "chat_template", None) is not None  # the target answers what users ask

    def beginnings(self, store: DocumentStore, turns: bool) -> Prompts:
        """Return beginnings of documents, as many as asked for: of conversations (`turns`) up to one of their answers,
        of others cut anywhere. Raises UsageError: no document is long enough, or no conversation short enough.
        """
        found: Prompts = {}
        for number, (part, count) in enumerate(self.config.counts.items()):
            documents, rng = getattr(store, part), np.random.default_rng([self.seed, 5, number])
            if turns:
                found[part] = _before_answers(documents, count, self.longest - self.config.new_tokens, rng)
                wanted = "a conversation whose beginning fits data.sequence_length: raise it"
            else:
                found[part] = _cut_anywhere(documents, count, self.config.prefix_tokens, rng)
                wanted = "longer than data.generated.prefix_tokens: lower it"
            if not found[part]:
                kind = "training" if part == "train" else "held-out"
                raise UsageError(f"No {kind} document of data.source is {wanted}, or give more text.")
        return found

    def asked(self, texts: Iterable[str], rendered: bool) -> list[tuple[int, ...]]:
        """Return texts as a user asks them, `rendered` by the tokenizer's chat template or as they are. Those that
        leave no room for an answer are left out. Raises UsageError: none has room.
        """
        room = self.longest - self.config.new_tokens
        renderer = Renderer(self.tokenizer, rendered, room, None)
        prompts = [renderer.prompt(Entry("", "", (text,))).tokens for text in texts]
        found = [prompt for prompt in prompts if 0 < len(prompt) <= room]
        if not found:
            shortest = f", and the shortest has {min(map(len, prompts))}" if prompts else ""
            raise UsageError(
                f"None of the {len(prompts)} prompts of data.source can be used: one may have {room} tokens, "
                f"data.sequence_length={self.longest} less data.generated.new_tokens={self.config.new_tokens}"
                f"{shortest}. Raise the first, lower the second or data.generated.prefix_tokens, or give other prompts."
            )
        if (left_out := len(prompts) - len(found)) > 0:
            tell(f"{left_out} of {len(prompts)} prompts are left out: more than {room} tokens, or none.")
        return found

    def pieces(self, texts: Mapping[Part, Iterable[str]]) -> dict[Part, list[str]]:
        """Return pieces of texts that begin with a line and have `prefix_tokens` tokens at most. Each piece is as
        likely as any other; the texts are read once, and only what is chosen is encoded.
        """
        found, longest = dict[Part, list[str]](), self.config.prefix_tokens
        for number, (part, count) in enumerate(self.config.counts.items()):
            rng = np.random.default_rng([self.seed, 5, number])
            chosen: list[str] = []
            for seen, piece in enumerate(_pieces(texts[part], _CHARACTERS * longest)):
                place = seen if seen < count else int(rng.integers(seen + 1))
                if place < count:
                    chosen[place : place + 1] = [piece]
            tokens = (self.tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in chosen)
            found[part] = [self.tokenizer.decode(ids[:longest]) for ids in tokens]
        return found

    def split(self, prompts: list[tuple[int, ...]]) -> Prompts:
        """Return prompts in random order, up to one in ten held out. Raises UsageError: there is only one."""
        if len(prompts) < 2:
            raise UsageError(
                "One prompt of data.source can be used, and a training needs two: one is held out. Give more."
            )
        order = [prompts[place] for place in np.random.default_rng([self.seed, 5]).permutation(len(prompts))]
        held = max(1, min(self.config.heldout_texts, len(order) // _HELD_OUT))
        return {"train": order[held:][: self.config.texts], "heldout": order[:held]}

    def documents(
        self,
        prompts: Prompts,
        manifest: Mapping[str, Any],
        folder: Path,
        keeps: Callable[[Stream], bool] = lambda stream: True,
    ) -> DocumentStore:
        """Write the texts that are not written yet to a folder, that of this very target, configuration and source; and
        return as documents those that `keeps` takes. Their manifest says `manifest` besides how they were written.
        """
        texts = self.written(prompts, folder, "Tokens that the target writes")
        documents = ((part, scored_behind(stream.prompt, stream.generated)) for part, stream in texts if keeps(stream))
        return write_documents(folder, documents, {"generated": asdict(self.config), **manifest})

    def written(self, prompts: Prompts, folder: Path, what: str) -> Iterator[tuple[Part, Stream]]:
        """Write what is not written yet after prompts to a folder, a file for each batch, then yield all texts with
        their parts; `what` is the name of this stage, for the user.
        """
        batches = [
            (folder / f"{part}_{number:05}.jsonl", part, number, several)
            for part in prompts
            # By length, so that the texts of a batch need little padding.
            for number, several in enumerate(batched(sorted(prompts[part], key=len), self.config.batch))
        ]
        missing = [batch for batch in batches if not batch[0].exists()]
        if missing:
            logger.info("The target writes %d batches of text (of %d) to %s", len(missing), len(batches), folder)
        shorter = "data.generated.texts=N and new_tokens=N write less"
        total, left = (self.config.new_tokens * sum(len(batch[3]) for batch in some) for some in (batches, missing))
        with stage(what, total=total, shorter=shorter) as under_way:
            under_way.go_on_from(total - left)
            for path, part, number, several in missing:
                words = np.random.SeedSequence([self.seed, 6, PARTS.index(part), number]).generate_state(2)
                written = self._continued(several, int(words[0]) << 31 ^ int(words[1]), under_way.advance)
                streams = []
                for place, (prompt, text) in enumerate(zip(several, written, strict=True), number * self.config.batch):
                    ended = text[-1] in self.target.end_tokens
                    streams.append(Stream(f"{part}/{place}", "generated", prompt, tuple(text), ended=ended))
                write_streams(path, streams)
        for path, part, *_ in batches:
            for stream in read_streams(path).streams:
                yield part, stream

    @torch.inference_mode()
    def _continued(self, prompts: list[tuple[int, ...]], seed: int, wrote: Callable[[int], None]) -> list[list[int]]:
        """Return what the target writes after prompts. A text that has ended leaves the batch. `wrote` is called with
        the number of tokens that were written, or need no more be written.
        """
        model, device, config = self.target.model, self.target.device, self.config
        width, generator = max(map(len, prompts)), torch.Generator(self.target.device).manual_seed(seed)
        tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        places = (mask.cumsum(1) - 1).clamp_min(0)
        past = {CACHE: DynamicCache(config=model.config), "use_cache": True}
        if width > 1:
            # Without the output layer, of which torch would make a copy for each text.
            model.base_model(tokens[:, :-1], attention_mask=mask[:, :-1], position_ids=places[:, :-1], **past)
        last, place = tokens[:, -1:], places[:, -1:]
        written: list[list[int]] = [[] for _ in prompts]
        going = list(range(len(prompts)))  # the texts of the rows
        for left in reversed(range(config.new_tokens)):
            logits = model(last, attention_mask=mask, position_ids=place, **past).logits[:, -1]
            precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
            law = (precise / (config.temperature or 1.0)).softmax(-1)
            chosen = sample(law, generator) if config.temperature else law.argmax(-1)
            for text, token in zip(going, chosen.tolist(), strict=True):
                written[text].append(token)
            kept = [row for row, text in enumerate(going) if written[text][-1] not in self.target.end_tokens]
            wrote(len(going) + left * (len(going) - len(kept)))
            if not kept:
                break
            if len(kept) < len(going):
                rows, going = torch.tensor(kept, device=device), [going[row] for row in kept]
                past[CACHE].batch_select_indices(rows)
                chosen, mask, place = chosen[rows], mask[rows], place[rows]
            last, place = chosen.unsqueeze(1), place + 1
            mask = torch.cat([mask, torch.ones_like(last)], 1)
        return written


class SelfSynthesis:
    """Has a target ask questions and answer them; repeats, loops and texts of given prompt files are left out."""

    def __init__(self, config: SelfSynthesisConfig, writer: SelfDistillation) -> None:
        """Raises UsageError: no chat template; a file that is kept out is missing, empty or not UTF-8."""
        self.config, self.writer, self.tokenizer = config, writer, writer.tokenizer
        named = {path: f"Prompt file data.source.keep_out={path}" for path in config.keep_out}
        # The names of the files that are kept out, by their sha256.
        self.provenance = {file_digest(Path(path).expanduser(), named[path]): Path(path).name for path in named}
        self._kept_out = {
            phrase for path in named for text in _texts(path, named[path]) for phrase in self._phrases(text)
        }
        self.left_out: Counter[str] = Counter()  # questions and answers so far, by reason
        template = Renderer(self.tokenizer, writer.chat, writer.longest, None).prompt(Entry("", "", (_MARK,))).text
        self._before, mark, _ = template.partition(_MARK)
        if not writer.chat or not mark:
            raise UsageError(
                "data.source.name=self_synthesis needs a tokenizer with a chat template that "
                "shows what a user says: use a chat model, or another head_data@data."
            )

    def documents(self, folder: Path) -> DocumentStore:
        """Write the questions and answers that `folder` lacks, and return those that are kept as documents. Raises
        UsageError: fewer than two questions are kept, or none leaves room for an answer.
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
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(part)

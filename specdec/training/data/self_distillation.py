"""Text that the target writes itself: it continues the beginnings of documents, so that heads learn its own law and not
that of its training text (self-distillation; Medusa, 2401.10774, section 2.3.2).

Kept as recorded streams, a file per batch: an interrupted run goes on with the next file, and streams can be replayed.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from specdec.errors import UsageError
from specdec.progress import stage
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.text.document_store import PARTS, Documents, DocumentStore, Encoded, Part, write_documents
from specdec.text.streams import Stream, read_streams, write_streams
from specdec.training.data_recipes import SelfDistillationConfig

logger = logging.getLogger(__name__)


class SelfDistillation:
    """Continues documents with the target, and gives them back as documents whose continuation is scored."""

    def __init__(self, config: SelfDistillationConfig, target: Target, seed: int, longest: int) -> None:
        """
        Args:
            longest: the most tokens of a beginning and its continuation together.
        Raises:
            UsageError: a target that is no causal language model, or one without that much context.
        """
        if not isinstance(target, Causal):
            raise UsageError("data.generated needs a target that is a model: use target=causal, or set it to null.")
        if config.prefix_tokens + config.new_tokens > longest:
            raise UsageError(
                f"data.generated.prefix_tokens={config.prefix_tokens} and new_tokens={config.new_tokens} are "
                f"more than data.sequence_length={longest} together: lower them, or raise that."
            )
        self.config, self.target, self.seed, self.longest = config, target, seed, longest

    def documents(self, store: DocumentStore, turns: bool, folder: Path) -> DocumentStore:
        """Write the texts that are not written yet, and return all of them.

        Args:
            store: the documents to continue.
            turns: they are conversations, and are continued where an answer begins; otherwise anywhere.
            folder: the place of the texts of this very target, configuration and source.
        """
        prompts = {part: self._prompts(store, part, turns) for part in PARTS}
        batches = [
            (folder / f"{part}_{number:05}.jsonl", part, number)
            for part in PARTS
            for number in range(math.ceil(len(prompts[part]) / self.config.batch))
        ]
        missing = [batch for batch in batches if not batch[0].exists()]
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
            logger.info("The target writes %d batches of text (of %d) to %s", len(missing), len(batches), folder)
        shorter = "data.generated.texts=N and new_tokens=N write less"
        with stage("the target writes", total=len(batches), shorter=shorter) as under_way:
            under_way.go_on_from(len(batches) - len(missing))
            for path, part, number in missing:
                first = number * self.config.batch
                chosen = prompts[part][first : first + self.config.batch]
                words = np.random.SeedSequence([self.seed, 6, PARTS.index(part), number]).generate_state(2)
                streams = []
                for i, text in enumerate(self._continued(chosen, int(words[0]) << 31 ^ int(words[1]))):
                    end = next((i + 1 for i, token in enumerate(text) if token in self.target.end_tokens), None)
                    name, written = f"{part}/{first + i}", tuple(text[:end])
                    streams.append(Stream(name, "generated", chosen[i], written, ended=end is not None))
                write_streams(path, streams)
                under_way.advance()

        def documents() -> Iterator[tuple[Part, Encoded]]:
            for path, part, _ in batches:
                for stream in read_streams(path).streams:
                    tokens = np.array(stream.prompt + stream.generated, dtype=np.uint32)
                    yield part, Encoded(tokens, np.arange(len(tokens)) >= len(stream.prompt))

        return write_documents(folder, documents(), {"generated": asdict(self.config), "of": store.manifest})

    def _prompts(self, store: DocumentStore, part: Part, turns: bool) -> list[tuple[int, ...]]:
        documents, count = getattr(store, part), getattr(self.config, "texts" if part == "train" else "heldout_texts")
        rng = np.random.default_rng([self.seed, 5, PARTS.index(part)])
        found = (
            _before_answers(documents, count, self.longest - self.config.new_tokens, rng)
            if turns
            else _cut_anywhere(documents, count, self.config.prefix_tokens, rng)
        )
        if not found:
            raise UsageError(
                f"No {'training' if part == 'train' else 'held-out'} document of data.source is "
                + ("a conversation whose beginning fits" if turns else "longer than")
                + (" data.sequence_length: raise it" if turns else " data.generated.prefix_tokens: lower it")
                + ", or give more text."
            )
        return sorted(found, key=len)  # so that the texts of a batch need little padding

    @torch.inference_mode()
    def _continued(self, prompts: list[tuple[int, ...]], seed: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ends = sorted(self.target.end_tokens)
        padding = ends[0] if ends else 0
        tokens = torch.full((len(prompts), width), padding)
        mask = torch.zeros_like(tokens)
        for number, prompt in enumerate(prompts):
            tokens[number, width - len(prompt) :] = torch.tensor(prompt)
            mask[number, width - len(prompt) :] = 1
        how = GenerationConfig(
            do_sample=self.config.temperature > 0,
            temperature=self.config.temperature or 1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self.config.new_tokens,
            eos_token_id=ends or None,
            pad_token_id=padding,
        )
        device = self.target.device
        # transformers draws from the global generator: its state is put back, and the seed is the batch's own.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            written: Tensor = self.target.model.generate(
                tokens.to(device), attention_mask=mask.to(device), generation_config=how
            )
        return written[:, width:].tolist()


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

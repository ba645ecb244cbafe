"""Text that the target writes itself: it continues the beginnings of documents, so that heads learn its own law and not
that of its training text (self-distillation; Medusa, 2401.10774, section 2.3.2).

Kept as recorded streams, a file per batch: an interrupted run goes on with the next file, and streams can be replayed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from specdec.errors import UsageError
from specdec.models.cache import CACHE
from specdec.progress import stage
from specdec.sampling import sample
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.text.document_store import PARTS, DocumentStore, Encoded, Part, write_documents
from specdec.text.encoding import batched
from specdec.text.streams import Stream, read_streams, write_streams
from specdec.training.data.beginnings import Prompts
from specdec.training.data_recipes import SelfDistillationConfig

logger = logging.getLogger(__name__)


class SelfDistillation:
    """Continues prompts with the target, and gives them back as documents whose continuation is scored."""

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

    def documents(
        self,
        prompts: Prompts,
        manifest: Mapping[str, Any],
        folder: Path,
        keeps: Callable[[Stream], bool] = lambda stream: True,
    ) -> DocumentStore:
        """Write the texts that are not written yet, and return all of them.

        Args:
            manifest: what the documents' manifest says besides how the texts were written.
            folder: the place of the texts of this very target, configuration and source.
            keeps: tells of a text if it becomes a document.
        """

        def documents() -> Iterator[tuple[Part, Encoded]]:
            for part, stream in self.written(prompts, folder, "Tokens that the target writes"):
                if keeps(stream):
                    tokens = np.array(stream.prompt + stream.generated, dtype=np.uint32)
                    yield part, Encoded(tokens, np.arange(len(tokens)) >= len(stream.prompt))

        return write_documents(folder, documents(), {"generated": asdict(self.config), **manifest})

    def written(self, prompts: Prompts, folder: Path, what: str) -> Iterator[tuple[Part, Stream]]:
        """Write what is not written yet after prompts, then yield all texts with their parts.

        Args:
            folder: the place of the texts, a file for each batch.
            what: the name of this stage, for the user.
        """
        batches = [
            (folder / f"{part}_{number:05}.jsonl", part, number, several)
            for part in prompts
            # By length, so that the texts of a batch need little padding.
            for number, several in enumerate(batched(sorted(prompts[part], key=len), self.config.batch))
        ]
        missing = [batch for batch in batches if not batch[0].exists()]
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
            logger.info("The target writes %d batches of text (of %d) to %s", len(missing), len(batches), folder)
        shorter = "data.generated.texts=N and new_tokens=N write less"
        total, left = (self.config.new_tokens * sum(len(batch[3]) for batch in some) for some in (batches, missing))
        with stage(what, total=total, shorter=shorter) as under_way:
            under_way.go_on_from(total - left)
            for path, part, number, several in missing:
                words = np.random.SeedSequence([self.seed, 6, PARTS.index(part), number]).generate_state(2)
                streams = []
                written = self._continued(several, int(words[0]) << 31 ^ int(words[1]), under_way.advance)
                for i, text in enumerate(written):
                    end = next((i + 1 for i, token in enumerate(text) if token in self.target.end_tokens), None)
                    name = f"{part}/{number * self.config.batch + i}"
                    streams.append(Stream(name, "generated", several[i], tuple(text[:end]), ended=end is not None))
                write_streams(path, streams)
        for path, part, *_ in batches:
            for stream in read_streams(path).streams:
                yield part, stream

    @torch.inference_mode()
    def _continued(self, prompts: list[tuple[int, ...]], seed: int, wrote: Callable[[int], None]) -> list[list[int]]:
        """Return what the target writes after prompts. A text that has ended leaves the batch.

        Args:
            wrote: called with the number of tokens that were written, or need no more be written.
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

"""Text that the target writes itself: it continues the beginnings of documents, so that heads learn its own law and not
that of its training text (self-distillation; Medusa, 2401.10774, section 2.3.2).

Kept as recorded streams, a file per batch: an interrupted run goes on with the next file, and streams can be replayed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria

from specdec.errors import UsageError
from specdec.progress import stage
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

    def documents(self, prompts: Prompts, of: Mapping[str, Any], folder: Path) -> DocumentStore:
        """Write the texts that are not written yet, and return all of them.

        Args:
            of: what the manifest says of the prompts.
            folder: the place of the texts of this very target, configuration and source.
        """
        batches = [
            (folder / f"{part}_{number:05}.jsonl", part, number, several)
            for part in PARTS
            # By length, so that the texts of a batch need little padding.
            for number, several in enumerate(batched(sorted(prompts[part], key=len), self.config.batch))
        ]
        missing = [batch for batch in batches if not batch[0].exists()]
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
            logger.info("The target writes %d batches of text (of %d) to %s", len(missing), len(batches), folder)
        shorter = "data.generated.texts=N and new_tokens=N write less"
        total, left = (self.config.new_tokens * sum(len(batch[3]) for batch in some) for some in (batches, missing))
        with stage("Tokens that the target writes", total=total, shorter=shorter) as under_way:
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

        def documents() -> Iterator[tuple[Part, Encoded]]:
            for path, part, *_ in batches:
                for stream in read_streams(path).streams:
                    tokens = np.array(stream.prompt + stream.generated, dtype=np.uint32)
                    yield part, Encoded(tokens, np.arange(len(tokens)) >= len(stream.prompt))

        return write_documents(folder, documents(), {"generated": asdict(self.config), "of": dict(of)})

    @torch.inference_mode()
    def _continued(self, prompts: list[tuple[int, ...]], seed: int, wrote: Callable[[int], None]) -> list[list[int]]:
        """Return what the target writes after prompts.

        Args:
            wrote: called with the number of tokens that were written, or need no more be written.
        """
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
                tokens.to(device),
                attention_mask=mask.to(device),
                generation_config=how,
                stopping_criteria=[_Heard(partial(wrote, len(prompts)))],
            )
        wrote(len(prompts) * (width + self.config.new_tokens - written.shape[1]))
        return written[:, width:].tolist()


class _Heard(StoppingCriteria):
    """Stops nothing, and tells of every token."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.tell()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

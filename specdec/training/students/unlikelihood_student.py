"""A model that learns not to go on with the loops that it writes itself: its greedy text goes on from the beginnings of
the training text, and the tokens of loops in it are made unlikely, beside the plain loss on the text (sequence-level
unlikelihood training; Welleck et al., 1908.04319).
"""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from specdec.models.decoder import end_tokens_of
from specdec.models.load import load_model
from specdec.text.repetition import loop_marks, repeated_share
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.recipes import UnlikelihoodTrainConfig
from specdec.training.student import FinishedTraining
from specdec.training.students.model_student import AdaptedStudent, token_losses

_SURE = 1e-6  # the least nats of a token that is made unlikely: a token of probability 1 would have an infinite loss


class UnlikelihoodStudent(AdaptedStudent):
    """One model that is trained against its loops, to its export and its summary."""

    kind, role = "unlikelihood", "target"
    watched = "heldout/looping"
    losses = ("train/cross_entropy", "train/unlikelihood")
    scores = ("heldout/nats_per_token", "heldout/looping")
    loss_of = staticmethod(token_losses)

    config: UnlikelihoodTrainConfig

    def __init__(self, config: UnlikelihoodTrainConfig, model: Any, tokenizer: Any, sequences: Sequences) -> None:
        super().__init__(config, model, tokenizer, sequences)
        self.ends = sorted(end_tokens_of(model))
        self.new_tokens = sequences.length - config.unlikelihood.prefix_tokens  # written after a beginning, at most

    def part_losses(self, step: int) -> Iterator[Tensor]:
        tokens, scored = self.sequences.train(step).on(self.device)
        for loss in self.mean_losses(tokens, scored, lambda nats: nats, 1.0):
            yield torch.stack([loss, torch.zeros_like(loss)])
        written, marks, _ = self.written(self.module, tokens)
        rows = marks.any(1)
        scale = self.config.unlikelihood.weight / (len(tokens) * self.new_tokens)  # it fades as the loops do
        for loss in self.mean_losses(written[rows], marks[rows], unlikely, scale * int(marks.sum())):
            yield torch.stack([torch.zeros_like(loss), loss])

    def mean_losses(
        self, tokens: Tensor, chosen: Tensor, loss_of: Callable[[Tensor], Tensor], weight: float
    ) -> Iterator[Tensor]:
        """Yield `weight` times the mean loss of the chosen tokens, [B, S] bool, of sequences [B, S], in the parts that
        each micro-batch has. `loss_of` makes a loss of tokens' cross entropy in nats; nothing predicts a first token.
        """
        size = self.config.micro_batch
        count = int(chosen[:, 1:].sum())
        missing = -len(tokens) % size if count else 0  # whole micro-batches, because each shape compiles anew
        tokens = torch.cat([tokens, tokens[:1].expand(missing, -1)])
        chosen = torch.cat([chosen, torch.zeros_like(chosen[:1]).expand(missing, -1)])
        for part, which in zip(tokens.split(size), chosen.split(size), strict=True):
            if which.any():
                with self.arithmetic():
                    nats = self.loss_of(self.module, part)
                yield (loss_of(nats) * which[:, 1:]).sum() * (weight / count)

    @torch.no_grad()
    def written(self, model: Any, tokens: Tensor) -> tuple[Tensor, Tensor, list[bool]]:
        """Let a model go on greedily with the beginnings of sequences [B, S]. Return what it wrote behind them [B, S],
        the tokens [B, S] bool that go on with a loop, and which texts loop.
        """
        config = self.config.unlikelihood
        beginnings = tokens[:, : config.prefix_tokens]
        padding = self.ends[0] if self.ends else 0
        how = GenerationConfig(
            do_sample=False, max_new_tokens=self.new_tokens, eos_token_id=self.ends or None, pad_token_id=padding
        )
        # Autocast would cast all weights again for every token.
        writer = model if self.dtype == torch.float32 else deepcopy(model).to(self.dtype)
        texts = writer.generate(beginnings, attention_mask=torch.ones_like(beginnings), generation_config=how)
        written = torch.full_like(tokens, padding)
        written[:, : texts.shape[1]] = texts
        marks, looping = np.zeros(written.shape, dtype=bool), []
        for row, text in enumerate(written[:, config.prefix_tokens :].tolist()):
            end = next((place for place, token in enumerate(text) if token in self.ends), len(text))
            period = config.repetition_period
            place = slice(config.prefix_tokens, config.prefix_tokens + end)
            marks[row, place] = loop_marks(text[:end], period, config.repetition_tokens)
            looping.append(repeated_share(text[:end], period) >= config.repetition_share)
        return written, torch.from_numpy(marks).to(self.device), looping

    @torch.no_grad()
    def scored_by(self, model: Any, batches: Iterable[Batch]) -> dict[str, float]:
        """Return the cross entropy of held-out text, and the share of beginnings that a model continues in a loop."""
        nats, count = 0.0, 0
        looping: list[bool] = []
        for batch in batches:
            for part in batch.split(self.config.micro_batch):
                tokens, scored = part.on(self.device)
                with self.arithmetic():
                    losses = token_losses(model, tokens)
                nats += float((losses * scored[:, 1:]).sum())
                count += int(scored[:, 1:].sum())
            looping += self.written(model, batch.tokens.to(self.device))[2]
        return dict(zip(self.scores, (nats / max(count, 1), float(np.mean(looping))), strict=True))

    def export(self, effort: dict[str, Any]) -> FinishedTraining:
        """Export the model, score it and the original in float32 on all held-out text, and write `summary.json`."""
        exported = self.exported()
        original = load_model(self.original, dtype=self.dtype, device=self.device, attention="auto", kind="causal")
        held = self.sequences.heldout
        before, after = (
            {name.removeprefix("heldout/"): value for name, value in self.scored_by(model, held()).items()}
            for model in (original, exported)
        )
        summary = self.summary(effort, self.module)
        summary |= {"heldout_texts": self.sequences.counts["heldout"], "heldout": {"before": before, "after": after}}
        metrics = {f"heldout/final.{name}": value for name, value in after.items()}
        metrics |= {f"heldout/before.{name}": value for name, value in before.items()}
        sentence = (
            f"of {self.sequences.counts['heldout']} held-out beginnings {after['looping']:.1%} end in a loop "
            f"({before['looping']:.1%} before), at {after['nats_per_token']:.3f} nats per token "
            f"({before['nats_per_token']:.3f}); exported to {self.folder / 'model'}"
        )
        return self.finished(summary, metrics, sentence, ("+drafter=ngram", f"target.model={self.folder / 'model'}"))


def unlikely(nats: Tensor) -> Tensor:
    """Return the unlikelihood -log(1 - p) of tokens from their cross entropy -log p, both in nats."""
    return -torch.log(-torch.expm1(-nats.clamp(min=_SURE)))

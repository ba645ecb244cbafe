"""A model that learns to draft in parallel (PARD, 2504.18583, section 3): an ordinary decoder in, the same decoder out,
which has learned to predict from mask tokens.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.errors import UsageError
from specdec.models.decoder import attention_windows
from specdec.models.load import POCKET
from specdec.models.masks import Mask
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.recipes import ParallelTrainConfig
from specdec.training.student import FinishedTraining
from specdec.training.students.accuracy import DraftAccuracy
from specdec.training.students.adapted_student import AdaptedStudent
from specdec.training.students.mask_rows import UNSCORED, MaskRows, mask_rows

MASK_KEY = "pard_token"  # of config.json, as the published checkpoints name it


def row_losses(model: Any, tokens: Tensor, mask: Mask, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy [B, R] of each row's target in nats, 0 where it has none, and whether the most likely
    token is the target.
    """
    logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits.float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=UNSCORED)
    return losses.view_as(targets), logits.detach().argmax(-1) == targets


class ParallelStudent(AdaptedStudent):
    """One model that learns to draft in parallel, to its export and its summary."""

    kind, role = "parallel", "drafter"
    watched = "heldout/token_2.top1"
    loss_of = staticmethod(row_losses)

    config: ParallelTrainConfig

    def __init__(self, config: ParallelTrainConfig, model: Any, tokenizer: Any, sequences: Sequences) -> None:
        """
        Raises:
            UsageError: a mask token that the model does not have.
        """
        self.mask_token = take_mask_token(model, tokenizer, config.parallel.mask_token)
        super().__init__(config, model, tokenizer, sequences)
        masks = config.parallel.counts(sequences.length - config.parallel.ahead)
        self.step_inputs = sequences.batch_size * (sequences.length + sum(masks))  # with masks
        self.windows = attention_windows(model.config.get_text_config(), self.original)
        self.scores = tuple(DraftAccuracy(config.parallel.ahead).metrics())

    def part_losses(self, step: int) -> Iterator[Tensor]:
        rows = self.rows(self.sequences.train(step), step)
        scale = 1.0 / max(int((rows.targets != UNSCORED).sum()), 1)
        for part in rows.split(self.config.micro_batch):
            with self.arithmetic():
                losses, _ = self.judged(self.module, part)
                loss = losses.sum() * scale
            yield loss[None]

    def rows(self, batch: Batch, number: int) -> MaskRows:
        """Return the rows of a batch; which positions have masks depends on the seed and a number alone, so that a
        resumed training has the same.

        Raises:
            UsageError: the text holds the mask token.
        """
        if (batch.tokens == self.mask_token).any():
            raise UsageError(
                f"Bad value parallel.mask_token={self.mask_token}: the text holds this token; give one that no text "
                "holds, such as a reserved one, or null."
            )
        generator = torch.Generator().manual_seed(self.config.seed * 0x9E3779B1 + number)
        rows = mask_rows(batch.tokens, batch.scored, self.config.parallel, self.mask_token, generator)
        return rows.on(self.device)

    def judged(self, model: Any, rows: MaskRows) -> tuple[Tensor, Tensor]:
        """Return `row_losses` of rows."""
        mask = rows.attention(self.windows, model.dtype)
        return self.loss_of(model, rows.tokens, mask, rows.positions, rows.targets)

    @torch.no_grad()
    def scored_by(self, model: Any, batches: Iterable[Batch]) -> dict[str, float]:
        """Score behind the same positions every time, of which each level has as many as in training."""
        accuracy = DraftAccuracy(self.config.parallel.ahead)
        with self.arithmetic():
            for number, batch in enumerate(batches, start=1):
                for part in self.rows(batch, -number).split(self.config.micro_batch):
                    nats, right = self.judged(model, part)
                    accuracy.add(right, nats, part)
        return accuracy.metrics()

    def export(self, effort: dict[str, Any]) -> FinishedTraining:
        setattr(self.module.config, MASK_KEY, self.mask_token)
        self.module.config.spd_type = "pard"
        metrics = self.scored_by(self.exported(), self.sequences.heldout())
        heldout = {name: value for name, value in metrics.items() if not math.isnan(value)}
        summary = self.summary(effort, self.module)
        summary |= {"mask_token": self.mask_token, "inputs": effort["steps"] * self.step_inputs, "heldout": heldout}
        final = {name.replace("heldout/", "heldout/final.", 1): value for name, value in heldout.items()}
        tops = ", ".join(f"{metrics[f'heldout/token_{k + 1}.top1']:.3f}" for k in range(self.config.parallel.ahead))
        sentence = f"held-out top-1 accuracy of the draft tokens {tops}; exported to {self.folder / 'model'}"
        use, model = ["+drafter=parallel", f"drafter.model={self.folder / 'model'}"], self.config.target.model
        if model != POCKET:  # it drafts for every target of its tokenizer, and of that one alone it is known
            use.append(f"target.model={model}")
        return self.finished(summary, final, sentence, use)


def take_mask_token(model: Any, tokenizer: Any, asked: int | None) -> int:
    """Return the mask token of a model, and prepare the model for it: a model that had none embeds it as the mean of
    all tokens, and its output layer gets that of their lines where it grows.

    Args:
        asked: the recipe's. None takes the one that the model was trained with before, or else the first one beyond the
            tokenizer's; a model without room gets one more.
    Raises:
        UsageError: the model has no such token.
    """
    embeddings = model.get_input_embeddings().weight
    size, known = len(embeddings), getattr(model.config, MASK_KEY, None)
    if asked is not None and asked >= size:
        raise UsageError(
            f"Bad value parallel.mask_token={asked}: the model has the tokens 0 to {size - 1}; give a reserved one of "
            "these, or null."
        )
    pieces = 1 + max(tokenizer.get_vocab().values())
    token: int = next(each for each in (asked, known, pieces) if each is not None)
    changed = [embeddings] if token != known else []
    if token >= size:
        model.resize_token_embeddings(token + 1, mean_resizing=False)
        changed = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    with torch.no_grad():
        for weight in changed:  # one and the same where they are tied
            weight[token] = weight[: min(pieces, size)].mean(0)
    return token

"""A model that learns to draft in parallel (PARD, 2504.18583, section 3): an ordinary decoder in, the same decoder out,
which has learned to predict from mask tokens.

A row is a place in the input of the model. The first S rows are the text. Behind a position t of it, rows of levels 1,
2, ... are masks at the positions t + 1, t + 2, ...: the row of level k behind t is subtask k (section 3.2). It predicts
the token t + k + 1 from the text up to t and the masks of levels 1 to k behind t. To the model each such branch is a
plain sequence.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.errors import UsageError
from specdec.models.decoder import attention_windows
from specdec.models.load import POCKET
from specdec.models.masks import Mask, for_model, within
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.recipes import ParallelTrainConfig, SubtasksConfig
from specdec.training.student import FinishedTraining
from specdec.training.students.loss_and_accuracy import HELDOUT, HeadAccuracy, share
from specdec.training.students.model_student import AdaptedStudent

UNSCORED = -100  # the target of a row that predicts nothing, as `torch.nn.functional.cross_entropy` ignores it


@dataclass(frozen=True)
class MaskRows:
    """The rows of a batch."""

    tokens: Tensor  # [B, R]
    starts: Tensor  # [B, R] the position of the text that a row stands behind; of a row of the text its own
    levels: Tensor  # [R] 0 for the text
    targets: Tensor  # [B, R] the tokens to be predicted, or UNSCORED

    def split(self, size: int) -> "Iterator[MaskRows]":
        """Yield the rows of at most `size` sequences at a time."""
        parts = zip(self.tokens.split(size), self.starts.split(size), self.targets.split(size), strict=True)
        return (MaskRows(tokens, starts, self.levels, targets) for tokens, starts, targets in parts)

    def on(self, device: torch.device) -> "MaskRows":
        return MaskRows(*(part.to(device) for part in (self.tokens, self.starts, self.levels, self.targets)))

    @property
    def positions(self) -> Tensor:
        """Positions [B, R], as the model embeds them."""
        return self.starts + self.levels

    def attention(self, windows: Mapping[str, int | None], dtype: torch.dtype) -> Mask:
        """Return the additive mask [B, 1, R, R], or one per kind of layers. A row sees the text up to its start and
        the masks of its branch; `windows` say how many tokens back each kind sees (or an `AttentionChunk`), None: all.
        """
        starts, levels, positions = self.starts, self.levels, self.positions
        ahead = starts.unsqueeze(-1) - starts.unsqueeze(-2)  # [B, R, R] from the seen row's start to the row's own
        visible = (ahead >= 0) & (levels == 0) | (ahead == 0) & (levels <= levels.unsqueeze(-1))
        masks = {}
        for kind, window in windows.items():
            near = window is None or within(window, positions.unsqueeze(-1), positions.unsqueeze(-2))
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            masks[kind] = mask.masked_fill_(~(visible & near), torch.finfo(dtype).min).unsqueeze(1)
        return for_model(masks)


def mask_rows(
    tokens: Tensor, scored: Tensor, config: SubtasksConfig, mask_token: int, generator: torch.Generator
) -> MaskRows:
    """Put masks behind random positions, drawn by a generator, of sequences: tokens and scored [B, S] with S > K.

    The positions that have subtask k are some of those that have subtask k - 1, so that a mask's earlier masks are
    always there. Positions whose next token is scored come first. The last K positions have no masks: the tokens that
    those would predict lie beyond the sequence.
    """
    batch, length = tokens.shape
    places = length - config.ahead
    order = torch.rand(batch, places, generator=generator) - scored[:, 1 : places + 1].float()
    ranked = order.argsort(-1)  # [B, S - K]
    text = torch.arange(length).expand(batch, -1)
    counts = config.counts(places)
    starts = torch.cat([text, *(ranked[:, :count] for count in counts)], 1)
    levels = torch.repeat_interleave(torch.arange(config.ahead), torch.tensor([length, *counts]))
    masks = torch.full((batch, sum(counts)), mask_token)
    predicted = (starts + levels + 1).clamp_max(length - 1)
    targets = tokens.gather(1, predicted).masked_fill(~scored.gather(1, predicted), UNSCORED)
    targets[:, length - 1] = UNSCORED  # the token behind the sequence
    return MaskRows(torch.cat([tokens, masks], 1), starts, levels, targets)


MASK_KEY = "pard_token"  # of config.json, as the published checkpoints name it


def row_losses(model: Any, tokens: Tensor, mask: Mask, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B, R] each target's cross entropy in nats, 0 where a row has none, and if it is the likeliest token."""
    logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits.float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=UNSCORED)
    return losses.view_as(targets), logits.detach().argmax(-1) == targets


class DraftAccuracy:
    """Counts how often the rows of each of K levels, which predict draft token `level + 1`, are right: of all, and of
    those whose lower levels behind the same position are right; and sums the cross entropy of the right token.
    """

    def __init__(self, ahead: int) -> None:
        self.counts, self.nats = HeadAccuracy(ahead, "token", top=1), torch.zeros(ahead, dtype=torch.float64)

    def add(self, right: Tensor, nats: Tensor, rows: MaskRows) -> None:
        """Count a batch: if a row's likeliest token is the text's, [B, R] bool, and the right one's nats [B, R]."""
        scored, length = rows.targets != UNSCORED, int((rows.levels == 0).sum())
        given = right.new_ones(len(right), length)  # all levels so far were right behind a position
        for level in range(len(self.nats)):
            own = rows.levels == level
            starts, seen, hits = rows.starts[:, own], scored[:, own], right[:, own]
            earlier = given.gather(1, starts)
            self.counts.count(level, (~hits[seen]).long(), earlier[seen])
            self.nats[level] += float(nats[:, own][seen].double().sum())
            given = torch.zeros_like(given).scatter(1, starts, earlier & seen & hits)

    def metrics(self) -> dict[str, float]:
        """Return `heldout/token_k.top1`, `.top1_given_earlier`, `.nats_per_token` for draft token k; NaN if none."""
        names = (f"{HELDOUT}/token_{number}.nats_per_token" for number in range(1, len(self.nats) + 1))
        return self.counts.metrics() | dict(zip(names, map(share, self.nats, self.counts.seen), strict=True))


class ParallelStudent(AdaptedStudent):
    """One model that learns to draft in parallel, to its export and its summary."""

    kind, role = "parallel", "drafter"
    watched = "heldout/token_2.top1"
    loss_of = staticmethod(row_losses)

    config: ParallelTrainConfig

    def __init__(self, config: ParallelTrainConfig, model: Any, tokenizer: Any, sequences: Sequences) -> None:
        """Raises UsageError: a mask token that the model does not have."""
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
        resumed training has the same. Raises UsageError: the text holds the mask token.
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
    all tokens, and its output layer gets that of their lines where it grows. `asked` is the recipe's; None takes the
    one that the model was trained with before, or else the first one beyond the tokenizer's, for which a model without
    room gets one more. Raises UsageError: the model has no such token.
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

"""Sequences with masks behind their positions, as one input: tokens, positions, what sees what, and what is predicted.

A row is a place in the input of the model. The first S rows are the text. Behind a position t of it, rows of levels 1,
2, ... are masks at the positions t + 1, t + 2, ...: the row of level k behind t is subtask k of PARD (2504.18583,
section 3.2), and predicts the token t + k + 1 from the text up to t and the masks of levels 1 to k behind t. To the
model each such branch is a plain sequence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.models.masks import Mask, for_model, within
from specdec.training.recipes import SubtasksConfig

UNSCORED = -100  # the target of a row that predicts nothing, as `torch.nn.functional.cross_entropy` ignores it


@dataclass(frozen=True)
class MaskRows:
    """The rows of a batch.

    Attributes:
        tokens: [B, R].
        starts: [B, R] the position of the text that a row stands behind; of a row of the text its own.
        levels: [R] 0 for the text.
        targets: [B, R] the tokens to be predicted, or UNSCORED.
    """

    tokens: Tensor
    starts: Tensor
    levels: Tensor
    targets: Tensor

    def split(self, size: int) -> "Iterator[MaskRows]":
        """Yield the rows of at most `size` sequences at a time."""
        parts = zip(self.tokens.split(size), self.starts.split(size), self.targets.split(size), strict=True)
        return (MaskRows(tokens, starts, self.levels, targets) for tokens, starts, targets in parts)

    def on(self, device: torch.device) -> "MaskRows":
        """Return the rows on a device."""
        return MaskRows(*(part.to(device) for part in (self.tokens, self.starts, self.levels, self.targets)))

    @property
    def positions(self) -> Tensor:
        """Positions [B, R], as the model embeds them."""
        return self.starts + self.levels

    def visible(self) -> Tensor:
        """Return whether a row sees another, [B, R, R]: the text up to its start, and the masks of its branch."""
        starts, levels = self.starts, self.levels
        ahead = starts.unsqueeze(-1) - starts.unsqueeze(-2)  # [B, R, R] from the seen row's start to the row's own
        return (ahead >= 0) & (levels == 0) | (ahead == 0) & (levels <= levels.unsqueeze(-1))

    def attention(self, windows: Mapping[str, int | None], dtype: torch.dtype) -> Mask:
        """Return the additive mask [B, 1, R, R], or one by the name of each kind of layers.

        Args:
            windows: for each kind of attention layer, how many tokens back it sees (or an `AttentionChunk`); None for
                all.
        """
        visible, positions = self.visible(), self.positions
        masks = {}
        for kind, window in windows.items():
            seen = visible
            if window is not None:
                seen = visible & within(window, positions.unsqueeze(-1), positions.unsqueeze(-2))
            masks[kind] = torch.zeros(seen.shape, dtype=dtype, device=seen.device).unsqueeze(1)
            masks[kind].masked_fill_(~seen.unsqueeze(1), torch.finfo(dtype).min)
        return for_model(masks)


def mask_rows(
    tokens: Tensor, scored: Tensor, config: SubtasksConfig, mask_token: int, generator: torch.Generator
) -> MaskRows:
    """Put masks behind random positions of sequences.

    The positions that have subtask k are some of those that have subtask k - 1, so that a mask's earlier masks are
    always there. Positions whose next token is scored come first. The last K positions have no masks: the tokens that
    those would predict lie beyond the sequence.

    Args:
        tokens, scored: [B, S] with S > K.
        generator: decides which positions.
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

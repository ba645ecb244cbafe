"""Accuracy of a model that drafts over masks, on held-out text, by position in the draft."""

import torch
from torch import Tensor

from specdec.training.heads.head_accuracy import HELDOUT
from specdec.training.parallel.mask_rows import UNSCORED, MaskRows


class DraftAccuracy:
    """Sums over the rows of each level, which predict draft token `level + 1`.

    Attributes:
        hits: [K] rows whose most likely token is the right one.
        nats: [K] the cross entropy of the right token.
        seen: [K] rows counted.
        earlier: [K] the rows for which the rows of all lower levels behind the same position were right, too.
        hits_given_earlier: [K] the right ones of these.
    """

    def __init__(self, ahead: int) -> None:
        """
        Args:
            ahead: K.
        """
        self.hits, self.seen, self.earlier, self.hits_given_earlier = torch.zeros(4, ahead, dtype=torch.long)
        self.nats = torch.zeros(ahead, dtype=torch.float64)

    def add(self, right: Tensor, nats: Tensor, rows: MaskRows) -> None:
        """Count a batch.

        Args:
            right: [B, R] bool: the most likely token is the one of the text.
            nats: [B, R] the cross entropy.
        """
        batch, levels = len(right), rows.levels.expand_as(right)
        scored = rows.targets != UNSCORED
        places = (torch.arange(batch, device=right.device).unsqueeze(-1), levels, rows.starts)
        table = right.new_zeros(batch, len(self.hits), int(rows.starts.max()) + 1)
        table[places] = right & scored
        so_far = table.cumprod(1).bool()  # [B, K, S]
        below = (places[0], (levels - 1).clamp_min(0), rows.starts)
        given = scored & ((levels == 0) | so_far[below])
        sums = {"seen": scored, "hits": right & scored, "earlier": given, "hits_given_earlier": given & right}
        for name, marked in sums.items():
            getattr(self, name).add_(torch.bincount(levels[marked], minlength=len(self.hits)).cpu())
        self.nats += torch.bincount(levels[scored], nats[scored].double(), minlength=len(self.hits)).cpu()

    def metrics(self) -> dict[str, float]:
        """Return for each draft token k `heldout/token_k.top1`, `.top1_given_earlier` and `.nats_per_token`; NaN where
        there was none.
        """
        found = {}
        for level in range(len(self.hits)):
            name = f"{HELDOUT}/token_{level + 1}."
            found[name + "top1"] = float(self.hits[level] / self.seen[level])
            found[name + "top1_given_earlier"] = float(self.hits_given_earlier[level] / self.earlier[level])
            found[name + "nats_per_token"] = float(self.nats[level] / self.seen[level])
        return found

"""The kinds of calls that a model computes as plain forward passes do: what the probe found, and how it is said."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Probed:
    """The kinds of calls that may be made on a model. Chains are always among them, or the model is refused.

    Attributes:
        packed: trees in one sequence, under a tree mask.
        rows: trees as a batch, with a sequence for every path.
        pieces: a prefill in several calls.
        static: calls that attend to the whole capacity of the cache, masked, as CUDA graphs make them.
        context: the longest text, in tokens, within which the model computes all positions in one way; None: any.
        errors: by check, how far logits were from those of a plain pass (see `probe.logit_error`).
    """

    packed: bool = True
    rows: bool = True
    pieces: bool = True
    static: bool = True
    context: int | None = None
    errors: Mapping[str, float] = field(default_factory=dict)

    def sentences(self, who: str) -> tuple[str, ...]:
        """Return what a reader of a run has to know about the model `who`; most models need nothing."""
        found = []
        if not self.packed:
            found.append(
                f"{who} takes drafts that branch by rows only, as with target.evaluation=rows: under a tree mask "
                f"{self._differ('packed')}."
            )
        if not self.pieces:
            found.append(f"{who} is prefilled in one call: in several calls {self._differ('pieces')}.")
        if self.context is not None:
            found.append(
                f"Texts of {who} may have {self.context:,} tokens: from there on it computes the positions of all "
                "earlier tokens anew, which a cache cannot follow."
            )
        return tuple(found)

    def _differ(self, check: str) -> str:
        error = self.errors.get(check)
        if error is None:
            return "it cannot be evaluated"
        return f"its logits differ from those of plain forward passes, by {error:.2g} of their spread"

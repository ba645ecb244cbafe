"""The kinds of calls that a model computes as plain forward passes do: what the probe found, and how it is said."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_WAYS = {
    "recorded": "After a rejection it is cut out of the inputs of the last call.",
    "replayed": "After a rejection those layers evaluate the accepted tokens again.",
    "stepped": "Those layers evaluate the tokens of a draft one after another and keep the state after each.",
}


@dataclass(frozen=True)
class Probed:
    """The kinds of calls that may be made on a model. Chains are always among them, or the model is refused.

    Attributes:
        packed: trees in one sequence, under a tree mask.
        rows: trees as a batch, with a sequence for every path.
        batch: trees and chains of texts of different lengths in one call, each under a mask of its own.
        pieces: a prefill in several calls.
        static: calls that attend to the whole capacity of the cache, masked, as CUDA graphs make them.
        context: the longest text, in tokens, within which the model computes all positions in one way; None: any.
        pending: lengths of the configuration, in tokens, that a copy with short ones was compared around at most: the
            model itself would take too long for that when it is opened.
        attention: the implementation of attention that the model was switched to, because its own fails; None: none.
        own_masks: calls are made without our masks and positions, which the model does not take; the model's own are
            those of a chain behind the cache.
        states: how the states of layers that keep one are brought back after a rejection: "recorded", "replayed" or
            "stepped" (see `recurrent_cache`); "" for a model with attention only.
        errors: by check, how far logits were from those of a plain pass (see `comparison.logit_error`).
    """

    packed: bool = True
    rows: bool = True
    batch: bool = True
    pieces: bool = True
    static: bool = True
    context: int | None = None
    pending: tuple[int, ...] = ()
    attention: str | None = None
    own_masks: bool = False
    states: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> "Probed":
        """Read back what `asdict` gave before it went through JSON.

        Raises:
            TypeError: other values.
        """
        return cls(**{**values, "pending": tuple(values.get("pending", ()))})  # type: ignore[arg-type]

    def sentences(self, who: str) -> tuple[str, ...]:
        """Return what a reader of a run has to know about the model `who`; most models need nothing."""
        found = []
        if self.attention is not None:
            found.append(
                f"{who} computes with target.attention={self.attention}: with the implementation that was chosen its "
                "calls behind a cache fail."
            )
        if self.states:
            found.append(
                f"{who} takes chains, and drafts that branch by rows only: its layers keep a state, which follows one "
                f"path. {_WAYS[self.states]}"
            )
        elif self.own_masks:
            found.append(
                f"{who} takes chains, and drafts that branch by rows only: it takes no mask but its own, which is that "
                "of one path."
            )
        elif not self.packed:
            found.append(
                f"{who} takes drafts that branch by rows only, as with target.evaluation=rows: under a tree mask "
                f"{self.differ('packed', 'branches')}."
            )
        if not self.pieces:
            found.append(f"{who} is prefilled in one call: in several calls {self.differ('pieces')}.")
        if self.context is not None:
            found.append(
                f"Texts of {who} may have {self.context:,} tokens: from there on it computes the positions of all "
                "earlier tokens anew, which a cache cannot follow."
            )
        return tuple(found)

    def differ(self, *checks: str) -> str:
        """Say how a model fails some checks: by how much its logits differ, where it can be asked at all."""
        if checks[0] not in self.errors:
            return "it cannot be evaluated"
        error = max(self.errors[check] for check in checks if check in self.errors)
        return f"its logits differ from those of plain forward passes, by {error:.2g} of their spread"

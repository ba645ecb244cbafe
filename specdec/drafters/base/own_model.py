"""The check that drafters share which draft with a part of the target's own model."""

from specdec.errors import UsageError
from specdec.targets.base import Target
from specdec.targets.causal import Causal


def own_model(target: Target, drafter: str) -> Causal:
    """Return the target as one whose model can draft for it.

    Raises:
        UsageError: the target has no network, or an encoder-decoder's.
    """
    if isinstance(target, Causal):
        return target
    has = "has no network" if target.model is None else "is an encoder-decoder"
    raise UsageError(
        f"Bad value drafter={drafter}: it drafts with layers of the target's own model, and the target {has}; use "
        "target=causal."
    )

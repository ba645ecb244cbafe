"""The contract of a target, and what several targets share."""

from specdec.targets.base.contract import Target, targets

__all__ = ["Target", "targets"]

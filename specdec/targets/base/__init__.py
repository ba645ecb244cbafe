"""The contract of a target, and what several targets share."""

from specdec.targets.base.contract import Target, TargetCapabilities, targets

__all__ = ["Target", "TargetCapabilities", "targets"]

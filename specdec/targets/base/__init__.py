"""The contract of a target, and what several targets share."""

from specdec.targets.base.contract import Evaluation, HiddenStates, Target, TargetCapabilities, targets

__all__ = ["Evaluation", "HiddenStates", "Target", "TargetCapabilities", "targets"]

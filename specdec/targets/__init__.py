"""The models, and what stands for one, that text is decoded from; one file each."""

from specdec.targets.base import Target, targets

__all__ = ["Target", "targets"]

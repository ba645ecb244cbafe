"""specdec: a workbench that explains the speed of speculative decoding."""

__version__ = "0.1.0"

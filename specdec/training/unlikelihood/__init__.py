"""Trains a model against the loops that it writes itself (sequence-level unlikelihood)."""

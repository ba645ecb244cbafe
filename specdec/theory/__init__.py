"""Closed forms of speculative decoding: numbers and numpy arrays in, numbers and numpy arrays out.

The modules know no model, no table of rounds and no other part of specdec. "THEORY n" in a docstring is a section of
the project's theory notes; the paper that it comes from is named beside it.
"""

"""Closed forms of speculative decoding: numbers and numpy arrays in, numbers and numpy arrays out.

The modules know no model, no table of rounds and no other part of specdec. "theory.md n" in a docstring is a section of
`notebooks/guide/theory.md`: the formulas with their assumptions, sources and worked numbers.
"""

"""Planted bugs, and what plants them: patches of `specdec` and `analysis` that the tests must notice."""

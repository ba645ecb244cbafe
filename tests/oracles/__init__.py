"""Closed forms that nothing but tests computes: what verifiers, loops and simulations are held against."""

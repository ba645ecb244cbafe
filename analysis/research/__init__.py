"""Findings of our own on the papers' claims, on heads, on predictions and on a GPU, read from committed results and
chosen runs. No ordinary run needs them.
"""

"""Findings of each study: one file of numbers and words per study, which registers itself by `findings.register`."""

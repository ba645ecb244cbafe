"""Findings on what heads learn and what their variants are worth, from the files of trainings and ablations."""

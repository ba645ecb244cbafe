"""Importers: one file for each format that others publish."""

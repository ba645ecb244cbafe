"""Costs of calls and rounds, fitted to measured times."""

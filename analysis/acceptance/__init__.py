"""Estimates, tests and models of acceptance, and what they predict."""

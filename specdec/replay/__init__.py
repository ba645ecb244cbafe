"""Drafting again along a recorded text: rounds without decoding."""

"""Decoding of several sequences at once: each at its own length, a finished one replaced by the next request."""

"""Serving engines: from what was measured to the flags with which they draft in the same way."""

"""Published figures, and what they imply."""

"""The metrics and sections of a run, and runs side by side."""

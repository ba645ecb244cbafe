"""The way from the configuration to what a run does: resolved values and refusals; no weights are read."""

"""The gap account: why a speedup is not what the capped geometric says."""

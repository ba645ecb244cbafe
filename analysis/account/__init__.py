"""The gap account: why a speedup is not what the formula says."""

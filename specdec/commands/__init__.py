"""The start, the faults and the sweeps of a command: the Hydra edge, and nothing of decoding."""

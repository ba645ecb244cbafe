"""How a command starts, fails and sweeps: the Hydra edge, and nothing of decoding."""

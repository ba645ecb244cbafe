"""Training of heads on the hidden states of a target."""

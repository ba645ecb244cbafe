"""Training of heads on the hidden states of a target, which is frozen or trained with them."""

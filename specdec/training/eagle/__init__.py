"""Training of feature drafters of the EAGLE family on a frozen target, and what is published of them."""

"""Training of models that draft all tokens in one call, over mask tokens, and what is published of them."""

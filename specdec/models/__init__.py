"""A transformers model over our own cache: loading, forward passes, masks, compilation."""

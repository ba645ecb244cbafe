"""Transformers models over our own cache: loading, forward passes, masks, compilation."""

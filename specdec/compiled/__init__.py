"""Faster calls of a model: traced and compiled passes, CUDA graphs. `passes.compile_decoder` is the door."""

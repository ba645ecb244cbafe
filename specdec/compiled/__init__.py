"""What makes calls of a model fast: traced and compiled passes, CUDA graphs. `passes.compile_decoder` is the door."""

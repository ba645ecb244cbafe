"""Published checkpoints of drafters: their files, their formats and, where they are heads, their networks."""

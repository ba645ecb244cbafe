"""The contract of a prompt source, and the way from a prompt set to prompts in tokens."""

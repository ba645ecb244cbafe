"""The contract of a prompt source, and how a prompt set becomes prompts in tokens."""

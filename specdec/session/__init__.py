"""Models and prompts of a plan, opened, and decoded by every method in turn."""

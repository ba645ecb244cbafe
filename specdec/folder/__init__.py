"""The run folder: writing and resuming it, what it says of a run, and its upload to MLflow."""

"""Networks of drafters on disk: files of trainings, and published checkpoints with their formats and networks."""

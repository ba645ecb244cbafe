"""Training of whole models: the pocket models and their recipes."""

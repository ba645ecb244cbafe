"""Training of whole models: the pocket models and every other recipe of `conf/recipe/`."""

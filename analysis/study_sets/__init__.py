"""Several studies of one kind side by side: prompt sets, models."""

"""What only makes the models that the package ships: copies of finished trainings, and their cards."""

"""The only code that writes to MLflow, and the store that it writes to."""

"""The text that trainings read: documents, tokens, sequences, and the states of a target on them."""

"""Training of the pocket models: corpus, tokenizer, loop, publishing. Importing it imports no torch."""

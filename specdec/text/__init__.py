"""Documents, records and recorded streams: the text that prompts, training and n-gram models read."""

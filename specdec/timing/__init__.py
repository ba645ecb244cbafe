"""Times calls, drafts and the machine, apart from decoding."""

"""The contract of another engine, the check of what it writes, and the peers of one run together."""

"""Heads on a target's hidden states: their networks, their choices and their files. Drafters turn these into drafts."""

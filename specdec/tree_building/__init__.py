"""How proposals become a token tree, and how rules walk down it."""

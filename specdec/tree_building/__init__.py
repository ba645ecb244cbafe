"""The ways in which proposals become a token tree."""

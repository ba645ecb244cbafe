"""What calls and rounds cost, from measured times."""

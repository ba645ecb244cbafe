"""What each study found: its numbers and its words."""

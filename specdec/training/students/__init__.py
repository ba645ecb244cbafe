"""What is trained, one file a kind: its loss, its held-out score, its export."""

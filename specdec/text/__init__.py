"""Text on disk and on the hub: documents, conversations and recorded streams."""

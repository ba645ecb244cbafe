"""Renders findings as a report page, as Markdown and in notebooks."""

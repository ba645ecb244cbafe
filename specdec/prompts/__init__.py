"""Prompt sets: one class per kind of source, one YAML per set. Imports neither torch nor transformers."""

from specdec.prompts.base.contract import Entry, Prompt, PromptSource, SourceContent, first_turn, prompts
from specdec.prompts.base.loading import PromptEntries, PromptSet, load_prompts, read_prompts

__all__ = [
    "Entry",
    "Prompt",
    "PromptEntries",
    "PromptSet",
    "PromptSource",
    "SourceContent",
    "first_turn",
    "load_prompts",
    "prompts",
    "read_prompts",
]

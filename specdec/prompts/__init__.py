"""Prompt sets: one class per kind of source, one YAML per set. Imports neither torch nor transformers."""

from specdec.prompts.base.contract import Entry, Prompt, PromptSet, PromptSource, Source, first_turn, prompts
from specdec.prompts.base.loading import load_prompts

__all__ = ["Entry", "Prompt", "PromptSet", "PromptSource", "Source", "first_turn", "load_prompts", "prompts"]

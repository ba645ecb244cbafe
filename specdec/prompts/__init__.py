"""Prompt sets: one class per kind of source, one YAML per set. Imports neither torch nor transformers."""

from specdec.prompts.base.contract import Entry, Prompt, first_turn, prompts
from specdec.prompts.base.loading import PromptSet, load_prompts, read_prompts

__all__ = ["Entry", "Prompt", "PromptSet", "first_turn", "load_prompts", "prompts", "read_prompts"]

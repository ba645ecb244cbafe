"""A tokenizer of characters, the YAML values, and the real prompt files where the checkout has them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SPECDEC_SHARED", REPOSITORY.parent / "shared")) / "data" / "prompts"
FILES = {
    "spec_bench": "spec_bench/question.jsonl",
    "mt_bench": "mt_bench/question.jsonl",
    "humaneval": "humaneval/HumanEval.jsonl.gz",
    "gsm8k": "gsm8k/test.jsonl",
    "wmt22": "wmt22/generaltest2022.en-de.src.en",
}


class Characters:
    """A tokenizer with one token per character, and a begin token (0) on plain text, as Llama's tokenizers have."""

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template

    def __call__(self, text: str, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        return {"input_ids": [0] * add_special_tokens + [ord(character) for character in text]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, **_: Any) -> str:
        assert skip_special_tokens
        return "".join(chr(token) for token in ids if token)

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize and add_generation_prompt
        if self.chat_template == "broken":
            raise ValueError("only one turn,\nplease")
        said = "".join(f"<{message['role'][0]}>{message['content']}" for message in messages)
        return f"\x00{said}<a>"


@pytest.fixture(scope="session")
def characters():
    return Characters


@pytest.fixture(scope="session")
def load(group_values):
    """`load(yaml_name, real=..., tokenizer=..., context=..., new=..., **overrides)` loads a prompt set; `real` takes
    the real file, or skips the test.
    """
    from specdec.prompts import load_prompts, read_prompts

    def load_set(yaml_name, real=False, tokenizer="", context=100_000, new=10, vocab_size=None, **keys):
        config = OmegaConf.to_container(OmegaConf.create(group_values("prompts", yaml_name)), resolve=True)
        if real:
            config["path"] = str(path := DATA / FILES[yaml_name])
            if not path.is_file():
                pytest.skip(f"no prompt file {path}: set SPECDEC_SHARED to the shared folder")
        return load_prompts(
            read_prompts(config | keys),
            tokenizer=Characters() if tokenizer == "" else tokenizer,
            context_length=context,
            max_new_tokens=new,
            vocab_size=vocab_size,
        )

    return load_set

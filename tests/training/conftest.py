"""A tiny tokenized corpus and a tiny recipe: training takes seconds."""

import keyword
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from specdec.config import validated
from specdec.text.python_sources import STDLIB, Document
from specdec.training.batches import TokenizedCorpus, encode, with_end_of_text
from specdec.training.heads.head_data_config import HeadDataConfig
from specdec.training.models.recipe import CorpusConfig, TrainConfig
from specdec.training.models.tokenizer import train_tokenizer

TINY_CORPUS = {
    "packages": {},
    "vocabulary": 300,
    "skip_directories": ["test", "tests", "_vendor", "__pycache__"],
    "min_file_bytes": 20,
    "max_file_bytes": 300_000,
    "max_line_characters": 400,
    "max_digit_share": 0.15,
    "shingle_lines": 3,
    "heldout_overlap": 0.15,
    "same_name_overlap": 0.03,
    "repeat_overlap": 0.5,
}


@pytest.fixture
def corpus_config() -> CorpusConfig:
    return TypeAdapter(CorpusConfig).validate_python(TINY_CORPUS)


@pytest.fixture
def train_values(tmp_path: Path) -> dict:
    """What YAML would give for a model of a few thousand weights and 8 steps."""
    output_dir = tmp_path / "models"
    return {
        "recipe": {
            "name": "tiny",
            "role": "target",
            "corpus": dict(TINY_CORPUS),
            "model": {"hidden_size": 16, "layers": 2, "heads": 2, "mlp_size": 24, "context": 32},
            "data": {
                "tokens": 512,
                "batch_tokens": 64,
                "micro_batch_tokens": 32,
                "stages": [
                    {"share": 0.5, "sequence_length": 8},
                    {"share": 0.5, "sequence_length": 32},
                ],
                "stdlib_passes": 1.5,
                "stdlib_lateness": 0.7,
                "shuffle_window": 8,
            },
            "optimizer": {
                "muon_lr": 0.02,
                "muon_momentum": 0.95,
                "adam_lr": 0.003,
                "adam_beta1": 0.9,
                "adam_beta2": 0.95,
                "weight_decay": 0.01,
                "grad_clip": 1.0,
                "warmup_share": 0.1,
                "decay_share": 0.5,
            },
            "monitor": {
                "heldout_tokens": 64,
                "heldout_window": 16,
                "heldout_every_steps": 4,
                "log_every_steps": 2,
                "checkpoint_seconds": 1e-9,
            },
            "compile": False,
            "bfloat16": True,
        },
        "output_dir": str(output_dir),
        "corpus_dir": str(output_dir / "corpus"),
        "seed": 3,
        "device": "cpu",
        "threads": None,
        "tracking": {
            "uri": None,
            "experiment": "tiny",
            "enabled": True,
            "required": False,
            "run_name": None,
        },
    }


@pytest.fixture
def train_config(train_values: dict) -> TrainConfig:
    return validated(TrainConfig, train_values)


@pytest.fixture(scope="session")
def tiny_corpus() -> TokenizedCorpus:
    words = keyword.kwlist + ["alpha", "beta", "gamma", "delta"]
    rng = np.random.default_rng(0)
    texts = ["\n    ".join(" ".join(rng.choice(words, 6)) for _ in range(12)) for _ in range(40)]
    tokenizer = train_tokenizer(texts, 300, 32)
    documents = [Document(STDLIB, f"{i}.py", text) for i, text in enumerate(texts)]
    ids = encode(tokenizer, documents)
    heldout = with_end_of_text(ids[30:], tokenizer.eos_token_id)
    return TokenizedCorpus(
        tokenizer=tokenizer,
        tokens=np.concatenate(ids[:30]),
        ends=np.cumsum([len(i) for i in ids[:30]]),
        in_stdlib=np.arange(30) < 2,
        heldout={"code": heldout, "docs": heldout[:40]},
        manifest={"sha256": "0" * 64, "sources": {}},
        folder=Path("."),
    )


@pytest.fixture(scope="session")
def text_target(tiny_corpus: TokenizedCorpus, tiny_llama: Callable[..., Any], sampling: Callable[..., Any]) -> Any:
    """A random float64 Llama of 256 tokens context with the tokenizer of `tiny_corpus`, whose end token it knows."""
    from specdec.targets.causal import Causal

    tokenizer = tiny_corpus.tokenizer
    target = Causal(tiny_llama(len(tokenizer), context=256), sampling(temperature=0.0), tokenizer)
    target.end_tokens = frozenset({tokenizer.eos_token_id})
    return target


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A text of 60 lines, each another one."""
    path = tmp_path / "text.txt"
    rng = np.random.default_rng(1)
    path.write_text("\n".join(f"{i} " + " ".join(rng.choice(keyword.kwlist, 9)) for i in range(60)), encoding="utf-8")
    return path


@pytest.fixture
def head_data(tmp_path: Path, text_file: Path, group_values: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """`head_data(source={...}, states={...}, **changes)`: tiny data for heads, of `text_file` if not said otherwise."""

    def make(source: dict[str, Any] | None = None, states: dict[str, Any] | None = None, **changes: Any) -> Any:
        values = group_values("head_data", "python_sources")
        text = group_values("corpus", "text", path=str(text_file), heldout_every=10)
        own = {"cache": "none", "folder": str(tmp_path / "kept"), "batch": 3, "shard_mib": 1}
        return validated(HeadDataConfig, values | {
            "source": text if source is None else source,
            "sequence_length": 16, "batch": 4, "sequences": None, "passes": 2, "heldout": 5,
            "folder": str(tmp_path / "kept"),
            "states": values["states"] | own | (states or {}),
            **changes,
        })  # fmt: skip

    return make

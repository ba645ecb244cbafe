"""A rerun of the same identity on the same machine gives the same tokens and the same rounds, in every arithmetic."""

import pytest
import torch
from fixtures.resumed_runs import config_of, decode, found

from specdec.models.arithmetic import native_arithmetic

SHAPE = (
    "{model_type: llama, seed: 0, vocab_size: 61, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, "
    "num_attention_heads: 4, max_position_embeddings: 256}"
)
MODEL = (
    "target=causal", "target.model=random", f"target.shape={SHAPE}", "target.compile=false", "target.device=cpu",
    "prompts=random_tokens", "prompts.limit=2", "prompts.length=12", "prompts.vocabulary=61",
    "measurement.max_new_tokens=8", "measurement.gammas=[]",
)  # fmt: skip


@pytest.mark.parametrize(("dtype", "temperature"), [("float32", 1.0), ("bfloat16", 0.0)])
def test_a_rerun_gives_the_same_tokens(tmp_path, dtype, temperature):
    computed = native_arithmetic(getattr(torch, dtype), torch.device("cpu"))
    config = config_of("+drafter=ngram", *MODEL, f"target.dtype={dtype}", f"sampling.temperature={temperature}")
    for name in ("first", "again"):
        decode(config, tmp_path / name)
    first, again = found(tmp_path / "first"), found(tmp_path / "again")
    assert first["generations"][0]["cell"] == again["generations"][0]["cell"]
    assert first == again, computed.sentence
    texts = {tuple(line["generated_token_ids"]) for line in first["generations"] if line["method"] == "baseline"}
    assert len(texts) == 2, "the prompts' texts are not all one"

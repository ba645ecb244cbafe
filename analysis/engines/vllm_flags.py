"""vLLM's `--speculative-config`, as vLLM 0.33.0 reads it.

From that release's docs/features/speculative_decoding and vllm/config/speculative.py, November 2026. The methods
"medusa" and "mlp_speculator" are those of 0.32.0, the last release that had them. vLLM verifies chains only.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from .measured_drafter import Configuration, Measured, unreadable

VERSION, LAST_WITH_HEADS = "0.33.0", "0.32.0"
ENGINE = f"vLLM {VERSION}"
EAGLE: dict[str, dict[str, Any]] = {  # format: the method that reads it, with the keys that it needs
    "EAGLE-1": {"method": "eagle"},
    "EAGLE-3": {"method": "eagle3"},
    "speculators eagle3": {"method": "eagle3"},
    "P-EAGLE": {"method": "eagle3", "parallel_drafting": True},
    "DFlash": {"method": "dflash"},
    "speculators dflash": {"method": "dflash"},
    "DSpark": {"method": "dspark"},
    "speculators dspark": {"method": "dspark"},
}
MTP = {"MTP module": {"method": "mtp"}}
HEADS: dict[str, dict[str, dict[str, Any]]] = {  # drafter: the formats that 0.32.0 read, and its method for them
    "medusa": dict.fromkeys(("Medusa-1", "Medusa for vLLM"), {"method": "medusa"}),
    "mlp_speculator": {"MLP speculator": {"method": "mlp_speculator"}},
}
DRAFTS = ("eagle", "mtp", "ngram", "parallel", "small_model", "suffix")  # drafters that it has a method for
MOST_SEQUENCES = 65536  # more than any server decodes at once
REASONS = {
    "retrieval": "No look-up in a text of one's own.",
    "spec_tree": "No trees of model drafts: chains of one draft model only, which +drafter=small_model measures.",
    "adaptive": "No draft model that ends its draft by its own confidence.",
}


def vllm(measured: Measured) -> Configuration:
    """Return vLLM's configuration for the drafter, or why there is none."""
    name, engine, remarks = measured.name, ENGINE, []
    formats = {**HEADS, "eagle": EAGLE, "mtp": MTP}.get(name)
    if name in HEADS:
        engine = f"vLLM {LAST_WITH_HEADS}"
        remarks = [f"vLLM {VERSION} no longer has the method {name}; {LAST_WITH_HEADS} is the last that had it."]
    if why := REASONS.get(name) or unreadable(measured, formats):
        return Configuration(ENGINE, remarks=(" ".join([*remarks, why]),))
    size: dict[str, Any] = {"num_speculative_tokens": measured.depth}
    if name == "ngram":
        longest, shortest = measured.match_lengths
        keys = {"method": "ngram", **size, "prompt_lookup_max": longest, "prompt_lookup_min": shortest}
        if measured.value("drafter.occurrence") != "leftmost":
            remarks.append(
                "Of several matches vLLM takes the first one of the text, which drafter.occurrence=leftmost measures; "
                "the most common continuation was measured."
            )
    elif name == "suffix":
        keys = {"method": "suffix", **size, "suffix_decoding_max_spec_factor": float(measured.value("drafter.factor"))}
        keys["suffix_decoding_min_token_prob"] = 0.0  # rare continuations were offered too
        if not measured.value("drafter.earlier_outputs"):
            keys["suffix_decoding_max_cached_requests"] = 0
        remarks.append("It needs `pip install arctic-inference==0.1.1`.")
        if measured.value("drafter.offset"):
            remarks.append("drafter.offset has no counterpart.")
    else:
        method = formats[measured.format] if formats else {"method": "draft_model"}
        model = {} if measured.in_target else {"model": measured.drafting()}
        keys = {"method": method["method"], **model, **size, **method}
        if name == "parallel":
            keys["parallel_drafting"] = True
        # Only a draft model has a vocabulary of its own; over two of them vLLM drafts greedily.
        translated = name == "small_model" and measured.value("drafter.translate") is True
        if measured.sampled and name not in HEADS and not translated:
            keys["draft_sample_method"] = "probabilistic"
        if measured.block and name not in HEADS:
            keys["rejection_sample_method"] = "block"
        if translated:
            keys["use_heterogeneous_vocab"] = True
            if measured.sampled:
                remarks.append("Over two vocabularies vLLM drafts greedily; sampled drafts were measured.")
    command = shlex.join(["vllm", "serve", measured.served, "--speculative-config", json.dumps(keys)])
    return Configuration(engine, command, remarks=(*remarks, *measured.chains_only("vLLM")))


def batch_schedule(tokens: Mapping[int, int]) -> list[list[int]]:
    """Return `num_speculative_tokens_per_batch_size`, from draft tokens by measured batch: [first batch, last batch,
    draft tokens], none beyond the largest; batches in between are treated as the next larger.
    """
    ranges: list[list[int]] = []
    first = 1
    for batch, count in (*sorted(tokens.items()), (MOST_SEQUENCES, 0)):
        if ranges and ranges[-1][2] == count:
            ranges[-1][1] = batch
        else:
            ranges.append([first, batch, count])
        first = batch + 1
    return ranges

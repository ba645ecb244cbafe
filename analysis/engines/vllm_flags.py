"""vLLM's `--speculative-config`, as vLLM 0.33.0 reads it.

From that release's docs/features/speculative_decoding and vllm/config/speculative.py, November 2026. The methods
"medusa" and "mlp_speculator" are those of 0.32.0, the last release that had them. vLLM verifies chains only.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from .measured_drafter import Configuration, Measured, trained_here, without_method

VERSION, LAST_WITH_HEADS = "0.33.0", "0.32.0"
ENGINE = f"vLLM {VERSION}"
EAGLE: dict[str, dict[str, Any]] = {  # format: the method that reads it, with the keys that it needs
    "EAGLE-1": {"method": "eagle"},
    "EAGLE-3": {"method": "eagle3"},
    "speculators eagle3": {"method": "eagle3"},
    "P-EAGLE": {"method": "eagle3", "parallel_drafting": True},
    "DFlash": {"method": "dflash"},
    "speculators dflash": {"method": "dflash"},
}
HEADS = {  # drafter: the formats that 0.32.0 read
    "medusa": {"Medusa-1": "medusa", "Medusa for vLLM": "medusa"},
    "mlp_speculator": {"MLP speculator": "mlp_speculator"},
}
DRAFTS = ("eagle", "ngram", "parallel", "small_model", "suffix")  # drafters that it has a method for
MOST_SEQUENCES = 65536  # more than any server decodes at once
REASONS = {
    "retrieval": "No look-up in a text of one's own.",
    "spec_tree": "No trees of model drafts: chains of one draft model only, which +drafter=small_model measures.",
    "adaptive": "No draft model that ends its draft by its own confidence.",
}


def vllm(measured: Measured) -> Configuration:
    """Return vLLM's configuration for the drafter, or why there is none."""
    name = measured.name
    if name in HEADS:
        return _heads(measured)
    if name in REASONS:
        return without_method(ENGINE, REASONS[name])
    if name == "eagle" and measured.format not in EAGLE:
        return without_method(ENGINE, trained_here(measured, EAGLE))
    keys, remarks = {
        "ngram": _ngram,
        "suffix": _suffix,
        "small_model": _draft_model,
        "parallel": _parallel,
        "eagle": _eagle,
    }[name](measured)
    return Configuration(ENGINE, _command(measured, keys), remarks=(*remarks, *_chains_only(measured)))


def batch_schedule(tokens: Mapping[int, int]) -> list[list[int]]:
    """Return `num_speculative_tokens_per_batch_size`: [first batch, last batch, draft tokens], none beyond
    the largest.

    Args:
        tokens: draft tokens to offer by measured batch; 0 for none. Batches in between are treated as the next larger.
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


def _command(measured: Measured, keys: dict[str, Any]) -> str:
    return shlex.join(["vllm", "serve", measured.served, "--speculative-config", json.dumps(keys)])


def _chains_only(measured: Measured) -> list[str]:
    if measured.chain:
        return []
    return [f"vLLM verifies chains only; {measured.shape} were measured, so expect fewer tokens per round."]


def _ngram(measured: Measured) -> tuple[dict[str, Any], list[str]]:
    longest, shortest = measured.match_lengths
    keys = {
        "method": "ngram",
        "num_speculative_tokens": measured.depth,
        "prompt_lookup_max": longest,
        "prompt_lookup_min": shortest,
    }
    if measured.value("drafter.occurrence") == "leftmost":
        return keys, []
    return keys, [
        "Of several matches vLLM takes the first one of the text, which drafter.occurrence=leftmost measures; the most "
        "common continuation was measured."
    ]


def _suffix(measured: Measured) -> tuple[dict[str, Any], list[str]]:
    keys: dict[str, Any] = {
        "method": "suffix",
        "num_speculative_tokens": measured.depth,
        "suffix_decoding_max_spec_factor": float(measured.value("drafter.factor")),
        "suffix_decoding_min_token_prob": 0.0,  # rare continuations were offered too
    }
    if not measured.value("drafter.earlier_outputs"):
        keys["suffix_decoding_max_cached_requests"] = 0
    remarks = ["It needs `pip install arctic-inference==0.1.1`."]
    if measured.value("drafter.offset"):
        remarks.append("drafter.offset has no counterpart.")
    return keys, remarks


def _model(measured: Measured, keys: dict[str, Any]) -> dict[str, Any]:
    """Add the checkpoint, the length of drafts, and how drafted tokens are drawn and judged."""
    sampling = {"draft_sample_method": "probabilistic"} if measured.sampled else {}
    judged = {"rejection_sample_method": "block"} if measured.block else {}
    size = {"num_speculative_tokens": measured.depth}
    return {"method": keys["method"], "model": measured.drafting(), **size, **keys, **sampling, **judged}


def _draft_model(measured: Measured) -> tuple[dict[str, Any], list[str]]:
    keys = _model(measured, {"method": "draft_model"})
    if measured.value("drafter.translate") is not True:
        return keys, []
    keys = {key: value for key, value in keys.items() if key != "draft_sample_method"}
    greedy = ["Over two vocabularies vLLM drafts greedily; sampled drafts were measured."] if measured.sampled else []
    return {**keys, "use_heterogeneous_vocab": True}, greedy


def _parallel(measured: Measured) -> tuple[dict[str, Any], list[str]]:
    return _model(measured, {"method": "draft_model", "parallel_drafting": True}), []


def _eagle(measured: Measured) -> tuple[dict[str, Any], list[str]]:
    return _model(measured, EAGLE[measured.format]), []


def _heads(measured: Measured) -> Configuration:
    """Return the configuration of the last release that drafted with heads."""
    formats = HEADS[measured.name]
    gone = f"vLLM {VERSION} no longer has the method {measured.name}; {LAST_WITH_HEADS} is the last that had it."
    if measured.format not in formats:
        return without_method(ENGINE, f"{gone} {trained_here(measured, formats)}")
    keys = {
        "method": formats[measured.format],
        "model": measured.drafting(),
        "num_speculative_tokens": measured.depth,
    }
    remarks = (gone, *_chains_only(measured))
    return Configuration(f"vLLM {LAST_WITH_HEADS}", _command(measured, keys), remarks=remarks)

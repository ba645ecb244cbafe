"""The generation configuration that comes with a checkpoint: which of its keys a run does not follow, in one sentence.

Of that file a run follows the end tokens. How tokens are chosen is what `sampling` says, for every model alike.
"""

from typing import Any

from specdec.sampling import SamplingConfig

# Keys that say nothing of which tokens are chosen, and the end tokens, which are followed.
_SILENT = "_from_model_config transformers_version use_cache cache_implementation cache_config do_sample".split()
_SILENT_PARTS = ("token_id", "max_", "min_length", "min_new", "output_", "return_dict", "compile", "assist", "draft")
_SAMPLED = ("temperature", "top_k", "top_p", "min_p", "typical_p")
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "num_beams": 1}


def not_followed(model: Any, sampling: SamplingConfig) -> tuple[str, ...]:
    """Return a sentence with the keys and values of a model's generation configuration that a run with `sampling` does
    not follow; nothing where there are none.
    """
    config = getattr(model, "generation_config", None)
    if config is None:
        return ()
    asked = {}
    for key, value in config.to_diff_dict().items():
        silent = key in _SILENT or any(part in key for part in _SILENT_PARTS)
        if not silent and value not in (None, False, [], {}, 0) and value != _NEUTRAL.get(key):
            asked[key] = value
    if not getattr(config, "do_sample", False):
        asked = {key: value for key, value in asked.items() if key not in _SAMPLED}  # it does not use them either
    elif sampling.greedy:
        asked = {"do_sample": True, **asked}
    differing = {key: value for key, value in asked.items() if value != getattr(sampling, key, None)}
    if not differing:
        return ()
    told = ", ".join(f"{key}={value}" for key, value in sorted(differing.items()))
    return (
        f"The checkpoint's generation_config.json asks for {told}, which is not followed: sampling.* alone says how "
        "tokens are chosen, and of that file only the end tokens count.",
    )

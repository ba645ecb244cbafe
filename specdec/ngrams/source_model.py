"""The model that a table of tokens is made from: the target's own, or one that has the same tokens."""

from dataclasses import dataclass
from typing import Any

from specdec.errors import UsageError
from specdec.models.load import Dtype, describe_model, load_model, load_tokenizer, model_path, resolve_dtype
from specdec.targets.base import Target


@dataclass(frozen=True)
class SourceModel:
    """A decoder-only model over the target's tokens."""

    model: Any
    name: str  # for messages
    described: dict[str, Any]  # see `describe_model`
    tokenizer: Any  # the target's, or the model's own where the target has none; None where neither has


def source_model(name: str | None, dtype: Dtype, target: Target) -> SourceModel | None:
    """Load the model that `drafter.model` and `drafter.dtype` name; null is the target's own, None if it has none.
    Raises UsageError: an encoder-decoder, another vocabulary, a dtype but no model; ModelLoadError: see `load_model`.
    """
    if name is None:
        if dtype != "auto":
            raise UsageError(
                f"Bad value drafter.dtype={dtype}: it is of drafter.model; the target's own model has target.dtype."
            )
        if target.model is None:
            return None
        if target.model.config.is_encoder_decoder:
            raise UsageError(
                "Bad value drafter.model=null: the target is an encoder-decoder, which says nothing about a token on "
                "its own; use another drafter, such as ngram."
            )
        return SourceModel(target.model, "the target", target.describe(), target.tokenizer)
    path = model_path(name)
    model = load_model(path, dtype=resolve_dtype(dtype), device=target.device, attention="auto")
    if model.config.is_encoder_decoder:
        raise UsageError(
            f"Bad value drafter.model={name}: it is an encoder-decoder, which says nothing about a token on its own; "
            "use a decoder-only model."
        )
    size = model.config.get_text_config().vocab_size
    if size != target.vocab_size:
        raise UsageError(
            f"Bad value drafter.model={name}: its vocabulary has {size} tokens and the target's {target.vocab_size}; "
            f"use the target's own model (a recorded stream takes target.vocab_size={size})."
        )
    tokenizer = load_tokenizer(path)
    if None not in (tokenizer, target.tokenizer) and tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise UsageError(
            f"Bad value drafter.model={name}: its tokenizer is not the target's; use the target's own model."
        )
    return SourceModel(model, name, describe_model(model, path), target.tokenizer or tokenizer)

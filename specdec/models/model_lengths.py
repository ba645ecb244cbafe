"""Lengths in a model's configuration at which its attention or its positions may change, and a copy with short ones.

Names differ from one architecture to the next (window, chunk, block, span, ...), so every integer counts that no name
marks as another kind of number. Knows nothing of decoding.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from transformers import PreTrainedConfig
from transformers.initialization import no_init_weights

from specdec.models.quantization import quantization_of

Key = tuple[str | int, ...]
"""The way to a value of a configuration: names of keys, numbers of list entries."""

# Words by which a key speaks of something else than a length in tokens.
_OTHER = frozenset(
    "vocab hidden embed embd embedding emb intermediate inner ffn ff mlp feed head heads layer layers expert experts "
    "token tokens id ids dim dims rank tok topk group groups labels label beam beams bits type types depth width model "
    "buckets kv version seed kernel conv state tp factor hash byte aux loss std dropout axis channels scalar "
    "expand expansion ssm".split()
)
# Words that mark a length whatever stands beside them.
_LENGTH = frozenset("window chunk span original lookback".split())
_COUNTED = frozenset("head heads layer layers expert experts".split())  # `max_window_layers` counts layers
# Parts of a model of several modalities, and what T5's configurations keep for `generate`.
_OTHER_PARTS = re.compile(r"vision|audio|image|speech|text_encoder|vq_config|task_specific")
_SHORTEST = 8  # tokens; the shortest length of a shortened copy, each further one is twice the one before
_DEPTHS = ("num_hidden_layers", "num_decoder_layers", "decoder_layers")  # T5 and BART count their decoder's apart
_LAYERS = 6  # of a shortened copy, where no list of the configuration tells kinds of layers apart


def text_config(config: Any) -> Any:
    """Return the part of a model's configuration that speaks of texts: all of it where a text is encoded as well."""
    return config if config.is_encoder_decoder else config.get_text_config()


def lengths_of(config: Any, longest: int) -> dict[Key, int]:
    """Return the integers of a text configuration that may be lengths in tokens, by their key; nested ones and those of
    single layers too. Those that are not shorter than the context `longest` are never crossed, and left out.
    """
    return {
        key: value
        for key, value in _integers(vars(config), ())
        if 2 <= value < longest and _may_be_length([part for part in key if isinstance(part, str)][-1])
    }


def _integers(values: Any, key: Key) -> Iterator[tuple[Key, int]]:
    values = vars(values) if isinstance(values, PreTrainedConfig) else values
    if isinstance(values, int) and not isinstance(values, bool):
        yield key, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            if not str(name).startswith("_") and not _OTHER_PARTS.search(str(name)):
                yield from _integers(value, (*key, name))
    elif isinstance(values, list | tuple):
        for place, value in enumerate(values):
            yield from _integers(value, (*key, place))


def _may_be_length(name: str) -> bool:
    words = set(re.split(r"[_\W]+", name.lower()))
    if words & _COUNTED:
        return False
    if words >= {"index", "topk"}:  # the tokens that sparse attention reads
        return True
    return bool(words & _LENGTH) or not words & _OTHER


def shortened(model: Any, lengths: Mapping[Key, int]) -> tuple[Any, dict[int, int]] | None:
    """Return a model of the same class and weights whose lengths are short ones, and the short length of each; None
    where there is no such copy. It has the first layers only, as many as show every kind. Lengths keep their order, and
    each is twice the one before, so that what is divisible stays so; one that other weights belong to stays.
    """
    if quantization_of(model) is not None or len({weight.device for weight in model.parameters()}) > 1:
        return None  # its weights are not plain tensors in one place
    long = {key: value for key, value in lengths.items() if value > _SHORTEST}
    for keys in _subsets(long):
        short = {value: _SHORTEST << place for place, value in enumerate(sorted({long[key] for key in keys}))}
        short = {value: length for value, length in short.items() if length < value}
        for trimmed in (True, False):
            try:
                config = copy.deepcopy(model.config)
                text = text_config(config)
                for key in keys:
                    if long[key] in short:
                        _set(text, key, short[long[key]])
                if trimmed:
                    _trim(text)
                return (_with_weights(model, config), short) if short else None
            except Exception:  # configurations and modules raise some ten unrelated types at values they do not take
                continue
    return None


def _subsets(keys: Mapping[Key, int]) -> Iterator[list[Key]]:
    """Yield all keys, then those whose names speak of a length, then each alone."""
    everything = list(keys)
    yield everything
    named = [key for key in everything if set(re.split(r"[_\W]+", str(key[-1]))) & (_LENGTH | {"block", "local"})]
    if named and named != everything:
        yield named
    if len(everything) > 1:
        yield from ([key] for key in named or everything)


def _set(config: Any, key: Key, value: int) -> None:
    """Change a value of a configuration, in its nested parts too."""
    for part, following in pairwise(key):
        config = getattr(config, str(part)) if isinstance(config, PreTrainedConfig) else config[part]
        if isinstance(config, tuple):
            raise TypeError(f"{part} cannot be changed at {following}")
    if isinstance(config, PreTrainedConfig):
        setattr(config, str(key[-1]), value)
    else:
        config[key[-1]] = value


def _trim(config: Any) -> None:
    """Keep the first layers only, of encoder and decoder, as many as show every kind that the configuration lists."""
    for part in (config, *(value for value in vars(config).values() if isinstance(value, PreTrainedConfig))):
        depths = {key: getattr(part, key) for key in _DEPTHS if getattr(part, key, None)}
        lists = {
            key: value
            for key, value in vars(part).items()
            if isinstance(value, list)
            and len(value) in depths.values()
            and all(isinstance(kind, str | int) for kind in value)
        }
        shown = [max(value.index(kind) for kind in set(value)) + 1 for value in lists.values()]
        kept = max([2, *shown]) if lists else _LAYERS
        for key, value in (lists | depths).items():
            setattr(part, key, value[:kept] if isinstance(value, list) else min(value, kept))


def _with_weights(model: Any, config: Any) -> Any:
    """Return a model of this class with another configuration over the same weights; RuntimeError if some misfit."""
    with no_init_weights():  # memory that is not written takes no place
        twin = type(model)._from_config(config, dtype=model.dtype)
    found = twin.load_state_dict(model.state_dict(), strict=False, assign=True)
    if found.missing_keys:
        raise RuntimeError(f"{found.missing_keys[0]} is not among the weights")
    twin.tie_weights()
    return twin.to(model.device).eval().requires_grad_(False)

"""The target's own bigram: its most likely tokens after each single token of its vocabulary, in a table made once."""

import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from specdec.config import AtLeastOne, Named, NonEmpty, typed
from specdec.drafters.base import drafters
from specdec.drafters.base.lookup import TokenLookup
from specdec.errors import ModelLoadError, UsageError
from specdec.models.cache import CACHE
from specdec.models.load import Dtype, describe_model, load_model, load_tokenizer, model_path, resolve_dtype
from specdec.ngrams.cache_folder import made_once, read_arrays, write_arrays
from specdec.progress import stage
from specdec.sampling import among_largest
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_FORMAT = "specdec bigram table 1"
_SHARED = 0.9  # of the tokens: beyond it a table says the same of all
_LARGEST_LAW = 4096  # tokens of a target without a model, which is asked token by token


@typed
class ModelBigramConfig(Named):
    model: NonEmpty | None
    dtype: Dtype
    begin: bool
    k: AtLeastOne
    extend: Literal["chain", "greedy"]
    extend_k: AtLeastOne
    extend_w: AtLeastOne
    batch_size: AtLeastOne
    cache_dir: NonEmpty | None

    def __post_init__(self) -> None:
        if self.extend == "greedy" and self.extend_k > self.k:
            raise UsageError(f"Bad value drafter.extend_k={self.extend_k}: it should be at most drafter.k={self.k}.")


@dataclass(frozen=True)
class Form:
    """The form of a table; form and weights together determine its content."""

    dtype: str  # that the model computes in
    begin: int | None  # token in front of every x; None if x stands alone
    k: int  # number of tokens ranked after each x
    extended: int  # number of these k that are continued by greedy decoding
    width: int  # tokens of a continuation, its first token y included


@dataclass(frozen=True)
class BigramTable:
    first: np.ndarray  # [V, k] int32, the most likely tokens y after each x, best first, equals by token number
    rest: np.ndarray  # [V, extended, width - 1] int32, the tokens of greedy decoding after x y


@dataclass(frozen=True)
class SourceModel:
    """The model that a table of tokens is made from: a decoder-only one over the target's tokens."""

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


@drafters.register("model_bigram")
class ModelBigram(TokenLookup):
    """Proposes the k most likely tokens of p(. | x), x the last token, under the target itself (N-Grammys 2411.03786).
    x is alone in the model's context, unless `begin` puts the begin token in front.

    Deterministic: q is a point mass. Further tokens of a row follow the table from token to token (`extend=chain`), or
    are those that greedy decoding writes after the pair (`extend=greedy`): these are tabulated for the first `extend_k`
    choices after every token and for `extend_w` tokens of a row; what is beyond follows the table. A node of a tree
    takes the choice of its rank among its siblings, after its parent. A draft costs a few list look-ups and no model.

    Needs the target's model, or `drafter.model` for a target that has none; a target with an explicit law of few tokens
    is asked for that. Tables of models are kept in `cache_dir`.
    """

    strategy = "model_bigram"

    def __init__(self, config: ModelBigramConfig, target: Target) -> None:
        source = source_model(config.model, config.dtype, target)
        extended, width = (config.extend_k, config.extend_w) if config.extend == "greedy" else (0, 1)
        form = Form("law", None, config.k, extended, width)
        table = _of_law(config, form, target) if source is None else _of_model(config, form, source, target)
        shared = np.bincount(table.first[:, 0]).max() / len(table.first)
        if shared > _SHARED and source is not None and not config.begin:
            logger.warning(
                "After %.1f%% of the tokens %s finds the same one most likely: it has learnt to attend to what begins "
                "a text, and says nothing of a token alone; drafter.begin=true puts its begin token in front.",
                100 * shared,
                source.name,
            )
        known = {} if source is None else source.described
        about = {"bigram_tokens": int(table.first.shape[1]), "extend": config.extend}
        super().__init__(target, config.k, {**known, **about}, table.first, table.rest)
        if config.extend == "greedy":
            self.capabilities = replace(self.capabilities, replay="start")


def _of_model(config: ModelBigramConfig, form: Form, source: SourceModel, target: Target) -> BigramTable:
    begin = source.model.config.get_text_config().bos_token_id if config.begin else None
    if config.begin and begin is None:
        raise UsageError(f"Bad value drafter.begin=true: {source.name} has no begin token; use false.")
    form = replace(form, dtype=source.described["dtype"], begin=None if begin is None else int(begin))

    def make() -> BigramTable:
        logger.info("Tabulating p(. | x) of %s for every token x", source.name)
        return tabulate(source.model, source.name, form, config.batch_size)

    def key() -> str:
        # A model that was made in memory has neither; it is the target's own.
        weights = source.described.get("sha256") or source.described.get("commit") or target.hidden.identity
        return f"{_FORMAT}/{weights}/{json.dumps(asdict(form))}"

    return made_once(
        config.cache_dir,
        key,
        "bigram table",
        make,
        lambda path, table: write_arrays(path, vars(table), _FORMAT),
        lambda path: BigramTable(**read_arrays(path, _FORMAT)),
    )


def _of_law(config: ModelBigramConfig, form: Form, target: Target) -> BigramTable:
    """Return the same table of a target without a model, made from its own law, one context at a time; it is not kept.
    Raises UsageError: a recorded stream, which has no law; too large a vocabulary.
    """
    size = target.vocab_size
    if size > _LARGEST_LAW:
        raise UsageError(
            f"Bad value drafter.model=null: the target has no model, and asking it about {size} tokens one by one "
            "would take too long; give a drafter.model with the same tokens."
        )
    if config.begin:
        raise UsageError("Bad value drafter.begin=true: a target without a model has no begin token; use false.")
    try:
        first = top_tokens(torch.stack([target.score([token], [])[-1] for token in range(size)]), min(form.k, size))
    except UsageError:
        raise UsageError(
            "Bad value drafter.model=null: the target has no model, and cannot say what follows a token on its own; "
            "give a drafter.model with the same tokens."
        ) from None
    rest = np.zeros((size, min(form.extended, first.shape[1]), form.width - 1), dtype=np.int32)
    for token, rank in np.ndindex(rest.shape[:2]):
        text = [token, int(first[token, rank])]
        while len(text) < form.width + 1:
            text.append(int(target.score(text, [])[-1].max(dim=-1).indices))
        rest[token, rank] = text[2:]
    return BigramTable(first.int().cpu().numpy(), rest)


@torch.inference_mode()
def tabulate(model: Any, name: str, form: Form, batch_size: int) -> BigramTable:
    """Make a table: one call of the model for each `batch_size` tokens of the vocabulary, positions from 0; for
    continuations, `width` - 1 more calls for each `batch_size` pairs. Raises ModelLoadError: the logits are not finite.
    """
    size: int = model.config.get_text_config().vocab_size
    batches = torch.arange(size, device=model.device).split(batch_size)
    begin = [] if form.begin is None else [torch.tensor(form.begin, device=model.device)]
    k = min(form.k, size)

    def inputs(*columns: Tensor) -> Tensor:
        return torch.stack([*(token.expand_as(columns[0]) for token in begin), *columns], dim=-1)  # [B, S]

    first, rest = list[Tensor](), list[Tensor]()
    with stage("model bigram", total=size, told=False) as under_way:
        for tokens in batches:
            logits = model(input_ids=inputs(tokens), use_cache=False).logits[:, -1]  # [B, V]
            if not torch.isfinite(logits.max(dim=-1).values).all():
                raise ModelLoadError(
                    f"No bigram table can be made of {name}: its logits are not finite; try another dtype, as float32."
                )
            first.append(top_tokens(logits, k))
            under_way.advance(len(tokens))
    ranked = torch.cat(first)  # [V, k]
    extended = min(form.extended, k)
    if extended and form.width > 1:
        firsts = torch.arange(size, device=model.device).repeat_interleave(extended)
        pairs = inputs(firsts, ranked[:, :extended].flatten())
        with stage("model bigram's continuations", total=len(pairs), told=False) as under_way:
            for tokens in pairs.split(batch_size):
                written, cache = list[Tensor](), None
                while len(written) < form.width - 1:  # greedy decoding
                    output = model(input_ids=tokens, use_cache=True, **{CACHE: cache})
                    tokens, cache = output.logits[:, -1].max(dim=-1, keepdim=True).indices, output[CACHE]
                    written.append(tokens)
                rest.append(torch.cat(written, dim=-1))
                under_way.advance(len(tokens))
    continuations = torch.cat(rest) if rest else torch.empty(0)
    shape = size, extended, form.width - 1
    return BigramTable(ranked.int().cpu().numpy(), continuations.int().cpu().numpy().reshape(shape))


def top_tokens(logits: Tensor, k: int) -> Tensor:
    """Return the tokens [B, k] with the largest logits [B, V], best first, equals in the order of their numbers: that
    of `topk` is arbitrary, and equals are common in 16-bit.
    """
    tokens = among_largest(logits, k).nonzero()[:, 1].reshape(len(logits), k)
    order = logits.gather(-1, tokens).sort(dim=-1, descending=True, stable=True).indices
    return tokens.gather(-1, order)

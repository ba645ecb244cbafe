"""A check, made when a model is opened, that it computes over our cache what it computes without one.

Some models take positions from the cache's length, or biases from the place in the row, or have a window of their own,
and are wrong without a fault. The calls of decoding are compared with plain forward passes at the beginning of a text
and around every length that the configuration names (windows, chunks, original lengths): the model itself where that is
cheap, and a copy with short lengths in any case. What was found is kept in a small file for the next run.
"""

import hashlib
import inspect
import json
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers

from specdec import ranks
from specdec.errors import ModelLoadError, is_out_of_memory
from specdec.models.cache import CACHE as MODEL_CACHE
from specdec.models.comparison import BEHIND, BITS_16, CHECKS, ONE_BY_ONE, PROMPT, Comparison, plain_logits, tokens_of
from specdec.models.decoder import Decoder, Probed
from specdec.models.load import content_hash
from specdec.models.model_lengths import Key, lengths_of, shortened, text_config
from specdec.models.seq2seq import AnyDecoder, Seq2SeqDecoder, decoder_of
from specdec.plugins import code_hash
from specdec.progress import Stage, stage
from specdec.records import chain_tree
from specdec.text.writing import read_json, write_atomically

logger = logging.getLogger(__name__)

_NEAR = 64  # tokens; lengths up to here are crossed at more places and at any cost, as are changes of positions
_SHORTEST = 8  # tokens of context without which nothing is probed
_PLACES = (-2, 0, 3)  # tokens; a length is crossed by drafts behind prompts that are so much longer than it
_FEW_PLACES = (-2, 3)  # those for lengths that are crossed by the model itself and not near
_FAR = 150  # tokens of a prompt behind which every small model is compared
_CHEAP = 1e9  # operations; a model is small if a comparison that far takes fewer
_TIMED = 256  # tokens of the pass by which the time of others is foretold
_SECONDS = 10.0  # that comparisons around the configuration's lengths may take when a model is opened
_ROUND, _ROUNDS = 4, 4  # tokens of a draft, and how many are timed
_COPIED = 3e8  # weights; a shortened copy of fewer computes in float32

CACHE = "SPECDEC_CACHE"  # environment variable: the folder of what is kept between runs
_OTHER = "use another model"
_KNOWN: WeakKeyDictionary[Any, tuple[tuple[str, ...], Probed]] = WeakKeyDictionary()


def open_decoder(decoder: AnyDecoder) -> Probed:
    """Find out which calls a model can be trusted with, and set its decoder accordingly; then fill its cache with a
    token, so that the size of a slot is known. Where only eager attention works, the model is switched to it; where it
    takes no masks and positions of ours, as BLOOM, its own are tried. Raises ModelLoadError: it fails, its logits are
    not finite, a later token changes earlier logits, or a chain over the cache differs from a plain pass.
    """
    how = _how(decoder)
    known = _KNOWN.get(decoder.model)
    probed = known[1] if known is not None and known[0] == how else _kept_or_probed(decoder, how)
    _KNOWN[decoder.model] = _how(decoder), probed  # how it computes from now on
    decoder.probed, decoder.stepping = probed, probed.states == "stepped"
    if probed.context is not None:
        decoder.context_length = min(decoder.context_length, probed.context)
    if not probed.pieces:
        decoder.prefill_chunk = decoder.context_length
    for sentence in said_of(decoder):
        logger.warning(sentence)
    with torch.inference_mode():
        decoder.start(tokens_of(decoder, 2), 8)
    return probed


def said_of(decoder: AnyDecoder) -> tuple[str, ...]:
    """Return what a reader of a run has to know about a decoder's model."""
    # An encoder-decoder takes rows by its nature.
    probed = replace(decoder.probed, packed=True) if isinstance(decoder, Seq2SeqDecoder) else decoder.probed
    sentences = probed.sentences(_who(decoder))
    if lacking := missing_kernels(decoder.model):
        missing = " and ".join(lacking) + (" is" if len(lacking) == 1 else " are")
        sentences += (
            f"{_who(decoder)} computes some layers in plain torch, because {missing} not installed: the results are "
            "the same; its calls, and so all times measured here, are slower than by GPU kernels.",
        )
    return sentences


def missing_kernels(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the packages, as pip names them, whose kernels the model's layers would call if they were installed.

    transformers (5.24, integrations/hub_kernels.py) wraps such a function, and the wrapper's closure says which package
    it looked for and whether it found it there. The functions are those in the modules of the model's own classes.
    """
    homes = {type(module).__module__ for module in model.modules() if type(module).__module__ in sys.modules}
    packages = set[str]()
    for home in sorted(homes):
        for function in list(vars(sys.modules[home]).values()):
            while inspect.isfunction(function):  # a decorator of the hub's kernels may stand around it
                cells = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
                if cells.get("is_new_implementation") is False and "package" in cells:
                    packages.add({"fla": "flash-linear-attention"}.get(cells["package"], cells["package"]))
                function = getattr(function, "__wrapped__", None)
    return tuple(sorted(package.replace("_", "-") for package in packages))


def probe(decoder: AnyDecoder) -> Probed:
    """Compare the calls of decoding with plain forward passes: some twenty calls on a few tokens each, and as many
    around every length of the configuration; raise ModelLoadError as `open_decoder` does.
    """
    if decoder.context_length < _SHORTEST:
        return Probed()
    stock = decoder.model.config._attn_implementation
    with stage("Compare with plain passes", "once for these weights", told=False) as under_way:
        try:
            probed = _compared(decoder, under_way)
        except ModelLoadError as refusal:
            probed, refused = None, refusal
        if probed is not None and (probed.packed or probed.states or isinstance(decoder, Seq2SeqDecoder)):
            return probed
        if stock != "eager" and _switched(decoder, "eager"):
            with suppress(ModelLoadError):
                eager = _compared(decoder, under_way)
                if probed is None or eager.packed:
                    return replace(eager, attention="eager")
            _switched(decoder, stock)
        if probed is None and isinstance(decoder, Decoder):
            decoder.probed = Probed(own_masks=True)
            with suppress(ModelLoadError):
                return replace(_compared(decoder, under_way), own_masks=True)
            decoder.probed = Probed()
        if probed is None:
            raise refused
        return probed


def _compared(decoder: AnyDecoder, under_way: Stage) -> Probed:
    """Make all comparisons of a model; of one whose layers keep states, with the cheaper way to bring these back, or
    with the other one where that is wrong.
    """
    if not decoder.recurrent:
        return _Probe(decoder, under_way).run()
    seconds = [_round_seconds(decoder, False)]
    if decoder.cache.way() != "recorded":
        seconds.append(_round_seconds(decoder, True))
    refused: ModelLoadError | None = None
    for _, stepping in sorted(zip(seconds, (False, True), strict=False)):
        decoder.stepping = stepping
        try:
            probed = _Probe(decoder, under_way).run()
            return replace(probed, states=decoder.cache.way())
        except ModelLoadError as refusal:
            refused = refused or refusal
    assert refused is not None
    raise refused


@torch.inference_mode()
def _round_seconds(decoder: AnyDecoder, stepping: bool) -> float:
    """Return the shortest time of some calls on a draft of a usual length that is half accepted, with what brings the
    states back; infinity where the model cannot make them.
    """
    decoder.stepping, took = stepping, []
    try:
        root = decoder.start(tokens_of(decoder, PROMPT), PROMPT + _ROUNDS * (_ROUND + 1))
        tokens = torch.tensor([root] * (_ROUND + 1), device=decoder.device)
        for _ in range(_ROUNDS):
            began, prefix = time.perf_counter(), decoder.length
            decoder.forward(tokens, chain_tree(_ROUND))
            decoder.cache.commit(prefix, range(prefix, prefix + 1 + _ROUND // 2))
            if decoder.device.type == "cuda":
                torch.cuda.synchronize(decoder.device)
            took.append(time.perf_counter() - began)
    except Exception:  # models raise some ten unrelated types at calls that they do not expect
        return math.inf
    return float(ranks.given(min(took)))


def cross(decoder: AnyDecoder, longest: int, seconds: float | None = None, batched: bool = False) -> str | None:
    """Compare the model with plain passes around the lengths of its configuration that texts of `longest` tokens cross,
    and take note of those that were. Return what disagrees, in a sentence (see `Target.disagreement`).
    """
    crossed = [length for length in decoder.probed.pending if length < longest]
    if not crossed:
        return None
    allowed, pace = math.inf if seconds is None else seconds, _Pace(decoder)
    for length in crossed:
        prompts = _around(length, decoder.context_length)
        allowed -= pace.seconds(prompts, allowed)
        if allowed < 0:
            break
        for prompt in prompts:
            wrong = _disagreement(decoder, Comparison(decoder, prompt), batched)
            if wrong is not None:
                return (
                    f"{_who(decoder)} cannot be trusted with texts of more than {length:,} tokens, a length of its "
                    f"configuration: from there on {wrong}."
                )
        pending = tuple(other for other in decoder.probed.pending if other != length)
        decoder.probed = replace(decoder.probed, pending=pending)
        _KNOWN[decoder.model] = _how(decoder), decoder.probed
        _keep(_path(decoder, _how(decoder)), decoder.probed)
    return None


@torch.inference_mode()
def _disagreement(decoder: AnyDecoder, trial: Comparison, batched: bool) -> str | None:
    """Return what disagrees behind one prompt among the calls that the decoder is trusted with; calls on several texts
    are trusted no more where they disagree and are not made.
    """
    probed, chunk = decoder.probed, decoder.prefill_chunk
    try:
        if not trial.plain():
            return None  # texts of this length are beyond the model, by whatever call
        for check, trusted, words in (
            (trial.causal, True, "a later token changes its logits at earlier places"),
            (trial.chain, True, "chains differ from plain forward passes"),
            (trial.packed, probed.packed, "drafts that branch differ from plain forward passes"),
            (trial.rows, probed.rows and not probed.packed, "drafts by rows differ from plain forward passes"),
            (trial.pieces, probed.pieces, "a prefill in several calls differs from plain forward passes"),
        ):
            if trusted and not check():
                return words
        if probed.packed and probed.batch and not trial.batch():
            if batched:
                return "texts decoded in one call differ from plain forward passes over each"
            decoder.probed = replace(probed, batch=False)
    finally:
        decoder.prefill_chunk = chunk
    return None


class _Probe:
    """The comparisons of one model, and what they found all together."""

    def __init__(self, decoder: AnyDecoder, under_way: Stage) -> None:
        self._decoder, self._under_way = decoder, under_way
        self._errors: dict[str, float] = {}
        self._faulty: set[str] = set()
        self._served = Probed()
        config = text_config(decoder.model.config)
        self._border = position_border(config)
        # Behind a length at which positions change nothing agrees; that one has a check of its own.
        self._context_kept = min(decoder.context_length, self._border or decoder.context_length)
        self._lengths: dict[Key, int] = lengths_of(config, self._context_kept)
        cheap = decoder.flops_per_token * 12 * _FAR < _CHEAP
        self._cheap_far = cheap and self._context_kept >= _FAR + BEHIND
        # About as many are made: at the beginning, far behind it, and around each length, also of a copy.
        compared = 1 + self._cheap_far + 2 * len(_PLACES) * len(set(self._lengths.values()))
        under_way.total = under_way.done + CHECKS * compared

    @torch.inference_mode()
    def run(self) -> Probed:
        """Make all comparisons; raise ModelLoadError as `open_decoder` does."""
        decoder = self._decoder
        chunk = decoder.prefill_chunk
        try:
            # The first text of an encoder-decoder is its start token alone.
            first = 1 if isinstance(decoder, Seq2SeqDecoder) else _clipped(PROMPT, self._context_kept)
            self._compare(decoder, first)
            self._compare_copy()
            if self._cheap_far:
                self._compare(decoder, _FAR, f" behind {_FAR} tokens")
            pending = self._cross_lengths({first})
            border = self._border
            if border is None or border >= decoder.context_length:
                border = None
            elif border <= _NEAR:  # a text that crosses it is short enough to be tried, and may come out right
                trial = Comparison(decoder, _clipped(PROMPT, decoder.context_length))
                border = None if trial.crossing(border) else border
                self._errors |= trial.errors
        finally:
            decoder.prefill_chunk = chunk
        return replace(self._served, context=border, pending=pending, errors=self._errors)

    def _compare(self, decoder: AnyDecoder, prompt: int, near: str = "") -> None:
        """Make all checks behind a prompt of so many tokens, and take note of what may be asked of the model; raise
        ModelLoadError as `open_decoder` does. `near` says in words what lies there; "" for nothing.
        """
        who, trial, served = _who(self._decoder), Comparison(decoder, prompt, self._under_way.advance), self._served
        try:
            if not trial.plain():
                logger.debug("%s: %s", who, trial.faults["plain"])
                if near:
                    return  # texts of this length are beyond the model, by whatever call
                raise ModelLoadError(f"{who} cannot compute a plain forward pass over token ids alone: {_OTHER}.")
            if not trial.finite:
                if near:
                    return  # some token there breaks the model; decoding says so where it meets it
                raise ModelLoadError(f"{who} cannot be used: its logits are not finite; try another dtype, as float32.")
            if not trial.causal():
                raise ModelLoadError(
                    f"{who} cannot be decoded: a later token changes its logits at earlier places{near}, by "
                    f"{trial.errors['causal']:.2g} of their spread, so it is no causal language model; use one that is "
                    "(a model of BERT's kind needs is_decoder=true in its config.json, and weights trained so)."
                )
            if not trial.chain():
                raise ModelLoadError(self._refusal(trial, who, near))
            packed = served.packed and trial.packed()
            self._served = replace(
                served,
                packed=packed,
                # A batch has a copy of the prompt for every path: behind long ones it is asked for where it is needed.
                rows=served.rows and (served.packed and prompt > ONE_BY_ONE or trial.rows()),
                batch=served.batch and packed and trial.batch(),
                pieces=served.pieces and trial.pieces(),
                static=served.static and trial.static(),
            )
        finally:
            for fault in trial.faults.items():
                logger.debug("%s, check %s: %s", who, *fault)
            self._faulty |= trial.faults.keys()
            for check, error in trial.errors.items():
                self._errors[check] = max(error, self._errors.get(check, 0.0))
            for check in self._faulty:  # an error at another length would say too little
                self._errors.pop(check, None)

    def _refusal(self, trial: Comparison, who: str, near: str) -> str:
        model, remedy = self._decoder.model, _OTHER
        if MODEL_CACHE not in inspect.signature(type(model).forward).parameters:
            why = "it takes no cache that could be rolled back after a rejection"
        elif trial.faults:
            why = f"it does not take the mask and the positions that a draft behind a cache{near} needs"
        elif "rejected" in trial.errors:
            why = f"rejected tokens change its logits{near}, by {trial.errors['rejected']:.2g} of their spread"
        else:
            why = f"after rolling back its cache{near}, its logits differ from those of a plain forward pass, by "
            why += f"{trial.errors['chain']:.2g} of their spread"
            remedy = f"try float32 weights, or {_OTHER}" if model.dtype in BITS_16 else _OTHER
        return f"{who} cannot be used: {why}; {remedy}."

    def _compare_copy(self) -> None:
        """Compare a copy of the model with short lengths: around each of them, and behind all."""
        decoder = self._decoder
        made = None if ranks.count() > 1 else shortened(decoder.model, self._lengths)  # ranks hold shares of weights
        if made is None:
            return
        model, short = made
        if decoder.model.dtype in BITS_16 and sum(weight.numel() for weight in model.parameters()) < _COPIED:
            model = model.float()
        copied = decoder_of(model, decoder.name, decoder.prefill_chunk, bool(decoder.recurrent))
        copied.stepping, copied.probed = decoder.stepping, decoder.probed
        context, longest = copied.context_length, max(short.values())
        prompts = {prompt: length for length, few in short.items() for prompt in _around(few, context)}
        prompts |= {_clipped(prompt, context): max(short) for prompt in (2 * longest, 3 * longest + BEHIND - 1)}
        for prompt, length in sorted(prompts.items()):
            self._compare(copied, prompt, f" around a length of its configuration ({self._named(length)})")

    def _cross_lengths(self, compared: set[int]) -> tuple[int, ...]:
        """Compare the model around the lengths of its configuration, short ones first, but not behind prompts of the
        lengths `compared` again; return those that would take too long.
        """
        decoder = self._decoder
        lengths = sorted(set(self._lengths.values()))
        pace, allowed = None, _SECONDS
        for place, length in enumerate(lengths):
            prompts = [prompt for prompt in _around(length, self._context_kept) if prompt not in compared]
            compared |= {*prompts}
            if length > _NEAR:
                pace = pace or _Pace(decoder)
                if pace.seconds(prompts, allowed) > allowed:
                    return tuple(lengths[place:])
            for prompt in prompts:
                if allowed < 0:  # the last one took longer than foretold
                    return tuple(lengths[place:])
                began = time.perf_counter()
                try:
                    self._compare(decoder, prompt, f" around a length of its configuration ({self._named(length)})")
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    return tuple(lengths[place:])
                if length > _NEAR:
                    allowed -= ranks.given(time.perf_counter() - began)
        return ()

    def _named(self, length: int) -> str:
        keys = [key for key, value in self._lengths.items() if value == length]
        return f"{'.'.join(map(str, keys[0]))}={length}"


def position_border(config: Any) -> int | None:
    """Return the length in tokens from which on a model computes all rotary positions in another way than the keys in a
    cache; None without one. Long-rope exchanges its factors at the original length (LongRoPE, 2402.13753), dynamic NTK
    scaling changes its base with every text that is longer than the model's context.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    borders = []
    for kind in (parameters, *(each for each in parameters.values() if isinstance(each, dict))):
        if kind.get("rope_type") == "longrope":
            borders.append(int(kind["original_max_position_embeddings"]))
        elif kind.get("rope_type") == "dynamic":
            borders.append(int(config.max_position_embeddings))
    return min(borders, default=None)


def _clipped(prompt: int, context: int) -> int:
    """Return the length of a prompt behind which a draft fits into the context."""
    return max(2, min(prompt, context - BEHIND))


def _around(length: int, context: int) -> list[int]:
    """Return the lengths of prompts whose drafts cross a length, and stand behind it."""
    places = _PLACES if length <= _NEAR else _FEW_PLACES
    return sorted({_clipped(length + tokens, context) for tokens in places})


class _Pace:
    """The time that comparisons of a model take: what plain passes on two numbers of tokens take, as a line and a
    square of the number. The longer one is no longer than the texts that are asked about, and only timed where the line
    alone does not exceed what is allowed.
    """

    def __init__(self, decoder: AnyDecoder) -> None:
        self._decoder = decoder
        self._short = min(_TIMED, decoder.context_length)
        self._linear = self._seconds(self._short) / self._short
        self._longer, self._square = self._short, 0.0

    def seconds(self, prompts: Sequence[int], allowed: float) -> float:
        """Return the time of comparisons behind prompts of these lengths, or more than `allowed` if they exceed it."""
        linear = sum(self._linear * Comparison.tokens(prompt) for prompt in prompts)
        if linear > allowed:
            return linear
        longer = min(4 * self._short, max(prompts, default=0) + BEHIND)
        if longer > self._longer:
            beyond = self._seconds(longer) - self._linear * longer
            self._longer, self._square = longer, max(0.0, beyond) / (longer * longer)
        return linear + sum(self._square * Comparison.tokens(prompt) * (prompt + BEHIND) for prompt in prompts)

    @torch.inference_mode()
    def _seconds(self, count: int) -> float:
        """Return the shorter time of two plain passes on as many tokens; infinity where the model cannot make them."""
        tokens, took = tokens_of(self._decoder, count), []
        for _ in range(2):
            began = time.perf_counter()
            try:
                float(plain_logits(self._decoder, tokens, [()], read=tokens)[0, -1, 0])
            except Exception:  # models raise some ten unrelated types at texts that are too long for them
                return math.inf
            took.append(time.perf_counter() - began)
        return float(ranks.given(min(took)))  # ranks have to agree on what takes too long


def _switched(decoder: AnyDecoder, attention: str) -> bool:
    """Give the model another implementation of attention; return whether it has it."""
    with suppress(ValueError, ImportError):
        decoder.model.set_attn_implementation(attention)
        return bool(decoder.model.config._attn_implementation == attention)
    return False


def _who(decoder: AnyDecoder) -> str:
    return f"Model {decoder.name} ({decoder.model.config.model_type}, {type(decoder.model).__name__})"


def _how(decoder: AnyDecoder) -> tuple[str, ...]:
    return str(decoder.model.dtype), decoder.device.type, str(decoder.model.config._attn_implementation)


def _kept_or_probed(decoder: AnyDecoder, how: tuple[str, ...]) -> Probed:
    """Return what is known of these weights, from a file of an earlier run or else from a probe that is then kept.

    A file that cannot be read or written changes nothing but the time that it takes. With the weights shared out over
    several processes, every one makes the same calls, and rank 0 says what was found.
    """
    path = _path(decoder, how)
    values = None if path is None else read_json(path)
    if values is not None:
        with suppress(TypeError):  # a damaged one
            kept = Probed.from_json(values)
            if kept.attention is None or _switched(decoder, kept.attention):
                return kept
    found: Probed = ranks.given(probe(decoder))
    _keep(path, found)
    return found


def _keep(path: Path | None, probed: Probed) -> None:
    if path is not None:
        with suppress(OSError):
            write_atomically(path, json.dumps(asdict(probed), indent=1, sort_keys=True))


def _path(decoder: AnyDecoder, how: tuple[str, ...]) -> Path | None:
    """Return the file of a model's probe; None for weights made in memory, without a name, and for shared ones."""
    if ranks.count() > 1:
        return None
    weights = content_hash(decoder.name) or getattr(decoder.model.config, "_commit_hash", None)
    if not weights:
        return None
    config = decoder.model.config.to_dict()
    config.pop("_name_or_path", None)
    about = ["specdec probe 2", weights, type(decoder.model).__name__, config, *how]
    about += [torch.__version__, transformers.__version__, code_hash()]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
    with suppress(RuntimeError):  # no home folder
        return Path(os.environ.get(CACHE) or "~/.cache/specdec").expanduser() / "probes" / f"{digest[:16]}.json"
    return None

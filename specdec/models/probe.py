"""A check, made when a model is opened, that it computes over our cache what it computes without one.

Some models take positions from the cache's length, or biases from the place in the row, and are wrong without a fault.
Chains, trees, rows, a prefill in pieces and what follows a rejection are compared with plain forward passes. What was
found is kept in a small file, so that the next run need not ask.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from math import gcd
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor

from specdec import ranks
from specdec.code_version import code_hash
from specdec.errors import ModelLoadError, is_out_of_memory
from specdec.models.compile import static_pass
from specdec.models.decoder import Decoder
from specdec.models.load import content_hash
from specdec.models.path_batch import path_batch
from specdec.models.probed import Probed
from specdec.models.seq2seq import Seq2SeqDecoder
from specdec.records import Tree, chain_tree
from specdec.text.writing import write_atomically

logger = logging.getLogger(__name__)

AnyDecoder = Decoder | Seq2SeqDecoder

# The most by which logits may differ from those of a plain pass, as a share of their spread over the vocabulary. On
# random models of 120 architectures and on the pocket models, the largest difference by rounding was 1e-6 in float32
# and 0.014 in bfloat16 (0.03 with 48 layers), the smallest by a fault 0.09; TF32 rounds to 3e-3. In 16 bits the median
# of the tokens counts, because there a tie between experts may fall another way for some of them.
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 5e-3, torch.float16: 0.03, torch.bfloat16: 0.08}
_BITS_16 = (torch.bfloat16, torch.float16)

# Nodes 0 to 5 follow the root, 6 and 7 follow node 5, and 8 follows 7: in the row most nodes stand far from where a
# chain of their depth would end.
_TREE = Tree((-1, -1, -1, -1, -1, -1, 5, 5, 7))
_FAR = 3  # the first row of the tree's logits, the root's being 0, that stands far from there
_PATH = (5, 7)  # the nodes that are committed; their slots have to move
_PROMPT = 9  # tokens, unless a window asks for more
_BEHIND = 6  # tokens of a text behind the prompt: a root, two of a path, three more
_NEAR = 64  # tokens; a window, or a length at which positions change, that lies within is crossed
_SHORTEST = 8  # tokens of context without which nothing is probed

CACHE = "SPECDEC_CACHE"  # environment variable: the folder of what is kept between runs
_OTHER = "use another model"
_FORMAT = "specdec probe 1"
_KNOWN: WeakKeyDictionary[Any, tuple[tuple[str, ...], Probed]] = WeakKeyDictionary()


def open_decoder(decoder: AnyDecoder) -> Probed:
    """Find out which calls a model can be trusted with, and set its decoder accordingly; then fill its cache with a
    token, so that the size of a slot is known.

    Raises:
        ModelLoadError: it fails, its logits are not finite, a later token changes earlier logits, or a chain over the
            cache differs from a plain pass.
    """
    how = (str(decoder.model.dtype), decoder.device.type, str(decoder.model.config._attn_implementation))
    known = _KNOWN.get(decoder.model)
    if known is not None and known[0] == how:
        probed = known[1]
    else:
        probed = _kept_or_probed(decoder, how)
        _KNOWN[decoder.model] = how, probed
    decoder.probed = probed
    if probed.context is not None:
        decoder.context_length = min(decoder.context_length, probed.context)
    if isinstance(decoder, Decoder) and not probed.pieces:
        decoder.prefill_chunk = decoder.context_length
    for sentence in said_of(decoder):
        logger.warning(sentence)
    with torch.inference_mode():
        decoder.start(_tokens(decoder, 2), 8)
    return probed


def said_of(decoder: AnyDecoder) -> tuple[str, ...]:
    """Return what a reader of a run has to know about a decoder's model."""
    probed = decoder.probed
    if isinstance(decoder, Seq2SeqDecoder):  # takes rows by its nature
        return ()
    return probed.sentences(_who(decoder))


def logit_error(found: Tensor, plain: Tensor) -> Tensor:
    """Return how far logits [N, V] are from the plain ones, for each of N tokens, as a share of the latter's spread.

    Both are centred over V, because a constant changes no law. A distance between laws would be less sharp: any two
    laws that are nearly uniform, as those of random weights, are close to each other.
    """
    found, plain = (logits.detach().to("cpu", torch.float64) for logits in (found, plain))
    # Models give tokens that they never choose -inf, or the lowest number there is.
    usable = (plain.abs() < 1e30).all(0)
    found, plain = (logits[:, usable] - logits[:, usable].mean(-1, keepdim=True) for logits in (found, plain))
    spread = plain.norm(dim=-1)
    return torch.where(found.isfinite().all(-1), (found - plain).norm(dim=-1) / spread.clamp_min(1e-30), torch.inf)


@torch.inference_mode()
def probe(decoder: AnyDecoder) -> Probed:
    """Compare the calls of decoding with plain forward passes: about a dozen calls on a few tokens each.

    Raises:
        ModelLoadError: see `open_decoder`.
    """
    if decoder.context_length < _SHORTEST:
        return Probed()
    chunk = decoder.prefill_chunk if isinstance(decoder, Decoder) else 0
    try:
        return _Comparison(decoder).run()
    finally:
        if isinstance(decoder, Decoder):
            decoder.prefill_chunk = chunk


class _Comparison:
    """The calls of one probe, over one text: a prompt, then a root and its continuations."""

    def __init__(self, decoder: AnyDecoder) -> None:
        self._decoder = decoder
        self._device, self._dtype = decoder.device, decoder.model.dtype
        windows = decoder.windows.values() if isinstance(decoder, Decoder) else ()
        length = max([_PROMPT, *(window + 4 for window in windows if window and window <= _NEAR)])
        length = max(2, min(length, decoder.context_length - _BEHIND))
        tokens = iter(_tokens(decoder, length + 18))
        self._prompt = list(islice(tokens, length))
        (self._root,), self._chain, self._wrong = (list(islice(tokens, count)) for count in (1, 2, 3))
        self._nodes, self._behind = list(islice(tokens, len(_TREE))), list(islice(tokens, 3))
        self.errors: dict[str, float] = {}
        self._faults: dict[str, str] = {}

    def run(self) -> Probed:
        """Make all comparisons.

        Raises:
            ModelLoadError: see `open_decoder`.
        """
        who = _who(self._decoder)
        if not self._agrees("plain", self._plain_pass):
            raise ModelLoadError(f"{who} cannot compute a plain forward pass ({self._faults['plain']}): {_OTHER}.")
        if not all(torch.isfinite(logits).any() and not logits.isnan().any() for logits in self._plain):
            raise ModelLoadError(f"{who} cannot be used: its logits are not finite; try another dtype, as float32.")
        if not self._agrees("causal", self._causality, 0.5):
            raise ModelLoadError(
                f"{who} cannot be decoded: a later token changes its logits at earlier places, by "
                f"{self.errors['causal']:.2g} of their spread, so it is no causal language model; use one that is "
                "(a model of BERT's kind needs is_decoder=true in its config.json, and weights trained so)."
            )
        if not self._agrees("chain", self._chain_after_a_rejection):
            raise ModelLoadError(self._refusal(who))
        packed = isinstance(self._decoder, Decoder) and self._agrees("packed", self._tree)
        found = Probed(
            packed=packed,
            rows=self._agrees("rows", self._rows),
            pieces=self._agrees("pieces", self._prefill_in_pieces),
            static=isinstance(self._decoder, Decoder) and self._agrees("static", self._static_call),
            context=self._context(),
            errors=self.errors,
        )
        return found

    def _refusal(self, who: str) -> str:
        fault = self._faults.get("chain")
        if fault is not None:
            return f"{who} does not work with a rolled-back key-value cache ({fault}): {_OTHER}."
        remedy = f"try float32 weights, or {_OTHER}" if self._dtype in _BITS_16 else _OTHER
        return (
            f"{who} cannot be used: after rolling back its cache, its logits differ from those of a plain forward "
            f"pass, by {self.errors['chain']:.2g} of their spread; {remedy}."
        )

    def _agrees(self, check: str, errors: Callable[[], Sequence[Tensor]], strictness: float = 1.0) -> bool:
        """Make a comparison, keep its error, and return whether that is within the tolerance; a fault of the model is
        kept as its reason.

        Args:
            errors: returns those of the tokens, in groups of which each has to be within the tolerance.
        """
        try:
            found = errors()
        except Exception as error:  # models raise some ten unrelated types at calls that they do not expect
            if is_out_of_memory(error):
                raise
            self._faults[check] = " ".join(f"{error}".split())[:200] or type(error).__name__
            return False
        largest = max(float(group.median() if self._dtype in _BITS_16 else group.max()) for group in found)
        self.errors[check] = largest
        return largest <= strictness * _TOLERANCES.get(self._dtype, 0.08)

    def _plain_pass(self) -> Sequence[Tensor]:
        """Evaluate all continuations of the prompt in one call without a cache, and keep their logits [B, 7, V]: the
        law after the prompt, and those after each of the six tokens behind it.
        """
        paths = [self._chain, *([self._nodes[node] for node in _TREE.path(leaf)] for leaf in _TREE.leaves)]
        after = [self._root, *(self._nodes[node] for node in _PATH), *self._behind]
        texts = [*(([self._root, *path] + self._behind * 2)[:_BEHIND] for path in paths), after]
        self._plain = _plain_logits(self._decoder, self._prompt, texts)
        places = {node: (0, 0) for node in range(len(_TREE))}
        for row, leaf in enumerate(_TREE.leaves, start=1):
            places |= {node: (row, depth) for depth, node in enumerate(_TREE.path(leaf), start=2)}
        self._plain_tree = torch.stack([self._plain[0, 1], *(self._plain[place] for place in places.values())])
        return [torch.zeros(1)]

    def _causality(self) -> Sequence[Tensor]:
        """Compare the laws up to the root between continuations that differ behind it."""
        first, others = self._plain[:1, :2], self._plain[1:, :2]
        return [logit_error(others.flatten(0, 1), first.expand_as(others).flatten(0, 1))]

    def _chain_after_a_rejection(self) -> Sequence[Tensor]:
        last = self._begin()
        before = self._evaluate([last, *self._wrong], chain_tree(3))[:1]
        self._decoder.cache.commit(self._committed, [])
        found = self._evaluate([self._root, *self._chain], chain_tree(2))
        return [logit_error(torch.cat([before, found]), self._plain[0, :4])]

    def _tree(self) -> Sequence[Tensor]:
        """Verify a tree, commit a path of it, and evaluate a chain behind."""
        first = self._committed + 1
        self._decoder.length = self._committed
        found = self._evaluate([self._root, *self._nodes], _TREE)
        self._decoder.cache.commit(first, [first + node for node in _PATH])
        behind = self._evaluate(self._behind, chain_tree(2))
        return self._tree_errors(found, behind)

    def _rows(self) -> Sequence[Tensor]:
        """Do what `_tree` does with the paths of the tree as a batch."""
        decoder, begin = self._decoder, self._committed
        decoder.length = begin
        tokens = torch.tensor([self._root, *self._nodes], device=self._device)
        found = decoder.forward_paths(tokens, _TREE)
        slots = range(begin, begin + 1 + len(_PATH))
        decoder.cache.commit(begin, slots, path_batch(_TREE).sequence_of(_PATH))
        behind = self._evaluate(self._behind, chain_tree(2))
        return self._tree_errors(found, behind)

    def _tree_errors(self, found: Tensor, behind: Tensor) -> Sequence[Tensor]:
        """Return the errors of a tree's nodes, those far from their place in a chain apart from the others, and of the
        chain behind the committed path.
        """
        nodes = logit_error(found, self._plain_tree)
        return [nodes[:_FAR], nodes[_FAR:], logit_error(behind, self._plain[-1, 4:7])]

    def _prefill_in_pieces(self) -> Sequence[Tensor]:
        if isinstance(self._decoder, Seq2SeqDecoder):  # its prompt goes to the encoder
            return [torch.zeros(1)]
        last = self._begin(chunk=max(1, (len(self._prompt) - 1) // 2))
        found = self._evaluate([last, self._root, *self._chain], chain_tree(3))
        return [logit_error(found, self._plain[0, :4])]

    def _static_call(self) -> Sequence[Tensor]:
        """Make two calls of fixed shape, as a captured loop does: the cache learns of its length only afterwards."""
        decoder = self._decoder
        assert isinstance(decoder, Decoder)
        text, begin = torch.tensor([self._begin(), self._root, *self._chain], device=self._device), decoder.length
        call = static_pass(decoder.model, decoder.cache, decoder.windows)
        places = torch.arange(len(text), device=self._device) + begin
        found = [call(text[part], places[part]).logits for part in (slice(0, 2), slice(2, 4))]
        return [logit_error(torch.cat(found), self._plain[0, :4])]

    def _context(self) -> int | None:
        """Return the length at which the model's positions change, unless a text that crosses it comes out right. A
        text that long is only tried where it is short.
        """
        border = position_border(self._decoder.model.config.get_text_config())
        if border is None or border >= self._decoder.context_length:
            return None
        if border <= _NEAR and self._agrees("crossing", lambda: self._crossing(border)):
            return None
        return border

    def _crossing(self, border: int) -> Sequence[Tensor]:
        """Decode a text across the length `border` in two calls, behind a prefill that ends before it."""
        decoder = self._decoder
        text = _tokens(decoder, border + 4)
        prompt, rest = text[: max(2, border - 3)], text[max(2, border - 3) :]
        plain = _plain_logits(decoder, prompt, [rest])[0]
        root = decoder.start(prompt, len(text) + 1)
        found = [self._evaluate([root, *rest[:3]], chain_tree(3)), self._evaluate(rest[3:], chain_tree(len(rest) - 4))]
        return [logit_error(torch.cat(found), plain)]

    def _begin(self, chunk: int = 1 << 30) -> int:
        """Begin the text, with pieces of `chunk` tokens; return the prompt's last token, or the start token."""
        decoder = self._decoder
        if isinstance(decoder, Decoder):
            decoder.prefill_chunk = chunk
        last = decoder.start(self._prompt, len(self._prompt) + len(_TREE) + _BEHIND)
        self._committed = decoder.length + 1
        return last

    def _evaluate(self, tokens: Sequence[int], tree: Tree) -> Tensor:
        logits: Tensor = self._decoder.forward(torch.tensor(tokens, device=self._device), tree)
        return logits


def position_border(config: Any) -> int | None:
    """Return the length in tokens from which on a model computes all rotary positions in another way; None without one.

    Long-rope exchanges its factors at the original length (LongRoPE, 2402.13753), dynamic NTK scaling changes its base
    with every text that is longer than the model's context: keys in a cache were made in the earlier way.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    borders = []
    for kind in (parameters, *(each for each in parameters.values() if isinstance(each, dict))):
        if kind.get("rope_type") == "longrope":
            borders.append(int(kind["original_max_position_embeddings"]))
        elif kind.get("rope_type") == "dynamic":
            borders.append(int(config.max_position_embeddings))
    return min(borders, default=None)


def _plain_logits(decoder: AnyDecoder, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
    """Return the logits [B, L+1, V] of B texts of L tokens after one prompt, by forward passes without a cache."""
    if isinstance(decoder, Seq2SeqDecoder):
        return torch.stack([decoder.score(prompt, text) for text in texts])
    wanted = len(texts[0]) + 1
    tokens = torch.tensor([[*prompt, *text] for text in texts], device=decoder.device)
    # As many logits as are needed, where the model can limit them: those of a large vocabulary take memory.
    options = dict.fromkeys(decoder.prefill_options, wanted)
    logits: Tensor = decoder.model(input_ids=tokens, use_cache=False, **options).logits[:, -wanted:]
    return logits


def _tokens(decoder: AnyDecoder, count: int) -> list[int]:
    """Return `count` tokens that mean nothing special to the model, different ones as far as there are."""
    config = decoder.model.config.get_text_config()
    names = ("pad", "bos", "mask", "sep", "cls", "unk", "decoder_start")
    named = {getattr(config, f"{name}_token_id", None) for name in names}
    special = named | decoder.end_tokens
    usable = [token for token in range(min(decoder.vocab_size, 4096)) if token not in special]
    usable = usable or list(range(decoder.vocab_size))
    step = next(step for step in range(len(usable) * 5 // 8, 2 * len(usable) + 2) if gcd(step, len(usable)) == 1)
    return [usable[(1 + step * place) % len(usable)] for place in range(count)]


def _who(decoder: AnyDecoder) -> str:
    return f"Model {decoder.name} ({decoder.model.config.model_type}, {type(decoder.model).__name__})"


def _kept_or_probed(decoder: AnyDecoder, how: tuple[str, ...]) -> Probed:
    """Return what is known of these weights, from a file of an earlier run or else from a probe that is then kept.

    A file that cannot be read or written changes nothing but the time that it takes. With the weights shared out over
    several processes, every one makes the same calls, and rank 0 says what was found.
    """
    path = None if ranks.count() > 1 else _path(decoder, how)
    if path is not None:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return Probed(**kept)
        except (OSError, ValueError, TypeError):
            pass  # no such file, or a damaged one
    found: Probed = ranks.given(probe(decoder))
    if path is not None:
        with suppress(OSError):
            write_atomically(path, json.dumps(asdict(found), indent=1, sort_keys=True))
    return found


def _path(decoder: AnyDecoder, how: tuple[str, ...]) -> Path | None:
    """Return the file of a model's probe; None for weights that were made in memory, which nothing names."""
    weights = content_hash(decoder.name) or getattr(decoder.model.config, "_commit_hash", None)
    if not weights:
        return None
    config = decoder.model.config.to_dict()
    config.pop("_name_or_path", None)
    about = [_FORMAT, weights, type(decoder.model).__name__, config, *how]
    about += [torch.__version__, transformers.__version__, code_hash()]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
    with suppress(RuntimeError):  # no home folder
        return Path(os.environ.get(CACHE) or "~/.cache/specdec").expanduser() / "probes" / f"{digest[:16]}.json"
    return None

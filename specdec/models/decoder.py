"""A transformers decoder over our own cache: tokens in, logits out. Shared by targets and by drafters that are models.

Masks and positions are passed to the model explicitly; a mask is a view, so a call allocates only activations. Knows
neither sampling nor acceptance.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from specdec.errors import ModelLoadError
from specdec.models.attention import use_own_attention
from specdec.models.cache import KVCache
from specdec.models.compile import Mode, Pass, StaticStep, Step, TracedStep, only_sequence, run_model
from specdec.models.draft_loop import Choice, StaticLoop
from specdec.models.gpu import loop_departure, pin_attention, step_departure, trusted
from specdec.models.masks import Mask, MaskBuffers
from specdec.models.packaged import PackagedStep, packaged_step
from specdec.models.packages import PackageFolder
from specdec.models.path_batch import PathBatch, path_batch, root_batch
from specdec.models.probed import Probed
from specdec.models.spread import main_device
from specdec.records import Tree, chain_tree
from specdec.signals import raise_swallowed

logger = logging.getLogger(__name__)

_UNLIMITED = 1 << 30
_NARROW = 8  # tokens; calls on fewer were faster compiled in every trial
_BUCKET = 512  # the capacity of a compiled cache is a multiple of this number of slots
_ANY = 0  # the key of a pass for every number of tokens from 2 on
_BATCH = -1  # the key of a pass for batches
_WIDE = -3  # the key of a traced pass for numbers of tokens at which the compiled one is slower
_ROOTS = -2  # the key of a pass for batches of roots alone
# The largest difference of a compiled pass's logits and states from the plain modules', over the largest of these: sums
# in another order, rounded to the model's type after every layer.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.05}
# Kinds of layers whose state can be rolled back by forgetting slots.
_ATTENTION = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Compiled:
    """Compiled passes by their number of tokens, and the cache that they write into."""

    cache: KVCache
    steps: dict[int, Step | StaticStep]

    def holds(self, capacity: int, copies: int) -> bool:
        return capacity <= self.cache.capacity and copies <= self.cache.allocated


class CachedModel:
    """A model and the cache of one text.

    Attributes:
        model: the transformers model, unpatched.
        vocab_size, context_length, end_tokens: properties of the model.
        probed: the kinds of calls that may be made (see `probe.open_decoder`); all, before it was asked.
    """

    cache: KVCache
    probed: Probed = Probed()

    def __init__(self, model: Any, name: str, config: Any) -> None:
        self.model, self.name = model, name
        self.device = main_device(model)
        self.vocab_size: int = config.vocab_size
        longest = getattr(config, "max_position_embeddings", None) or 0
        self.context_length: int = longest if longest > 0 else 1 << 30  # XLNet says -1
        self.end_tokens = end_tokens_of(model)

    @property
    def length(self) -> int:
        """The number of slots in use; setting it forgets the slots behind."""
        return self.cache.length

    @length.setter
    def length(self, value: int) -> None:
        self.cache.length = value

    def follow(self) -> int:
        """Return how many slots hold the text so far because another model evaluated it, and may not be written to."""
        return 0


class Decoder(CachedModel):
    """One decoder-only model and the cache of one text.

    Attributes:
        layers: number of the model's layers.
        states: hidden states [N+1, D] of the tokens of the last call, where `keep_states` asked for them; of several
            layers side by side.
    """

    states: Tensor | None = None
    kept: tuple[int, ...] = ()  # layers whose states are kept, counted down from the last

    def __init__(self, model: Any, name: str, prefill_chunk: int) -> None:
        """
        Raises:
            ModelLoadError: the model has layers whose state cannot be rolled back after a rejection.
        """
        config = model.config.get_text_config()
        super().__init__(model, name, config)
        self.prefill_chunk = prefill_chunk
        use_own_attention(model)
        pin_attention(self.device)
        self.layers: int = config.num_hidden_layers
        self._windows = attention_windows(config, name)
        # The prefill needs no logits: models that can limit them compute those of one token only.
        lean = "logits_to_keep" in signature(model.forward).parameters
        self._no_logits: dict[str, int] = {"logits_to_keep": 1} if lean else {}
        self.cache = KVCache(self.layers, 1)
        self._masks = MaskBuffers(self._windows, model.dtype, self.device)
        self._steps: dict[int, Step | StaticStep] = {}
        self._compiled: Compiled | None = None
        # What serves the calls on each number of tokens: "trace" or "inductor", and how far it is from plain modules.
        self.choices: dict[str, dict[str, Any]] = {}
        self._widest = _UNLIMITED  # tokens that the compiled pass for any number serves

    @property
    def windows(self) -> dict[str, int | None]:
        """The tokens back that each kind of attention layer sees; None for all."""
        return self._windows

    @property
    def prefill_options(self) -> dict[str, int]:
        """Arguments of the model for a call whose logits nobody reads."""
        return self._no_logits

    def keep_states(self, offsets: Iterable[int]) -> None:
        """Leave the hidden states of these layers in `states` after every call from now on.

        Args:
            offsets: layers, counted down from the last: 0 is what the output head reads, `layers` the embeddings.
        """
        kept, self.kept = self.kept, tuple(offsets)
        if kept != self.kept:
            self._steps, self._compiled = {}, None  # passes made before return other states

    @torch.inference_mode()
    def compile(
        self,
        sizes: Collection[int],
        capacity: int,
        mode: Mode,
        copies: int = 1,
        packages: PackageFolder | None = None,
    ) -> None:
        """Make passes for calls on these numbers of tokens, the root included; each takes seconds to make.

        They serve chains and trees. A traced pass, and one compiled for a CPU,
        serves every number of tokens from 2 on; batches are traced, never compiled. Texts that need more slots than
        `capacity`, rounded up, or more than `copies` copies are decoded eagerly. So is everything if the model cannot
        be traced, with a warning.

        Args:
            packages: where passes compiled for a CPU are kept; None: until the process ends.
        """
        try:
            self._compile(sizes, capacity, mode, copies, packages or PackageFolder(None))
        except (torch._dynamo.exc.TorchDynamoException, ConstraintViolationError) as error:
            raise_swallowed()  # torch takes a signal that arrives while it traces for a fault of the model
            self._steps, self._compiled = {}, None
            reason = str(error).strip().splitlines()[0]
            logger.warning("%s cannot be traced, so its calls stay eager: %s", self.name, reason)

    def _compile(self, sizes: Collection[int], capacity: int, mode: Mode, copies: int, packages: PackageFolder) -> None:
        graphs = self.device.type == "cuda" and mode == "inductor" and self.probed.static
        wanted = set(sizes)
        if sizes and not graphs:
            several = max(sizes) > 1 or (mode == "trace" and copies > 1)
            wanted = ({1} if mode == "trace" else wanted & {1}) | ({_ANY} if several else set())
        wanted |= {_BATCH} if copies > 1 else set()
        made = self._compiled
        if made is not None and wanted <= set(made.steps) and made.holds(capacity, copies):
            return
        # The record of batches is made with two sequences; with two copies it would take the two for the same number.
        self._steps = {}
        self.cache = self._cache_for_passes(-(-capacity // _BUCKET) * _BUCKET, 3 if copies == 2 else copies)
        self.forward(torch.zeros(2, dtype=torch.long, device=self.device), chain_tree(1))  # makes the buffers
        self.choices, self._widest = {}, _UNLIMITED
        for count in sorted(wanted - {_BATCH}):
            if graphs:
                graph = self._captured(count)
                if graph is not None:
                    self._steps[count] = graph
            elif mode == "trace" or self.device.type == "cuda" or not self._package(count, packages):
                self._trace(count)
        if isinstance(self._steps.get(_ANY), PackagedStep):
            self._choose_by_width(max(sizes))
        if copies > 1:
            self._steps[_BATCH] = TracedStep(self.model, self.cache, None, "trace", self.kept)
            for prefix, batch in ((7, 2), (8, 2), (9, copies)):  # all sizes differ: Dynamo merges equal ones
                self.cache.length = prefix
                tree = Tree((-1, 0, *[-1] * (batch - 1)))
                self.forward_paths(torch.zeros(batch + 2, dtype=torch.long, device=self.device), tree)
        self._compiled = Compiled(self.cache, self._steps)

    def _captured(self, count: int) -> StaticStep | None:
        """Return a pass on `count` tokens in CUDA graphs, compared with plain calls; None, with a warning, without."""

        def departure(step: StaticStep) -> float:
            return step_departure(step, self.cache, self.plain, self.context_length, self.vocab_size)

        def made() -> StaticStep:
            return StaticStep(self.model, self.cache, count, self._windows, self.kept)

        return trusted(made, departure, self.model.dtype, f"{self.name}: a call on {count} tokens")

    def _trace(self, count: int) -> None:
        """Make the traced pass on `count` tokens."""
        several = count in (_ANY, _WIDE)
        step = TracedStep(self.model, self.cache, None if several else count, "trace", self.kept)
        self._steps[count] = step
        # Not 2: the mask would fill its buffer, and the record rely on that.
        size = max(3, self._widest + 1) if count == _WIDE else 3 if several else count
        for prefix in (2, 3):  # the first call records; the second shows that it serves other prefixes
            self.cache.length = prefix
            self.forward(torch.zeros(size, dtype=torch.long, device=self.device), chain_tree(size - 1))
        products = {"packed products": step.packed, "weights read first": step.read_first}
        self.choices[_named(count)] = {"pass": "trace"} | {name: number for name, number in products.items() if number}

    def _package(self, count: int, packages: PackageFolder) -> bool:
        """Make the compiled pass on `count` tokens, if it can be compiled and gives what the plain modules give; say
        so otherwise.
        """
        name = f"{self.name}, calls on {_named(count)}"
        try:
            step = packaged_step(self.model, self.cache, self._windows, self.kept, count == _ANY, packages)
        except Exception as error:  # torch, its compiler and the system's raise some ten unrelated types here
            raise_swallowed()
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            logger.warning("%s: compilation failed, so they are traced instead: %s", name, reason[:300])
            return False
        made = self._steps
        difference = max(self._difference(step, size) for size in ((2, 5, 9) if count == _ANY else (1,)))
        self._steps = made
        if not difference <= _TOLERANCE[self.model.dtype]:
            logger.warning(
                "%s: what was compiled differs from the plain modules by %.2g of the largest logit (%.2g is allowed), "
                "so they are traced instead.",
                name,
                difference,
                _TOLERANCE[self.model.dtype],
            )
            return False
        self._steps[count] = step
        self.choices[_named(count)] = {"pass": "inductor", "difference": difference}
        return True

    def _choose_by_width(self, widest: int) -> None:
        """Find up to how many tokens the compiled pass is faster than the plain modules, doubling from 8 to `widest`;
        calls on more are traced. Its products are made for few rows.
        """
        made, size = self._steps, _NARROW
        while size <= min(widest, self.cache.capacity // 2):
            tokens, seconds = torch.zeros(size, dtype=torch.long), []
            for steps in ({}, made) * 3:
                self._steps, self.cache.length = steps, self.cache.capacity // 2
                began = time.perf_counter()
                self.forward(tokens, chain_tree(size - 1))
                seconds.append(time.perf_counter() - began)
            if min(seconds[1::2]) > min(seconds[::2]):
                self._widest = size - 1
                break
            size *= 2
        self._steps = made
        if self._widest < _UNLIMITED:
            self.choices[_named(_ANY)]["up to"] = self._widest
            self._trace(_WIDE)

    def _difference(self, step: PackagedStep, size: int) -> float:
        """Return the largest difference between a compiled pass on `size` tokens and the plain modules, over their
        largest value: of its logits and states on chains and a tree behind two prefixes, and of the logits of a
        token behind it, which reads what it wrote.
        """
        branching = Tree((-1, *(node // 2 - 1 for node in range(1, size - 1)))) if size > 2 else chain_tree(size - 1)
        differences = []
        for tree, prefix in ((chain_tree(size - 1), 3), (branching, 67), (chain_tree(size - 1), 80)):
            tokens = (torch.arange(prefix + size + 1, device=self.device) * 7 + 3) % self.vocab_size
            found = []
            for steps in ({}, {size: step}):
                self.cache.restart(1)
                self._steps = {}
                self.forward(tokens[:prefix], chain_tree(prefix - 1))
                self._steps = dict(steps)
                logits, states = self.forward(tokens[prefix:-1], tree), self.states
                self._steps = {}
                behind = self.forward(tokens[-1:], chain_tree(0))
                found.append([logits, behind, *([] if states is None else [states])])
            for plain, ours in zip(*found, strict=True):
                differences.append((plain - ours).abs().max().float() / plain.abs().max().float())
        return float(torch.stack(differences).nan_to_num(torch.inf).max())

    def _cache_for_passes(self, capacity: int, copies: int) -> KVCache:
        """Return the cache that compiled passes write into."""
        return KVCache(self.layers, capacity, copies)

    def static_loop(self, gamma: int, choose: Callable[[Tensor, Tensor], Choice]) -> StaticLoop | None:
        """Return a loop in CUDA graphs that drafts gamma tokens into the present cache, compared with plain calls;
        None, with a warning, where there is none. Call while no text is in the cache.
        """

        def departure(loop: StaticLoop) -> float:
            return loop_departure(loop, self.plain, self.context_length)

        def made() -> StaticLoop:
            return StaticLoop(self.model, self.cache, self._windows, gamma, choose)

        return trusted(made, departure, self.model.dtype, f"{self.name}: a draft of {gamma} tokens")

    @property
    def loops(self) -> bool:
        """Say if a loop over the cache is allowed: it writes the slot before the root's again."""
        return self.probed.static

    @property
    def compiled_cache(self) -> KVCache | None:
        """The cache that compiled passes write into; None without any."""
        return None if self._compiled is None else self._compiled.cache

    @property
    def compiled(self) -> tuple[int, ...]:
        """Numbers of tokens that have a compiled pass; 0 stands for all from 2 on, -1 for batches, -2 for
        batches of roots alone, -3 for more tokens than a pass for any number is fast at."""
        return () if self._compiled is None else tuple(sorted(self._compiled.steps))

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text: prefill the prompt except its last token, and return that token, the root of round 1.

        Where states are kept, `states` then holds those of the prefilled tokens [len(prompt) - 1, D].

        Args:
            prompt: at least one token.
            capacity: slots that prompt, output and the largest draft need together.
            copies: copies of the prefix; a batch of `forward_paths` needs one for each sequence.
        """
        if self._compiled is not None and self._compiled.holds(capacity, copies):
            self.cache, self._steps = self._compiled.cache, self._compiled.steps  # the passes write into this cache
            self.cache.restart(copies)
        else:
            self.cache, self._steps = KVCache(self.layers, capacity, copies), {}
        found: list[Tensor] = []
        for begin in range(0, len(prompt) - 1, self.prefill_chunk):
            end = min(begin + self.prefill_chunk, len(prompt) - 1)
            chunk = torch.tensor(prompt[begin:end], device=self.device)
            self.forward(chunk, chain_tree(len(chunk) - 1), **self._no_logits)
            if self.states is not None:
                found.append(self.states)
        if self.kept:
            embedding = self.model.get_input_embeddings().weight
            size = len(self.kept) * embedding.shape[1]
            self.states = torch.cat(found) if found else embedding.new_empty(0, size)
        self.cache.broadcast()
        return prompt[-1]

    @staticmethod
    def slots_for(prompt: int, capacity: int, copies: int) -> int:
        """Return the slots that `start` allocates for a prompt of `prompt` tokens, all copies together."""
        return capacity * copies

    def forward(self, tokens: Tensor, tree: Tree, **options: int) -> Tensor:
        """Append `tokens` [N+1], the root and the nodes of `tree`, behind the cached tokens.

        Args:
            options: further arguments of the model, such as `logits_to_keep`; such calls are eager.
        Returns:
            logits [N+1, V], or of fewer tokens where `options` ask for that.
        """
        prefix = self.cache.length
        step = self._step_for(len(tokens), prefix) if prefix and not options else None
        if isinstance(step, StaticStep):
            result = step(tokens, prefix, tree)
            self.states = result.states
            return result.logits
        mask = self._masks.view(tree, prefix, self.cache.capacity)
        if step is not None and tree.is_chain:
            result = step(tokens, prefix, mask)
        elif isinstance(step, (TracedStep, PackagedStep)):
            result = step(tokens, prefix, mask, tree.offsets.to(self.device, non_blocking=True))
        else:
            result = self._evaluated(tokens, tree, mask, options)
        self.states = result.states
        return result.logits

    def plain(self, tokens: Tensor, tree: Tree) -> Pass:
        """Evaluate the tokens of `forward` by the model's own modules."""
        return self._evaluated(tokens, tree, self._masks.view(tree, self.cache.length, self.cache.capacity), {})

    def _evaluated(self, tokens: Tensor, tree: Tree, mask: Mask, options: dict[str, int]) -> Pass:
        places = (tree.offsets.to(self.device, non_blocking=True) + self.cache.length).unsqueeze(0)
        return only_sequence(run_model(self.model, self.cache, self.kept, tokens.unsqueeze(0), places, mask, **options))

    def _step_for(self, tokens: int, prefix: int) -> Step | StaticStep | None:
        """Return the pass for a call on this many tokens; None where it is eager."""
        step = self._steps.get(tokens) or self._steps.get(_ANY if tokens <= self._widest else _WIDE)
        if step is not None and not isinstance(step, StaticStep):
            return step
        # A graph for more tokens takes hardly longer than one for these, and far less than their eager call.
        graphs = [each for each in self._steps.values() if isinstance(each, StaticStep) and each.fits(tokens, prefix)]
        return min(graphs, key=lambda each: each.size, default=None)

    def forward_paths(self, tokens: Tensor, tree: Tree) -> Tensor:
        """Evaluate the tokens of `forward`, with every path from the root to a leaf as a sequence behind its own copy
        of the prefix.

        If there are more sequences than copies, this call first makes a larger cache.

        Returns:
            logits [N+1, V], those of a node from the first sequence that holds it.
        """
        return self._forward_batch(tokens, path_batch(tree))

    def forward_roots(self, token: Tensor, sequences: int) -> Tensor:
        """Evaluate the root [1] alone in each of `sequences` sequences, behind a copy of the prefix for each.

        Returns:
            logits [1, V], those of the first sequence.
        """
        return self._forward_batch(token, root_batch(sequences))

    def _forward_batch(self, tokens: Tensor, batch: PathBatch) -> Tensor:
        """Evaluate `tokens` [N+1] in the sequences of `batch`; return logits [N+1, V]."""
        if len(batch) > self.cache.copies:
            self.cache, self._steps = self.cache.grown(len(batch)), {}
        prefix = self.cache.length
        sequences = tokens[batch.index.to(self.device, non_blocking=True)]  # [B, L]
        mask = self._masks.view(batch.chain, prefix, self.cache.capacity)
        step = self._steps.get(_BATCH)
        if step is not None and sequences.shape[1] == 1:
            step = self._roots_step(sequences, prefix, mask)
        if prefix and isinstance(step, TracedStep):
            result = step(sequences, prefix, mask)
        else:
            positions = (batch.chain.offsets.to(self.device, non_blocking=True) + prefix).expand(len(batch), -1)
            each = _in_every_sequence(mask, len(batch))
            result = run_model(self.model, self.cache, self.kept, sequences, positions, each)
        places = batch.places.to(self.device, non_blocking=True)
        self.states = None if result.states is None else result.states.flatten(0, 1)[places]
        return result.logits.flatten(0, 1)[places]

    def _roots_step(self, sequences: Tensor, prefix: int, mask: Mask) -> Step | StaticStep | None:
        """Return the pass for batches of one token a sequence, which a record of longer ones does not serve; None where
        it cannot be recorded.
        """
        if _ROOTS not in self._steps and prefix > 2:
            made = TracedStep(self.model, self.cache, 1, "trace", self.kept)
            # Two sequences: the cache has more copies and more slots, and equal numbers would be taken for one.
            made(sequences[:2], prefix, mask)
            self.cache.length = prefix  # what was written stands in a free slot
            self._steps[_ROOTS] = made
        return self._steps.get(_ROOTS)

    def score(self, prompt: Sequence[int], text: Sequence[int], model: Any = None) -> Tensor:
        """Return the logits [len(text) + 1, V] of a given text after `prompt`; entry i predicts token i of the text.

        They come from one forward pass without the cache, by `model` where another copy of the weights is given.
        """
        tokens = torch.tensor([[*prompt, *text]], device=self.device)
        return (model or self.model)(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 :]

    @property
    def flops_per_token(self) -> float:
        return flops_per_token(self.model)


def _in_every_sequence(mask: Mask, sequences: int) -> Mask:
    """Return views of a mask for as many sequences: some models do not take one for all."""
    if isinstance(mask, Tensor):
        return mask.expand(sequences, -1, -1, -1)
    return {kind: view.expand(sequences, -1, -1, -1) for kind, view in mask.items()}


def _named(count: int) -> str:
    if count == _WIDE:
        return "more tokens"
    return "any number of tokens" if count == _ANY else f"{count} token" + "s" * (count > 1)


def flops_per_token(model: Any) -> float:
    """Return 2 x parameters, about, without input embeddings, which are looked up; tied ones count as the output
    head.
    """
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is embedding
    return 2.0 * (sum(weight.numel() for weight in model.parameters()) - (0 if tied else embedding.numel()))


def end_tokens_of(model: Any) -> frozenset[int]:
    """Return the tokens that end a text, from the generation configuration or else from the model's own."""
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    if ends is None:
        ends = getattr(model.config.get_text_config(), "eos_token_id", None)
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)


def attention_windows(config: Any, name: str) -> dict[str, int | None]:
    """Return the kinds of attention layers and their windows; refuse layers whose state cannot be rolled back."""
    kinds = set(getattr(config, "layer_types", None) or ())
    refused = sorted(kinds - set(_ATTENTION))
    if refused:
        raise ModelLoadError(
            f"Model {name} has {refused[0]} layers, whose state cannot be rolled back after a rejection; "
            "use a model with attention layers only."
        )
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"full_attention": window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}

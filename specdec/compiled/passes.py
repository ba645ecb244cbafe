"""The passes of a decoder: which calls they serve, how they are made, and what they are held to before they are used.

`trace` replays a record of the pass, bit for bit the eager one: one record for calls on a single token, one for calls
on more. `inductor` compiles one pass for all calls on a CPU, ahead of time, from its layers; on a GPU it makes one for
a given number of tokens, compiled and captured in a CUDA graph. All passes write into one cache of fixed capacity,
whose buffers stay where they are.
"""

import logging
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.nn.functional import linear

from specdec.compiled.call_sequence import PackagedStep
from specdec.compiled.cuda_graphs import StaticStep, trusted
from specdec.compiled.packaged import CompilesLong, making_s, packaged_product, packaged_step
from specdec.compiled.packages import PackageFolder
from specdec.compiled.traced import TracedStep
from specdec.errors import UsageError
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass, PathBatch
from specdec.records import Tree, chain_tree
from specdec.signals import raise_swallowed

logger = logging.getLogger(__name__)

_ANY = 0  # the key of a pass for every number of tokens from 2 on
_BATCH = -1  # the key of a pass for batches
_ROOTS = -2  # the key of a pass for batches of roots alone
_TRACED_S = 0.3  # seconds that a traced pass takes to make for each layer, on one core of an AMD EPYC
_FIRST_MORE = 1.5  # The first pass takes as long as this many others besides, traced on an EPYC as compiled on an H100.
# The largest difference of a compiled pass's logits and states from the plain modules', over the largest of these: sums
# in another order, rounded to the model's type after every layer. In bfloat16 the logits of SmolLM2's plain modules are
# 0.01 to 0.07 from those in float32, for the worst of 65 tokens.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.1}

AUTO_S = 60.0  # seconds that `target.compile=auto` may compile for one model, and
_AUTO_SHARE = 0.25  # of the decoding
# A call is reckoned to read the weights at this rate, and to take this long a layer besides: so every process of a run,
# and the run that goes on with it, decides alike.
_RECKONED_BYTES_S, _RECKONED_LAYER_S = 1e10, 5e-4
Mode = Literal["trace", "inductor"]


def mode_for(wanted: bool | str, device: torch.device) -> Mode | None:
    """Return the mode of passes on a device for a value of `target.compile` (true, false, trace or auto); None: eager.

    Where a program that compilation needs is missing, "auto" warns and traces. Raises UsageError: `true`, and such a
    program is missing.
    """
    if wanted is False:
        return None
    if wanted == "trace":
        return "trace"
    if device.type != "cpu":
        return "inductor"  # CUDA graphs need no compiler
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        missing = "a C++ compiler (g++ or clang++)"
        if wanted is True:
            raise UsageError(
                f"Bad value target.compile=true: compiling needs {missing}, which was not found; install it, "
                "or use target.compile=auto to go on without."
            ) from None
        logger.warning("target.compile=auto: %s was not found, so calls are traced, not compiled.", missing)
        return "trace"
    return "inductor"


def auto_mode(
    decoder: Decoder, packages: PackageFolder, calls: float, seconds: float | None = None
) -> tuple[Mode, str]:
    """Return what `target.compile=auto` does on a CPU: compile where that was done before, or takes short beside the
    decoding (see `Target.choose_compilation`), as reckoned; trace otherwise, with a sentence that says why.
    """
    expected = making_s(decoder, packages)
    weights = sum(each.nbytes for each in decoder.model.parameters())
    decoding = min(calls * (weights / _RECKONED_BYTES_S + decoder.layers * _RECKONED_LAYER_S), seconds or math.inf)
    if expected > min(AUTO_S, _AUTO_SHARE * decoding):
        return "trace", (
            f"Calls are traced: to compile them takes about {expected:.0f} s, once, beside some "
            f"{max(1.0, decoding):.0f} s of decoding (target.compile=true compiles)."
        )
    return mode_for("auto", decoder.device) or "trace", ""


@torch.inference_mode()
def compile_decoder(
    decoder: Decoder,
    sizes: Collection[int],
    capacity: int,
    mode: Mode,
    copies: int = 1,
    packages: PackageFolder | None = None,
) -> None:
    """Give a decoder passes for calls on these numbers of tokens, the root included; each takes seconds to make.

    They serve chains and trees. A traced pass serves every number of tokens from 2 on, one compiled for a CPU every
    number, and the prefill; batches are traced, never compiled. Texts that need more slots than `capacity`, rounded up,
    or more than `copies` copies are decoded eagerly. So is everything if the model cannot be traced, with a warning,
    and if the decoder has no cache for passes. To be called while no text is in the cache. Passes compiled for a CPU
    are kept in `packages`; None: until the process ends.
    """
    graphs = decoder.device.type == "cuda" and mode == "inductor" and decoder.probed.static
    wanted = set(sizes)
    if sizes and not graphs:
        wanted = {1, _ANY} if max(sizes) > 1 or copies > 1 else {1}
    wanted |= {_BATCH} if copies > 1 else set()
    made, cache = decoder.passes, decoder.cache_for_passes(capacity, copies)
    if made is not None and cache is not None and wanted <= set(made.sizes):
        if made.cache.over is cache.over and made.cache.holds(cache.capacity, cache.allocated):
            return
    decoder.passes = None
    if cache is None:
        return
    from specdec.progress import stage  # on demand: the GPU script runs where rich is not installed

    packages = packages or PackageFolder(None)
    passes = CompiledPasses(decoder, cache)
    decoder.cache, decoder.passes = cache, passes
    decoder.forward(torch.zeros(2, dtype=torch.long, device=decoder.device), chain_tree(1))  # makes the buffers
    counts = sorted(wanted - {_BATCH})
    expected = _TRACED_S * decoder.layers * (len(wanted) + _FIRST_MORE) if mode == "trace" and wanted else None
    shorter = "target.compile=false starts at once"
    packaged = mode == "inductor" and decoder.device.type == "cpu" and bool(counts)
    try:
        traces = mode == "trace"
        name, about, told = "Trace" if traces else "Compile", "the calls that are timed", not (traces or packaged)
        # Tracing takes seconds, and what is compiled here has a stage of its own: neither is told of.
        with stage(name, about, told=told, expected=expected, shorter=shorter) as under_way:
            compiled = packaged and passes.compile(packages)
            begun = under_way.elapsed
            for made, count in enumerate(counts, 1):
                if graphs:
                    graph = trusted(partial(StaticStep, decoder, count), decoder, f"a call on {count} tokens")
                    if graph is not None:
                        passes.steps[count] = graph
                elif not compiled:
                    passes.trace(count)
                a_pass = (under_way.elapsed - begun) / (made + _FIRST_MORE)
                under_way.expected = under_way.elapsed + a_pass * (len(wanted) - made)
            if copies > 1:
                passes.trace_batches(copies)
    except (torch._dynamo.exc.TorchDynamoException, ConstraintViolationError) as error:
        raise_swallowed()  # torch takes a signal that arrives while it traces for a fault of the model
        decoder.passes = None
        logger.warning("%s cannot be traced, so its calls stay eager: %s", decoder.name, _reason(error))


@torch.inference_mode()
def compiled_product(weight: Tensor, packages: PackageFolder | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return (vectors [..., D], weight [V, D]) -> their products [..., V] for output layers like this one: a kernel
    that reads a layer once for a few vectors; torch's own, with a warning, where it cannot be compiled or gives others.
    """
    try:
        product = packaged_product(weight, packages or PackageFolder(None))
    except Exception as error:  # as in `CompiledPasses.compile`
        raise_swallowed()
        logger.warning("The product with a drafter's output layer is not compiled: %s", _reason(error))
        return linear
    for count in (1, 5):
        vectors = torch.linspace(-1, 1, count * weight.shape[1], dtype=weight.dtype).view(count, -1)
        plain = linear(vectors, weight)
        difference = float((product(vectors, weight) - plain).abs().max() / plain.abs().max())
        if not difference <= _TOLERANCE[weight.dtype]:
            logger.warning("The compiled product with a drafter's output layer differs from torch's, which is used.")
            return linear
    return product


class CompiledPasses:
    """Passes that serve some of a decoder's calls in place of its modules and write into `cache`: `steps` by their
    number of tokens, or one of the keys above. By the calls, in words, `choices` says which kind of pass serves them,
    and how far it is from plain modules.
    """

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self.cache = cache
        self.steps: dict[int, TracedStep | PackagedStep | StaticStep] = {}
        self.choices: dict[str, dict[str, Any]] = {}
        self._decoder = decoder
        self._offsets = torch.arange(cache.capacity, device=decoder.device)  # of a chain's tokens from its root

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens that have a pass; 0 stands for all from 2 on, -1 for batches, -2 for batches of roots."""
        return tuple(sorted(self.steps))

    def evaluate(self, tokens: Tensor, tree: Tree, unread: bool = False) -> Pass | None:
        """Evaluate the root and the nodes of a tree [N+1] behind the cache's present length; None without a pass. With
        `unread`, nobody reads the logits, as in a prefill; they are then empty.
        """
        prefix, count = self.cache.length, len(tokens)
        if prefix + count > self.cache.capacity:
            return None  # plain modules then say that there is no room, where a program would write behind the buffers
        step = self.steps.get(count) or self.steps.get(_ANY)
        if not isinstance(step, PackagedStep) and (unread or not prefix):
            return None  # a record was made behind a prefix
        if step is None or isinstance(step, StaticStep):
            # A graph for more tokens takes hardly longer than one for these, and far less than their eager call.
            graphs = [each for each in self.steps.values() if isinstance(each, StaticStep) and each.fits(count, prefix)]
            graph = min(graphs, key=lambda each: each.size, default=None)
            return None if graph is None else graph(tokens, prefix, tree)
        masks = self._decoder.masks.view(tree, prefix, self.cache.capacity)
        offsets = self._offsets[:count] if tree.is_chain else tree.offsets.to(self._decoder.device, non_blocking=True)
        if isinstance(step, PackagedStep):
            return step(tokens, offsets + prefix, masks, unread)
        return step(tokens, offsets + prefix, masks)

    def evaluate_batch(self, sequences: Tensor, batch: PathBatch) -> Pass | None:
        """Evaluate [B, L] chains behind copies of the prefix; None without a pass."""
        prefix, kind = self.cache.length, _ROOTS if sequences.shape[1] == 1 else _BATCH
        if _BATCH not in self.steps:
            return None
        masks = self._decoder.masks.view(batch.chain, prefix, self.cache.capacity)
        positions = self._offsets[: sequences.shape[1]] + prefix
        if kind == _ROOTS and _ROOTS not in self.steps and prefix > 2:
            # Two sequences: the cache has more copies and more slots, and equal numbers would be taken for one.
            self.steps[_ROOTS] = roots = TracedStep(self._decoder, self.cache, 1)
            roots(sequences[:2], positions, masks)
            self.cache.length = prefix  # what was written stands in a free slot
        step = self.steps.get(kind)
        return step(sequences, positions, masks) if isinstance(step, TracedStep) else None

    def trace(self, count: int) -> None:
        """Make the traced pass on `count` tokens."""
        self.steps[count] = step = TracedStep(self._decoder, self.cache, None if count == _ANY else count)
        size = 3 if count == _ANY else count  # not 2: the mask would fill its buffer, and the record rely on that
        for prefix in (2, 3):  # the first call records; the second shows that it serves other prefixes
            self.cache.length = prefix
            tokens = torch.zeros(size, dtype=torch.long, device=self._decoder.device)
            self._decoder.forward(tokens, chain_tree(size - 1))
        products = {"packed products": step.packed, "weights read first": step.read_first}
        calls = "any number of tokens" if count == _ANY else f"{count} token" + "s" * (count > 1)
        self.choices[calls] = {"pass": "trace"} | {name: number for name, number in products.items() if number}

    def trace_batches(self, copies: int) -> None:
        """Make the traced pass on batches of up to `copies` sequences."""
        self.steps[_BATCH] = TracedStep(self._decoder, self.cache, None)
        for prefix, batch in ((7, 2), (8, 2), (9, copies)):  # all sizes differ: Dynamo merges equal ones
            self.cache.length = prefix
            tree = Tree((-1, 0, *[-1] * (batch - 1)))
            self._decoder.forward_paths(torch.zeros(batch + 2, dtype=torch.long, device=self._decoder.device), tree)

    def compile(self, packages: PackageFolder) -> bool:
        """Make the pass that is compiled for a CPU, if it can be and gives what the plain modules give; else say so."""
        decoder = self._decoder
        try:
            step, trust = packaged_step(decoder, self.cache, packages)
        except CompilesLong as long:
            logger.warning("%s: %s", decoder.name, long)
            return False
        except Exception as error:  # torch, its compiler and the system's raise some ten unrelated types here
            raise_swallowed()
            logger.warning("%s: compilation failed, so calls are traced instead: %s", decoder.name, _reason(error))
            return False
        difference, most = self._difference(step, thorough=trust is not None), _TOLERANCE[decoder.model.dtype]
        if not difference <= most:
            differs = f"by {difference:.2g} of the largest logit ({most:.2g} is allowed), so calls are traced instead."
            logger.warning("%s: what was compiled differs from the plain modules %s", decoder.name, differs)
            return False
        if trust is not None:
            trust()
        self.steps |= dict.fromkeys((1, _ANY), step)
        self.choices["any number of tokens"] = {"pass": "inductor", "difference": difference}
        return True

    def _difference(self, step: PackagedStep, thorough: bool) -> float:
        """Return the largest difference between a compiled pass and the plain modules, over their largest value: of
        logits and states of a call on one token and of a tree, and of the logits of a plain call behind each, which
        reads what it wrote; where it is to be `thorough`, of a prefill and a chain behind a longer prefix likewise.
        """
        decoder, differences = self._decoder, []
        compiled = dict.fromkeys((1, _ANY), step)
        tree = Tree((-1, -1, 0, 0))
        # 65 tokens, by torch's own products, as in a prefill: their logits would take 5% of the weights of SmolLM2.
        further = ((chain_tree(64), 0, decoder.prefill_options), (chain_tree(8), 80, {})) if thorough else ()
        for draft, prefix, options in ((chain_tree(0), 3, {}), (tree, 67, {}), *further):
            # Other tokens each time, so that no slot holds by chance what a call should have written there. They are
            # spread over the vocabulary: logits behind its first, some never trained, can be rounding alone.
            tokens = (torch.arange(prefix + len(draft) + 2) * 613 + 3 * len(draft)) % decoder.vocab_size
            if len(tokens) > decoder.context_length:
                continue
            self.cache.restart(1)
            if prefix:
                decoder.forward(tokens[:prefix], chain_tree(prefix - 1), **decoder.prefill_options)
            found = []
            for steps in ({}, compiled):
                self.cache.length, self.steps = prefix, dict(steps)
                for layer in self.cache.layers:
                    for buffer in (layer.keys, layer.values):
                        if buffer is not None:  # a model may have more layers than attentions
                            buffer[:, :, prefix:] = 0
                logits, states = decoder.forward(tokens[prefix:-1], draft, **options), decoder.states
                self.steps = {}
                behind = decoder.forward(tokens[-1:], chain_tree(0))
                found.append([behind, *([] if options else [logits]), *([] if states is None else [states])])
            for plain, ours in zip(*found, strict=True):
                largest = torch.linalg.vector_norm(plain, torch.inf)
                # In place: on a large vocabulary each of these would take as much memory as a layer's weights.
                differences.append(torch.linalg.vector_norm(plain.sub_(ours), torch.inf).float() / largest.float())
        return float(torch.stack(differences).nan_to_num(torch.inf).max())


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

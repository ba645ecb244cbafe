"""Times the engine on a GPU against what the hardware and the theory allow, and writes one JSON file.

    python tests/benchmarks/gpu.py --out analysis/results/gpu.json

It needs a checkout, torch and transformers, and nothing else; it takes less than nine minutes. Each section has a
budget of seconds, catches its own failure, and is written as soon as it ends, so that what was measured is never lost.
A model of Llama-2-7B's shape is the target, one of 1.1 G parameters drafts; their weights are random, and no time here
depends on what they say. `--device cpu --tiny` runs every section on toys: that tests the script and measures nothing.

Exit code: 0 if every section ended well, 3 if one failed or ran out of time, 2 without the device.
"""

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # also where specdec is not installed

import torch
import transformers
from torch import Tensor

from specdec.compiled.cuda_graphs import Choice, StaticCall, StaticLoop, StaticStep, tolerance
from specdec.compiled.passes import compile_decoder
from specdec.models.attention import stock_attention
from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree

ROOT = Path(__file__).resolve().parents[2]
TARGET, DRAFTER = "target", "drafter"
EAGER, CAPTURED, COMPILED, FUSED = "eager", "captured", "compiled and captured", "our kernels, captured"
TOTAL_SECONDS = 520.0
Call = TypeVar("Call", bound=StaticCall[Any])


@dataclass(frozen=True)
class Scale:
    """The sizes of what is timed.

    Attributes:
        shapes: values of a Llama configuration for both models.
        sizes: tokens of the calls that are timed.
        compiled: the calls of each model that inductor compiles too.
        gamma: draft length of rounds, overhead and peers.
        tokens: new tokens of a timed stretch of decoding.
        repeats: how often each time is taken.
    """

    shapes: dict[str, dict[str, int]]
    dtype: torch.dtype
    prompt: int
    tokens: int
    sizes: tuple[int, ...]
    compiled: dict[str, tuple[int, ...]]
    gamma: int
    gammas: tuple[int, ...]
    alphas: tuple[float, ...]
    repeats: int

    @property
    def capacity(self) -> int:
        return self.prompt + self.tokens + 4 * max(*self.gammas, *self.sizes)


FULL = Scale(
    shapes={
        TARGET: dict(
            hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
            intermediate_size=11008, vocab_size=32000, max_position_embeddings=4096,
        ),
        DRAFTER: dict(
            hidden_size=2048, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
            intermediate_size=5632, vocab_size=32000, max_position_embeddings=4096,
        ),
    },
    dtype=torch.bfloat16, prompt=512, tokens=128, sizes=(*range(1, 17), 32, 64),
    compiled={TARGET: (1, 6), DRAFTER: ()}, gamma=5, gammas=(3, 5, 7), alphas=(0.6, 0.8, 0.9), repeats=20,
)  # fmt: skip
TOY = dict(
    hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, vocab_size=97,
    max_position_embeddings=512,
)  # fmt: skip
TINY = Scale(
    shapes={TARGET: TOY | dict(num_hidden_layers=2), DRAFTER: TOY | dict(num_hidden_layers=1)},
    dtype=torch.float32, prompt=12, tokens=12, sizes=(1, 2, 4), compiled={TARGET: (), DRAFTER: ()},
    gamma=2, gammas=(2, 3), alphas=(0.5, 0.9), repeats=2,
)  # fmt: skip


class Bench:
    """Both models, their passes, and the time that is left.

    Attributes:
        decoders: the models by name, each over one cache of fixed capacity.
        until: the reading of the clock at which the present section should end.
    """

    def __init__(self, device: torch.device, scale: Scale) -> None:
        self.device, self.scale = device, scale
        self.on_gpu = device.type == "cuda"
        self.until = time.perf_counter() + TOTAL_SECONDS
        self.steps: dict[tuple[str, int, str], StaticStep] = {}
        self.loops: dict[tuple[int, int, str], StaticLoop] = {}
        self.making_seconds: dict[str, float] = {}
        generator = torch.Generator().manual_seed(0)
        vocabulary = scale.shapes[TARGET]["vocab_size"]
        self.prompt: list[int] = torch.randint(vocabulary, (scale.prompt,), generator=generator).tolist()
        self.decoders = {name: self._opened(name, shape) for name, shape in scale.shapes.items()}

    def _opened(self, name: str, shape: dict[str, int]) -> Decoder:
        config = transformers.LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=None)
        torch.manual_seed(0)
        with torch.device(self.device):
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=self.scale.dtype, attn_implementation="sdpa"
            )
        decoder = Decoder(model.eval().requires_grad_(False), name, 512)
        compile_decoder(
            decoder, (), self.scale.capacity, "trace"
        )  # makes the cache that all passes share; traces nothing
        return decoder

    def left(self) -> float:
        """Return the seconds that the section may still take."""
        return self.until - time.perf_counter()

    def begin(self) -> None:
        """Let both models read the prompt."""
        for decoder in self.decoders.values():
            decoder.start(self.prompt, self.scale.capacity)

    def compiles(self) -> bool:
        """Tell if there is time to compile one more pass; without a GPU nothing is compiled."""
        compiled = [seconds for what, seconds in self.making_seconds.items() if what.endswith(COMPILED)]
        expected = 1.3 * max(compiled, default=40.0)
        return self.on_gpu and self.left() > expected

    def step(self, name: str, size: int, how: str) -> StaticStep:
        """Return a pass on `size` tokens; made at its first use."""
        if (name, size, how) not in self.steps:
            decoder = self.decoders[name]
            began = time.perf_counter()
            self.steps[name, size, how] = self._made(StaticStep(decoder, size), decoder, how)
            if how in (COMPILED, FUSED):
                self.making_seconds[f"{name}, {size} tokens, {how}"] = time.perf_counter() - began
        return self.steps[name, size, how]

    def loop(self, gamma: int, width: int, how: str) -> StaticLoop:
        """Return a loop that drafts gamma steps and offers the `width` most likely tokens of each."""
        if (gamma, width, how) not in self.loops:
            decoder = self.decoders[DRAFTER]

            def choose(logits: Tensor, uniform: Tensor) -> Choice:
                likely = logits[0].topk(width).indices
                return Choice(likely, likely[:1], None)

            self.loops[gamma, width, how] = self._made(StaticLoop(decoder, gamma, choose), decoder, how)
        return self.loops[gamma, width, how]

    def _made(self, call: Call, decoder: Decoder, how: str) -> Call:
        if how == COMPILED:
            call.optimise()
        if how == FUSED and not call.fuse(decoder):
            raise ValueError("our kernels do not serve this model")
        if self.on_gpu:
            call.capture()
        return call

    @property
    def fastest(self) -> str:
        """The kind of pass that rounds are made of."""
        return FUSED if self.on_gpu else CAPTURED

    @property
    def graphs(self) -> tuple[str, ...]:
        """The kinds of passes that every call, draft and round is captured as."""
        return tuple(dict.fromkeys((CAPTURED, self.fastest)))

    def tokens(self, name: str, size: int) -> Tensor:
        return (torch.arange(size, device=self.device) * 7919 + 1) % self.scale.shapes[name]["vocab_size"]

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object], repeats: int | None = None) -> list[float]:
        """Return the times of `run`: between events on a GPU, after two calls that do not count."""
        for _ in range(2):
            run()
        self.synchronize()
        marks = []
        for _ in range(repeats or self.scale.repeats):
            start = self._mark()
            run()
            marks.append((start, self._mark()))
        self.synchronize()
        return [start.elapsed_time(end) / 1000 if self.on_gpu else end - start for start, end in marks]

    def _mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wall(self, run: Callable[[], object]) -> float:
        """Return the time of `run` by the host's clock, the device's work included."""
        self.synchronize()
        began = time.perf_counter()
        run()
        self.synchronize()
        return time.perf_counter() - began


def summary(times: Sequence[float]) -> dict[str, float]:
    """Return median and quartiles of times in seconds."""
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else (times[0],) * 3
    return {"median_s": statistics.median(times), "low_s": low, "high_s": high, "times": len(times)}


def weight_bytes(weights: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in weights)


class Rounds:
    """Greedy decoding in rounds of one draft and one call of the target, by passes of one kind.

    A chain offers one token at each of gamma steps. A tree offers the two likeliest: the drafter reads the first, and
    the second is a leaf beside it.
    """

    def __init__(self, bench: Bench, gamma: int, how: str, width: int = 1) -> None:
        self.bench, self.gamma, self.width, self.how = bench, gamma, width, how
        self.target, self.drafter = bench.decoders[TARGET], bench.decoders[DRAFTER]
        spine = [-1 if depth == 0 else (depth - 1) * width for depth in range(gamma)]
        self.tree = Tree(tuple(parent for parent in spine for _ in range(width)))
        self.begin()

    def begin(self) -> None:
        self.bench.begin()
        self.context = list(self.bench.prompt)

    def draft(self) -> Tensor:
        """Return the drafted tokens [gamma * width]."""
        place = len(self.context) - 2
        if self.how != EAGER:
            return self.bench.loop(self.gamma, self.width, self.how)(self.context[-2:], place, None).tokens
        self.drafter.length, found = place, []
        # Written by `fill_`, as in the loop: a copy from the host would wait for the device.
        tokens = torch.cat([torch.full((1,), token, device=self.bench.device) for token in self.context[-2:]])
        for _ in range(self.gamma):
            logits = self.drafter.plain(tokens, chain_tree(len(tokens) - 1)).logits[-1]
            found.append(logits.topk(self.width).indices)
            tokens = found[-1][:1]
        return torch.cat(found)

    def verify(self, drafted: Tensor) -> Tensor:
        """Return the target's most likely token after the root and after every node [N + 1]."""
        return self._chosen(torch.cat([self._root(), drafted]), self.tree)

    def _root(self) -> Tensor:
        return torch.full((1,), self.context[-1], device=self.bench.device)

    def _chosen(self, tokens: Tensor, tree: Tree) -> Tensor:
        prefix = len(self.context) - 1
        if self.how == EAGER:
            self.target.length = prefix
            return self.target.plain(tokens, tree).logits.argmax(-1)
        return self.bench.step(TARGET, len(tokens), self.how)(tokens, prefix, tree).logits.argmax(-1)

    def accept(self, drafted: Tensor, choices: Tensor, forced: int | None) -> tuple[list[int], list[int]]:
        """Return the accepted nodes and the committed tokens. This is where the host waits, once.

        Args:
            forced: take so many steps of the draft, whatever the target says; None takes what it says.
        """
        found = torch.cat([drafted, choices]).tolist()
        tokens, wanted = found[: len(drafted)], found[len(drafted) :]
        path: list[int] = []
        for depth in range(self.gamma):
            choice = wanted[path[-1] + 1 if path else 0]
            offered = range(depth * self.width, (depth + 1) * self.width)
            hit = [node for node in offered if tokens[node] == choice]
            node = (offered[0] if depth < forced else None) if forced is not None else next(iter(hit), None)
            if node is None:
                break
            path.append(node)
            if node != offered[0]:
                break  # a leaf
        return path, [*(tokens[node] for node in path), wanted[path[-1] + 1 if path else 0]]

    def commit(self, path: list[int], tokens: list[int]) -> None:
        prefix = len(self.context)  # the root's slot is kept
        self.target.cache.commit(prefix, [prefix + node for node in path])
        self.context += tokens

    def round(self, forced: int | None = None) -> int:
        """Make one round; return how many tokens it committed."""
        drafted = self.draft()
        path, tokens = self.accept(drafted, self.verify(drafted), forced)
        self.commit(path, tokens)
        return len(tokens)

    def rounds(self, plan: Sequence[int]) -> None:
        """Make a round for every number of the plan, which accepts so many steps of its draft."""
        for forced in plan:
            self.round(forced)

    def plain_tokens(self, count: int) -> None:
        """Decode so many tokens without a draft."""
        for _ in range(count):
            self.context.append(int(self._chosen(self._root(), chain_tree(0))))


def correctness(bench: Bench, found: dict[str, Any]) -> None:
    """Compare passes with plain calls, and the texts that they decode.

    Raises:
        ArithmeticError: a pass departs from plain calls.
    """
    most = tolerance(bench.scale.dtype)
    found |= {"tolerance": most, "calls": [], "drafts": []}

    def note(rows: list[dict[str, Any]], apart: float, **what: Any) -> None:
        rows.append({**what, "departure": apart, "right": apart <= most})

    def call(name: str, size: int, how: str) -> None:
        apart = bench.step(name, size, how).departure(bench.decoders[name])
        note(found["calls"], apart, model=name, tokens=size, how=how)

    def draft(gamma: int, how: str) -> None:
        apart = bench.loop(gamma, 1, how).departure(bench.decoders[DRAFTER])
        note(found["drafts"], apart, gamma=gamma, how=how)

    sizes = sorted({1, *(gamma + 1 for gamma in bench.scale.gammas), 2 * bench.scale.gamma + 1})
    for how in bench.graphs:
        for name in bench.decoders:
            for size in sizes:
                call(name, size, how)
        for gamma in bench.scale.gammas:
            draft(gamma, how)
    texts = []
    for how in (EAGER, CAPTURED):  # nothing is fused, so that only the number of slots differs
        decoding = Rounds(bench, bench.scale.gamma, how)
        while len(decoding.context) < bench.scale.prompt + bench.scale.tokens:
            decoding.round()
        texts.append(decoding.context[: bench.scale.prompt + bench.scale.tokens])
    same = [one == other for one, other in zip(*texts, strict=True)]
    found["text"] = {"tokens": bench.scale.tokens, "same": (same + [False]).index(False) - bench.scale.prompt}
    for name, size in ((name, size) for name, sizes in bench.scale.compiled.items() for size in sizes):
        if bench.compiles():
            call(name, size, COMPILED)
        else:
            found["complete"] = False
    wrong = [row for row in (*found["calls"], *found["drafts"]) if not row["right"]]
    if wrong:
        raise ArithmeticError(f"{len(wrong)} passes depart from plain calls by more than {most:g}, such as {wrong[0]}")


def calls(bench: Bench, found: dict[str, Any]) -> None:
    """Time calls on n tokens behind the prompt against the time that reading the weights takes."""
    size = 2**28 if bench.on_gpu else 2**20
    source = torch.empty(size, device=bench.device)
    copying = partial(torch.empty_like(source).copy_, source)
    bandwidth = 2 * source.numel() * source.element_size() / min(bench.seconds(copying))
    del source, copying  # both are large
    found |= {"bandwidth_bytes_per_s": bandwidth, "context": bench.scale.prompt, "models": {}, "rows": []}
    for name, decoder in bench.decoders.items():
        # A call looks up a few lines of the embeddings, and reads everything else.
        weights = weight_bytes(decoder.model.parameters())
        read = weights - weight_bytes([decoder.model.get_input_embeddings().weight])
        found["models"][name] = {
            "parameters": sum(each.numel() for each in decoder.model.parameters()),
            "weight_bytes": weights, "read_bytes": read, "limit_s": read / bandwidth,
        }  # fmt: skip
    bench.begin()
    prefix = bench.scale.prompt - 1
    for name, decoder in bench.decoders.items():
        for tokens in bench.scale.sizes:
            if bench.left() < 0:
                found["complete"] = False
                return
            tree, given = chain_tree(tokens - 1), bench.tokens(name, tokens)

            def eager(decoder: Decoder = decoder, given: Tensor = given, tree: Tree = tree) -> None:
                decoder.length = prefix
                decoder.plain(given, tree)

            kinds: dict[str, Callable[[], object]] = {EAGER: eager}
            for how in (*bench.graphs, COMPILED):
                if how != COMPILED or (name, tokens, how) in bench.steps:
                    step = bench.step(name, tokens, how)
                    kinds[how] = lambda step=step, given=given, tree=tree: step(given, prefix, tree)
            for how, run in kinds.items():
                found["rows"].append({"model": name, "tokens": tokens, "how": how, **summary(bench.seconds(run))})


def rounds(bench: Bench, found: dict[str, Any]) -> None:
    """Time rounds of a chain and of a tree, their parts, and count how often the host waits in one."""
    gamma = bench.scale.gamma
    found |= {"gamma": gamma, "rows": []}
    for shape, width in (("chain", 1), ("tree", 2)):
        for how in (EAGER, *bench.graphs):
            decoding = Rounds(bench, gamma, how, width)
            drafted = decoding.draft()
            parts = {
                "draft": summary(bench.seconds(decoding.draft)),
                "verify": summary(bench.seconds(partial(decoding.verify, drafted))),
            }
            times = []
            for _ in range(bench.scale.repeats):
                decoding.begin()
                decoding.round()
                times.append(bench.wall(decoding.round))
            decoding.begin()
            decoding.round()
            with waits(bench) as counted:
                decoding.round()
            row = {"shape": shape, "how": how, "nodes": len(decoding.tree), "waits": len(counted)}
            found["rows"].append({**row, "round": summary(times), **parts})
            if bench.left() < 0:
                found["complete"] = False
                return


@contextmanager
def waits(bench: Bench) -> Iterator[list[str]]:
    """List what makes the host wait for the device: torch's own warnings on a GPU; elsewhere every reading of a tensor
    by the host, which would wait there.
    """
    seen: list[str] = []
    if bench.on_gpu:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield seen
            finally:
                torch.cuda.set_sync_debug_mode("default")
                seen += [str(each.message) for each in caught if "called a synchronizing" in str(each.message)]
        return
    with ExitStack() as replaced:
        for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"):
            read = partial(_noted, seen, name, getattr(Tensor, name))
            replaced.enter_context(patch.object(Tensor, name, lambda *given, read=read, **how: read(*given, **how)))
        yield seen


def _noted(seen: list[str], name: str, read: Callable[..., Any], *given: Any, **options: Any) -> Any:
    seen.append(name)
    return read(*given, **options)


def overhead(bench: Bench, found: dict[str, Any]) -> None:
    """Compare the time of rounds with the time in which kernels ran: what is left is the host's."""
    found["rows"] = []
    for how in (EAGER, *bench.graphs):
        decoding, count = Rounds(bench, bench.scale.gamma, how), 8
        decoding.round()
        wall = bench.wall(partial(decoding.rounds, [0] * count)) / count
        decoding.begin()
        decoding.round()
        busy = busy_seconds(bench, partial(decoding.rounds, [0] * count)) / count
        found["rows"].append({"how": how, "round_s": wall, "kernels_s": busy, "share": 1 - busy / wall})


def busy_seconds(bench: Bench, run: Callable[[], object]) -> float:
    """Return the time in which kernels ran, by torch's profiler; on a CPU, that in which operators did.

    Raises:
        RuntimeError: the profiler saw nothing, as where it may not read the GPU's counters.
    """
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(
        activities=[activity.CUDA if bench.on_gpu else activity.CPU], acc_events=True
    ) as profile:
        run()
        bench.synchronize()
    name = "self_device_time_total" if bench.on_gpu else "self_cpu_time_total"
    busy = sum(getattr(event, name) for event in profile.key_averages()) / 1e6
    if busy <= 0:
        raise RuntimeError("torch's profiler saw no kernels")
    return busy


def oracle(bench: Bench, found: dict[str, Any]) -> None:
    """Decode with a known acceptance and the drafter's real cost, interleaved with decoding without drafts, against
    Omega / (v + gamma c) (Leviathan et al. 2211.17192, theorem 3.8 with the cost v of the wider call).
    """
    coins = random.Random(0)
    budget = bench.scale.tokens
    t1 = statistics.median(bench.seconds(_verified(bench, 0)))
    cells = [(gamma, alpha) for gamma in bench.scale.gammas for alpha in bench.scale.alphas]
    costs = {}
    for gamma in bench.scale.gammas:
        decoding = Rounds(bench, gamma, bench.fastest)
        v = statistics.median(bench.seconds(_verified(bench, gamma))) / t1
        costs[gamma] = v, statistics.median(bench.seconds(decoding.draft)) / gamma / t1
    found |= {"t1_s": t1, "tokens": budget, "rows": []}
    taken: dict[tuple[int, float], list[tuple[float, float, int, int]]] = {cell: [] for cell in cells}
    for number in range(3):
        for gamma, alpha in random.Random(number).sample(cells, len(cells)):
            if bench.left() < 0:
                found["complete"] = False
                break
            decoding = Rounds(bench, gamma, bench.fastest)
            plain = bench.wall(partial(decoding.plain_tokens, budget)) / budget
            decoding.begin()
            plan: list[int] = []
            while sum(plan) + len(plan) < budget:
                accepted = 0
                while accepted < gamma and coins.random() < alpha:
                    accepted += 1
                plan.append(accepted)
            seconds = bench.wall(partial(decoding.rounds, plan))
            taken[gamma, alpha].append((plain, seconds, sum(plan) + len(plan), len(plan)))
    found["rows"] = [oracle_row(*cell, *costs[cell[0]], times) for cell, times in taken.items() if times]


def _verified(bench: Bench, gamma: int) -> Callable[[], object]:
    """Return a call of the target on gamma drafted tokens behind the prompt, by its fastest pass."""
    bench.begin()
    step, given = bench.step(TARGET, gamma + 1, bench.fastest), bench.tokens(TARGET, gamma + 1)
    return lambda: step(given, bench.scale.prompt - 1, chain_tree(gamma)).logits.argmax(-1)


def oracle_row(
    gamma: int, alpha: float, v: float, c: float, times: Sequence[tuple[float, float, int, int]]
) -> dict[str, Any]:
    """Return one cell: the formula, the limit with the tokens per round that the coins gave, and what was reached.

    v and c are the costs of the wide call and of a draft step, in calls on one token; `times` are seconds a token
    without drafts, and seconds, tokens and rounds with them.
    """
    omega = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    per_round = sum(tokens for _, _, tokens, _ in times) / sum(count for *_, count in times)
    speedups = [plain * tokens / seconds for plain, seconds, tokens, _ in times]
    # Each pass has coins of its own, so each is held against the limit of its own tokens per round.
    realised = [
        speedup * count * (v + gamma * c) / tokens
        for speedup, (_, _, tokens, count) in zip(speedups, times, strict=True)
    ]
    return {
        "gamma": gamma, "alpha": alpha, "v": v, "c": c, "omega": omega, "formula": omega / (v + gamma * c),
        "tokens_per_round": per_round, "limit": per_round / (v + gamma * c), "speedup": statistics.median(speedups),
        "speedups": speedups, "realised": statistics.median(realised),
    }  # fmt: skip


def peers(bench: Bench, found: dict[str, Any]) -> None:
    """Time `generate` and assisted generation of transformers beside our loop on the same models, interleaved.

    Their prefill is taken off by a call that makes one token. Random models hardly ever agree, so that assisted
    generation and our rounds both pay for drafts that are rejected.
    """
    model, assistant = bench.decoders[TARGET].model, bench.decoders[DRAFTER].model
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = bench.scale.gamma, "constant"
    settings.assistant_confidence_threshold = 0.0
    prompt = torch.tensor([bench.prompt], device=bench.device)
    budget = bench.scale.tokens // 2

    def theirs(cudnn: bool, **options: Any) -> float:
        def generate(count: int) -> None:
            model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count,
                min_new_tokens=count, pad_token_id=0, **options,
            )  # fmt: skip

        torch.backends.cuda.enable_cudnn_sdp(cudnn)  # as torch chooses by itself, or as our calls have it
        try:
            with stock_attention(model), stock_attention(assistant):
                return (bench.wall(lambda: generate(budget)) - bench.wall(lambda: generate(1))) / (budget - 1)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(False)

    def ours(how: str, drafts: bool) -> float:
        decoding = Rounds(bench, bench.scale.gamma, how)
        began = len(decoding.context)

        def decode() -> None:
            while len(decoding.context) < began + budget:
                decoding.round() if drafts else decoding.plain_tokens(1)

        seconds = bench.wall(decode)
        return seconds / (len(decoding.context) - began)

    arms: dict[str, Callable[[], float]] = {
        "ours": lambda: ours(bench.fastest, False),
        "ours, eager": lambda: ours(EAGER, False),
        "generate": lambda: theirs(False),
        "generate, torch's choice of attention": lambda: theirs(True),
        "ours with drafts": lambda: ours(bench.fastest, True),
        "assisted generation": lambda: theirs(False, assistant_model=assistant),
    }
    taken: dict[str, list[float]] = {name: [] for name in arms}
    failed: dict[str, str] = {}
    for number in range(4):  # the first pass warms up
        for name, arm in arms.items():
            if name in failed or (bench.left() < 0 and number):
                continue
            try:
                seconds = arm()
            except Exception as error:  # one arm's failure leaves the others
                failed[name] = sentence(error)
                continue
            if number:
                taken[name].append(seconds)
    found["rows"] = [{"arm": name, **summary(times)} for name, times in taken.items() if times]
    medians = {row["arm"]: row["median_s"] for row in found["rows"]}
    best = min((seconds for name, seconds in medians.items() if name.startswith("generate")), default=None)
    if best is not None and "ours" in medians:
        found["generate_ratio"] = best / medians["ours"]
    if {"assisted generation", "ours with drafts"} <= medians.keys():
        found["assisted_ratio"] = medians["assisted generation"] / medians["ours with drafts"]
    if failed:
        raise RuntimeError("; ".join(f"{name}: {fault}" for name, fault in failed.items()))


def memory(bench: Bench, found: dict[str, Any]) -> None:
    """Record the bytes of weights and caches, and on a GPU the peak and what graphs keep."""
    for name, decoder in bench.decoders.items():
        weights = weight_bytes(decoder.model.parameters())
        found[name] = {"weight_bytes": weights, "cache_bytes": decoder.cache.nbytes(), "slots": decoder.cache.capacity}
    if not bench.on_gpu:
        return
    found["peak_bytes"] = torch.cuda.max_memory_allocated()
    found["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    before = torch.cuda.memory_reserved()
    bench.steps.clear()
    bench.loops.clear()
    torch.cuda.empty_cache()
    found["graph_bytes"] = before - torch.cuda.memory_reserved()  # with what the allocator had kept besides


SECTIONS: dict[str, tuple[float, Callable[[Bench, dict[str, Any]], None]]] = {
    "correctness": (250.0, correctness),
    "calls": (45.0, calls),
    "rounds": (40.0, rounds),
    "overhead": (25.0, overhead),
    "oracle": (75.0, oracle),
    "peers": (75.0, peers),
    "memory": (15.0, memory),
}
"""Each section's budget in seconds; what one leaves over, the next ones may use."""


@torch.inference_mode()
def measured(device: torch.device, scale: Scale, path: Path, commit: str | None = None) -> bool:
    """Run all sections, writing the file after each of them again, and return whether every one ended well."""
    began = time.perf_counter()
    end = began + TOTAL_SECONDS
    sections: dict[str, Any] = {}
    report = {
        "captured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit or commit_of(ROOT),
        "measured": device.type == "cuda" and scale is FULL, "device": device_facts(device),
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "transformers": transformers.__version__, "cuda": torch.version.cuda},
        "dtype": str(scale.dtype).removeprefix("torch."), "shapes": scale.shapes, "sections": sections,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    bench = None
    allowed = began
    for name, (budget, section) in SECTIONS.items():
        allowed += budget
        found: dict[str, Any] = {"complete": True}
        start = time.perf_counter()
        try:
            bench = bench or Bench(device, scale)
            bench.until = min(max(allowed, start + budget), end)
            if time.perf_counter() > end:
                raise TimeoutError("no time was left for it")
            section(bench, found)
            found["status"] = "done" if found["complete"] else "out of time"
        except Exception as error:  # a measurement to be looked at afterwards: the other sections go on
            found |= {"status": "failed", "error": sentence(error), "complete": False}
        found["seconds"] = time.perf_counter() - start
        sections[name] = found
        save()
        print(f"{name}: {found['status']} in {found['seconds']:.1f} s {found.get('error', '')}", flush=True)
    if bench is not None:
        report["making_seconds"] = bench.making_seconds
    report |= {"seconds": time.perf_counter() - began, "device_afterwards": device_facts(device)}
    save()
    return all(found["complete"] for found in sections.values())


def sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def said_by(*command: str) -> str:
    """Return what a command writes to standard output."""
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return name, memory, driver, clocks and power as the driver's own tool gives them."""
    if device.type != "cuda":
        return {"name": platform.processor() or platform.machine(), "type": device.type}
    properties = torch.cuda.get_device_properties(device)
    facts = {
        "type": "cuda", "name": properties.name, "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}", "multiprocessors": properties.multi_processor_count,
    }  # fmt: skip
    asked = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
    try:
        line = said_by(
            "nvidia-smi", f"--id=GPU-{properties.uuid}", f"--query-gpu={asked}", "--format=csv,noheader,nounits"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {**facts, "driver": sentence(error)}
    return {**facts, **dict(zip(asked.split(","), (value.strip() for value in line.split(",")), strict=False))}


COMMIT_COMMANDS = (("rev-parse", "HEAD"), ("status", "--porcelain"))


def commit_of(root: Path) -> str | None:
    """Return the commit of a checkout, with "+" where files are changed; None where git does not say."""
    try:
        commit, changed = (said_by("git", "-C", str(root), *each) for each in COMMIT_COMMANDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toys, which test the script")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--commit", help="the commit, where the checkout does not say it")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", "TensorFloat32", UserWarning)  # models in float32 are to be exact
    transformers.logging.set_verbosity_error()  # assisted generation warns of how it calls itself
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        print("No CUDA device is available: run this on a GPU, or try it with --device cpu --tiny.", file=sys.stderr)
        return 2
    done = measured(torch.device(given.device), TINY if given.tiny else FULL, given.out, given.commit)
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())

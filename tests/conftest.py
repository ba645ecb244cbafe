"""Shared helpers, as fixtures: exact enumeration of a random computation, tiny models of every architecture,
table targets, and the small published models of ../shared/data.
"""

import itertools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from specdec.config import config_dir
from specdec.records import Draft, Tree
from specdec.sampling import SamplingConfig
from specdec.targets.table import Table, TableConfig

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share two cores, and so do the commands that they start
# A busy machine must not fail a test: no deadlines. Found examples are the same on every machine.
hypothesis.settings.register_profile("specdec", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("specdec")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny models run faster on one thread, and sums in one order."""
    torch.set_num_threads(1)


# ------------------------------------------------------------------------------------------------------------
# Exact enumeration: run a computation once per outcome of its random choices and multiply the chances.


class Branches:
    """One run: follows a script of choices, then takes the first possible one; `weight` is the chance of the
    run.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.script, self.trace, self.weight = script, [], 1.0

    def choose(self, chances: Sequence[float]) -> int:
        options = [index for index, chance in enumerate(chances) if chance > 0]
        step = len(self.trace)
        taken = self.script[step] if step < len(self.script) else 0
        self.trace.append((taken, len(options)))
        self.weight *= chances[options[taken]]
        return options[taken]

    def next_script(self) -> list[int] | None:
        """The next run in depth-first order, or None after the last."""
        trace = list(self.trace)
        while trace and trace[-1][0] + 1 == trace[-1][1]:
            trace.pop()
        return [taken for taken, _ in trace[:-1]] + [trace[-1][0] + 1] if trace else None


class Uniforms:
    """What `torch.rand` returns under enumeration: numbers known only to lie in an interval.

    A comparison splits the interval at its threshold and branches with the two chances, so any rule that
    compares (scaled) uniforms with numbers is enumerated exactly. Every other use raises: extend this class
    for it.
    """

    def __init__(self, branches: Branches, cells: list[list[float]], index: Tensor, scale: Tensor) -> None:
        self._branches, self._cells, self._index, self._scale = branches, cells, index, scale

    @classmethod
    def fresh(cls, branches: Branches, shape: tuple[int, ...]) -> "Uniforms":
        index = torch.arange(int(torch.Size(shape).numel())).reshape(shape)
        return cls(branches, [[0.0, 1.0] for _ in range(index.numel())], index, torch.ones(shape).double())

    @property
    def shape(self) -> torch.Size:
        return self._index.shape

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, item: Any) -> "Uniforms":
        return Uniforms(self._branches, self._cells, self._index[item], self._scale[item])

    def __mul__(self, other: Any) -> "Uniforms":
        scale = self._scale * torch.as_tensor(other, dtype=torch.float64)
        return Uniforms(self._branches, self._cells, self._index.expand(scale.shape), scale)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Uniforms":
        return self * (1.0 / torch.as_tensor(other, dtype=torch.float64))

    def _below(self, other: Any) -> Tensor:
        bounds = torch.as_tensor(other, dtype=torch.float64)
        shape = torch.broadcast_shapes(self.shape, bounds.shape)
        flat = (tensor.expand(shape).reshape(-1).tolist() for tensor in (self._index, self._scale, bounds))
        return torch.tensor([self._split(*element) for element in zip(*flat, strict=True)]).bool().reshape(shape)

    def _split(self, index: int, scale: float, bound: float) -> bool:
        if scale == 0:
            return bound > 0
        low, high = self._cells[index]
        threshold = min(max(bound / scale, low), high)
        below = (threshold - low) / (high - low)
        taken = self._branches.choose([below, 1.0 - below])
        self._cells[index] = [threshold, high] if taken else [low, threshold]
        return not taken

    def _place(self, bounds: Tensor) -> Tensor:
        """`torch.searchsorted`: in which gap of the row of bounds each number lies, one branch per gap."""
        rows = bounds.double().unsqueeze(-2).expand(*self.shape, -1).reshape(-1, bounds.shape[-1]).tolist()
        places = []
        for index, scale, row in zip(self._index.flatten().tolist(), self._scale.flatten().tolist(), rows, strict=True):
            low, high = self._cells[index]
            edges = [low, *(min(max(bound / scale, low), high) for bound in row), high]
            place = self._branches.choose([(b - a) / (high - low) for a, b in itertools.pairwise(edges)])
            self._cells[index] = [edges[place], edges[place + 1]]
            places.append(place)
        return torch.tensor(places).reshape(self.shape)

    # A single number has chance 0, so strict and weak comparisons are the same.
    __lt__ = __le__ = _below

    def __gt__(self, other: Any) -> Tensor:
        return ~self._below(other)

    __ge__ = __gt__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """`tensor * uniforms` and `tensor > uniforms` arrive here; the operator with its sides swapped does
        the work.
        """
        swapped = {
            "mul": cls.__mul__,
            "__mul__": cls.__mul__,
            "__rmul__": cls.__mul__,
            "gt": cls.__lt__,
            "__gt__": cls.__lt__,
            "ge": cls.__le__,
            "__ge__": cls.__le__,
            "lt": cls.__gt__,
            "__lt__": cls.__gt__,
            "le": cls.__ge__,
            "__le__": cls.__ge__,
        }
        name = function.__name__
        if name == "searchsorted" and isinstance(args[1], cls):
            return args[1]._place(args[0])
        if name in swapped and len(args) == 2 and isinstance(args[1], cls) and not isinstance(args[0], cls):
            return swapped[name](args[1], args[0])
        raise TypeError(f"the enumeration harness cannot follow {name} of a uniform number: extend Uniforms")


class Enumeration:
    """`outcomes(run)` calls `run` once per branch and yields (chance, result); the chances add up to 1.

    `generator` is the only source of randomness that `run` may use: `torch.rand` and `torch.multinomial` are
    replaced while it runs, and anything that draws real random numbers is noticed.
    """

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def outcomes(self, run: Callable[[], Any]) -> Iterator[tuple[float, Any]]:
        before = self.generator.get_state(), torch.get_rng_state()
        script: list[int] | None = []
        while script is not None:
            branches = Branches(script)
            with (
                mock.patch.object(torch, "rand", self._rand(branches)),
                mock.patch.object(torch, "multinomial", self._multinomial(branches)),
            ):
                result = run()
            yield branches.weight, result
            script = branches.next_script()
        after = self.generator.get_state(), torch.get_rng_state()
        assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1]), (
            "random numbers were drawn that the enumeration harness does not replace"
        )

    def law(self, run: Callable[[], Any]) -> dict[Any, float]:
        """Chance of every result of `run`; checks that they add up to 1."""
        law: dict[Any, float] = {}
        for chance, result in self.outcomes(run):
            law[result] = law.get(result, 0.0) + chance
        assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
        return law

    def _checked(self, generator: torch.Generator | None) -> None:
        assert generator is self.generator, "randomness must come from the generator that was passed as an argument"

    def _rand(self, branches: Branches) -> Callable[..., Any]:
        def rand(*size: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Uniforms:
            self._checked(generator)
            shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
            return Uniforms.fresh(branches, shape)

        return rand

    def _multinomial(self, branches: Branches) -> Callable[..., Any]:
        def multinomial(
            p: Tensor,
            num_samples: int,
            replacement: bool = False,
            *,
            generator: torch.Generator | None = None,
        ) -> Tensor:
            self._checked(generator)
            rows = []
            for law in p.reshape(-1, p.shape[-1]).tolist():
                drawn: list[int] = []
                for _ in range(num_samples):
                    chances = [0.0 if i in drawn and not replacement else chance for i, chance in enumerate(law)]
                    total = sum(chances)
                    drawn.append(branches.choose([chance / total for chance in chances]))
                rows.append(drawn)
            return torch.tensor(rows).reshape(*p.shape[:-1], num_samples)

        return multinomial


@pytest.fixture
def enumeration() -> Enumeration:
    return Enumeration()


# ------------------------------------------------------------------------------------------------------------
# Small parts.


def _sampling(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> SamplingConfig:
    return SamplingConfig(name="test", temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.fixture(scope="session")
def sampling() -> Callable[..., SamplingConfig]:
    """`sampling(temperature=1.0, top_k=None, top_p=None, min_p=None)`."""
    return _sampling


@pytest.fixture(scope="session")
def table() -> Callable[..., Table]:
    """`table(law, temperature=0.0, end_token=None, ...)`: a table target."""

    def make(law: Any, end_token: int | None = None, **how: Any) -> Table:
        rows = law.tolist() if isinstance(law, Tensor) else law
        how.setdefault("temperature", 0.0)
        return Table(TableConfig(name="table", law=rows, end_token=end_token, context_length=1000), _sampling(**how))

    return make


@pytest.fixture(scope="session")
def random_law() -> Callable[..., Tensor]:
    """`random_law(size, seed)`: a random stochastic matrix, rows far from uniform."""

    def make(size: int, seed: int, spread: float = 1.2) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(size, size, generator=generator, dtype=torch.float64) * spread).softmax(-1)

    return make


@pytest.fixture(scope="session")
def random_draft() -> Callable[..., Draft]:
    """`random_draft(nodes, vocabulary, seed)`: a branching tree with random tokens."""

    def make(nodes: int, vocabulary: int, seed: int) -> Draft:
        generator = torch.Generator().manual_seed(seed)
        parents = [int(torch.randint(-1, node, (), generator=generator)) for node in range(nodes)]
        # The first four nodes fix the shape where luck might not branch: two children of the root, one deeper
        # level.
        parents[:4] = [-1, 0, 1, -1][:nodes]
        return Draft(torch.randint(vocabulary, (nodes,), generator=generator), Tree(tuple(parents)))

    return make


@pytest.fixture(scope="session")
def path_to() -> Callable[[Tree, int], list[int]]:
    """`path_to(tree, node)`: the nodes from the root down to `node`, both ends counted but for the root."""

    def path(tree: Tree, node: int) -> list[int]:
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = tree.parents[node]
        return nodes[::-1]

    return path


def _group_values(group: str, name: str, **changes: Any) -> dict[str, Any]:
    loaded = OmegaConf.to_container(OmegaConf.load(Path(config_dir()) / group / f"{name}.yaml"))
    assert isinstance(loaded, dict)
    loaded.pop("defaults", None)
    return {str(key): value for key, value in loaded.items()} | changes


@pytest.fixture(scope="session")
def group_values() -> Callable[..., dict[str, Any]]:
    """`group_values("drafter", "ngram", order_max=3)`: a YAML of conf/ as plain values, some of them
    replaced.
    """
    return _group_values


def _make_structure(name: str, gamma: int) -> Any:
    from specdec.structures import structures

    if name == "tree":  # two children of the root, then two of the first node of every level
        parents = [-1, -1, *(2 * level for level in range(gamma - 1) for _ in range(2))]
        return structures.build(_group_values("structure", "tree", parents=parents, nodes=len(parents), depth=gamma))
    changes: dict[str, Any] = {"gamma": gamma} if name == "chain" else {"k": 3, "w": gamma}
    if name == "dynamic":
        changes = {"nodes": 2 * gamma, "depth": gamma, "branching": 2, "beam": 2}
    return structures.build(_group_values("structure", name, **changes))


@pytest.fixture(scope="session")
def make_structure() -> Callable[[str, int], Any]:
    """`make_structure("rows", 2)`: a small structure of a kind, `gamma` deep; `rows` has 3, trees two nodes a level."""
    return _make_structure


# ------------------------------------------------------------------------------------------------------------
# Tiny random models.

VOCABULARY = 61
_SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=256,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
_GROUPED = dict(_SIZES, num_key_value_heads=2)
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen3": ("Qwen3Config", dict(_GROUPED, head_dim=8)),
    "gpt2": (
        "GPT2Config",
        dict(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=256,
            bos_token_id=None,
            eos_token_id=None,
        ),
    ),
    "gpt_neox": ("GPTNeoXConfig", _SIZES),
    "opt": ("OPTConfig", dict(_SIZES, ffn_dim=48, word_embed_proj_dim=32)),
    "mistral_window": ("MistralConfig", dict(_GROUPED, head_dim=8, sliding_window=6)),
    "phi3": ("Phi3Config", _GROUPED),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            _GROUPED,
            num_hidden_layers=3,
            head_dim=8,
            sliding_window=6,
            layer_types=_MIXED,
            tie_word_embeddings=False,
        ),
    ),
    "gemma2": (
        "Gemma2Config",
        dict(_GROUPED, head_dim=8, sliding_window=6, attn_implementation="eager", tie_word_embeddings=False),
    ),
}


@cache
def _tiny_model(name: str) -> Any:
    import transformers

    kind, values = ARCHITECTURES[name]
    config = getattr(transformers, kind)(**values)
    # As initialised, every logit is near 0 and greedy text collapses to one token: the weights are scaled up.
    # So does text from an output matrix tied to a large embedding, which repeats its input; Gemma's is untied
    # for this.
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval().requires_grad_(False)
    for weight in model.parameters():
        weight.mul_(5.0 if weight.dim() > 1 else 3.0)
    return model


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Any]:
    """`tiny_model("llama")`: a random float64 model of an architecture, the same object at every call."""
    return _tiny_model


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., Any]:
    """`tiny_llama(vocabulary, context=64, layers=2, seed=0)`: a random float64 Llama, a new one at every call."""

    def make(vocabulary: int, context: int = 64, layers: int = 2, seed: int = 0) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=context,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = LlamaForCausalLM(config).double()
        for weight in model.parameters():
            weight.requires_grad_(False).mul_(12.0 if weight.dim() > 1 else 1.0)
        return model

    return make


def _token_corpus(folder: Path, vocabulary: int) -> dict[str, Any]:
    """A corpus of token ids, 30 documents: every token is followed by a few others."""
    generator = torch.Generator().manual_seed(0)
    walk = torch.randint(1, 4, (30, 40), generator=generator).cumsum(-1) % vocabulary
    (folder / "corpus.jsonl").write_text("".join(f'{{"tokens": {row}}}\n' for row in walk.tolist()))
    return {"corpus": str(folder / "corpus.jsonl"), "field": "tokens", "cache_dir": str(folder / "fitted")}


def _small_model(folder: Path, vocabulary: int) -> dict[str, Any]:
    """Keys of a drafter with a float64 model of its own: for the tiny targets their llama, shaken so that the two agree
    on about half of a text; for tables one that never writes the last token, which halves what has to be enumerated.
    """
    from transformers import PhiConfig, PhiForCausalLM

    torch.manual_seed(vocabulary)
    if vocabulary == VOCABULARY:
        model = deepcopy(_tiny_model("llama"))
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.07 * float(weight.std()) if weight.dim() > 1 else 0.0)
    else:
        sizes = dict(_SIZES, vocab_size=vocabulary, hidden_size=16, intermediate_size=8, num_hidden_layers=1)
        model = PhiForCausalLM(PhiConfig(**sizes)).double().requires_grad_(False)
        for weight in model.parameters():
            weight.mul_(20.0 if weight.dim() > 1 else 1.0)
        model.lm_head.bias[-1] = -1e4
    model.save_pretrained(folder)
    return {"model": str(folder)}


# Kinds of T5, and the seeds of random ones whose greedy texts do not collapse.
ENCODER_DECODERS: dict[str, tuple[dict[str, Any], int]] = {
    "t5": ({}, 18),
    "t5_v1_1": (dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), 35),
}


@cache
def _tiny_encoder_decoder(name: str) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    changes, seed = ENCODER_DECODERS[name]
    sizes = dict(vocab_size=VOCABULARY, d_model=32, d_ff=48, d_kv=8, num_heads=4, num_layers=3, num_decoder_layers=2)
    config = T5Config(**sizes, **changes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None)
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config).double().eval().requires_grad_(False)
    # Embeddings of size 1 drown what the layers add: texts would repeat one token.
    for parameter, weight in model.named_parameters():
        weight.mul_(0.1 if parameter == "shared.weight" else 4.0)
    return model


@pytest.fixture(scope="session")
def tiny_encoder_decoder() -> Callable[[str], Any]:
    """`tiny_encoder_decoder("t5")`: a random float64 model of a kind, the same object at every call."""
    return _tiny_encoder_decoder


@pytest.fixture(params=sorted(ENCODER_DECODERS))
def encoder_decoder(request: pytest.FixtureRequest) -> str:
    return request.param


def _recorded_lengths(folder: Path, vocabulary: int) -> dict[str, Any]:
    """Of prompts that tests with few states decode; others get no proposals. The text repeats the last token, as that
    of the table which comes with specdec.
    """
    from specdec.text.streams import Stream, write_streams

    prompts = [(0,), (1,), (2,), (0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (0, 3, 1, 4, 0, 3, 1, 2, 0, 3)]
    streams = [
        Stream(str(number), "c", prompt, prompt[-1:] * 96, {"acc_x": (3, 1, 2, 6, 1, 4 + number) * 16})
        for number, prompt in enumerate(prompts)
        if max(prompt) < vocabulary
    ]
    write_streams(folder / "streams.jsonl", streams)
    return {"path": str(folder / "streams.jsonl")}


def _random_heads(target: Any, seed: int = 0, **changes: Any) -> Any:
    from specdec.heads.config import HeadsConfig
    from specdec.heads.model import Heads

    plain = dict(grounded=False, mixer="mlp", layers=1, width=None, state="hidden", offset=0, prefix=False)
    config = HeadsConfig(**(dict(name="test", count=5, output="tied", **plain) | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        heads = Heads(config, target.hidden.embedding, target.hidden.output_layer).double().eval().requires_grad_(False)
        for weight in heads.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return heads


@pytest.fixture(scope="session")
def random_heads() -> Callable[..., Any]:
    """`random_heads(target, seed=0, grounded=True)`: five float64 heads of a target, independent ones of one block with
    the target's output layer where nothing else is said.
    """
    return _random_heads


# Drafters over heads, and what theirs are made of: they belong to a target, not to a size of vocabulary.
HEADS: dict[str, dict[str, Any]] = {
    "blockwise": {"output": "own"},
    "grounded": {"grounded": True, "prefix": True},
    "medusa": {"layers": 2, "width": 12},
}

# What a drafter needs beyond its YAML to run beside a small target: (folder for files, vocabulary) -> changed keys.
DRAFTER_CHANGES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "adaptive": lambda folder, vocabulary: {
        "of": _group_values("drafter", "small_model", **_small_model(folder, vocabulary)),
        "threshold": 1.5 / vocabulary,  # crossed by some tokens of a flat law
    },
    "corpus_ngram": _token_corpus,
    "mixed": lambda folder, vocabulary: {
        "context": _group_values("drafter", "ngram"),
        "bigram": _group_values("drafter", "model_bigram", cache_dir=None),
    },
    "model_bigram": lambda folder, vocabulary: {"cache_dir": str(folder)},
    "model_unigram": lambda folder, vocabulary: (
        _small_model(folder, vocabulary)
        | {key: value for key, value in _token_corpus(folder, vocabulary).items() if key != "cache_dir"}
    ),
    "oracle": lambda folder, vocabulary: {"alpha": 0.65},
    "recorded": _recorded_lengths,
    "small_model": _small_model,
}


@pytest.fixture(scope="session")
def drafter_values(group_values, tmp_path_factory) -> Callable[..., dict[str, Any]]:
    """`drafter_values("ngram", vocabulary, target)`: a registered drafter's YAML, made to fit a small target; one over
    heads needs to know which.
    """
    files = tmp_path_factory.mktemp("heads")

    @cache
    def by_size(name: str, vocabulary: int) -> dict[str, Any]:
        changes = DRAFTER_CHANGES.get(name, lambda folder, vocabulary: {})
        return group_values("drafter", name, **changes(tmp_path_factory.mktemp(name), vocabulary))

    def values(name: str, vocabulary: int, target: Any = None) -> dict[str, Any]:
        if name not in HEADS:
            return by_size(name, vocabulary)
        from specdec.heads.files import save_heads

        assert target is not None, f"{name} drafts with heads: say for which target"
        path = files / f"{name}-{target.hidden.identity}.safetensors"
        if not path.exists():
            save_heads(_random_heads(target, **HEADS[name]), path, target.hidden.identity, training={})
        return group_values("drafter", name, model=str(path))

    return values


# ------------------------------------------------------------------------------------------------------------
# The small published models (../shared/data/README.md), converted in memory.

PUBLISHED = {
    "stories260K": "stories260K/stories260K.bin",
    "llama2xs": "llama2xs/model.bin",
    "bit_model_1M": "bitllama/bit_model_1M.bin",
    "bit_model_3M": "bitllama/bit_model_3M.bin",
    "babyllama_tok105": "babyllama/tok105_model5000.bin",
    "babyllama_tok361": "babyllama/tok361_model5000.bin",
}


class _Reader:
    """Consecutive little-endian numbers of a checkpoint."""

    def __init__(self, path: Path) -> None:
        self._bytes, self.position = path.read_bytes(), 0

    def header(self, at: int) -> dict[str, int]:
        names = (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
        )
        self.position = at + 28
        return dict(zip(names, struct.unpack_from("<7i", self._bytes, at), strict=True))

    def floats(self, *shape: int) -> Tensor:
        count = int(torch.Size(shape).numel())
        values = torch.frombuffer(
            bytearray(self._bytes[self.position : self.position + 4 * count]), dtype=torch.float32
        )
        self.position += 4 * count
        return values.reshape(shape)

    def ternary(self, rows: int, columns: int) -> Tensor:
        """One scale, then four weights a byte, the first in the two highest bits; 00 is 0, 01 is +1, 11 is
        -1.
        """
        scale = self.floats(1)
        count = rows * columns // 4
        packed = torch.frombuffer(bytearray(self._bytes[self.position : self.position + count]), dtype=torch.uint8)
        self.position += count
        codes = (packed[:, None] >> torch.tensor([6, 4, 2, 0])) & 3
        return scale * torch.tensor([0.0, 1.0, 0.0, -1.0])[codes.long()].reshape(rows, columns)


def _rotary_order(weight: Tensor, heads: int) -> Tensor:
    """Rows of q and k from neighbouring pairs to halves: the even rows of a head first, then the odd ones."""
    return weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


_MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
)


def _shapes(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    dim, hidden = sizes["hidden_size"], sizes["intermediate_size"]
    key_value = dim // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    both = [
        (dim, dim),
        (key_value, dim),
        (key_value, dim),
        (dim, dim),
        (hidden, dim),
        (dim, hidden),
        (hidden, dim),
    ]
    return dict(zip(_MATRICES, both, strict=True))


def _llama2c(path: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = _Reader(path)
    sizes = reader.header(0)
    layers, dim = sizes["num_hidden_layers"], sizes["hidden_size"]
    shapes = _shapes(sizes)
    weights = {"model.embed_tokens.weight": reader.floats(sizes["vocab_size"], dim)}

    def stack(name: str, *shape: int) -> None:
        for layer, weight in enumerate(reader.floats(layers, *shape)):
            weights[f"model.layers.{layer}.{name}.weight"] = weight

    stack("input_layernorm", dim)
    for name in _MATRICES[:4]:
        stack(name, *shapes[name])
    stack("post_attention_layernorm", dim)
    for name in _MATRICES[4:]:
        stack(name, *shapes[name])
    weights["model.norm.weight"] = reader.floats(dim)
    config = LlamaConfig(
        **sizes,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=1,
    )
    return _filled(LlamaForCausalLM(config), weights, sizes)


def _bitllama(path: Path) -> Any:
    from transformers import BitNetConfig, BitNetForCausalLM

    reader = _Reader(path)
    sizes = reader.header(8)
    reader.position = 256
    layers, dim, hidden = sizes["num_hidden_layers"], sizes["hidden_size"], sizes["intermediate_size"]
    weights = {"model.norm.weight": reader.floats(dim)}
    weights["model.embed_tokens.weight"] = reader.floats(sizes["vocab_size"], dim)
    order = (*_MATRICES[:4], "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj")
    for name, layer in itertools.product(order, range(layers)):
        weights[f"model.layers.{layer}.{name}.weight"] = reader.ternary(*_shapes(sizes)[name])
    # The checkpoint divides by length and width; an RMS norm with the constant weight 1/width does the same.
    for layer in range(layers):
        for name, width in (
            ("input_layernorm", dim),
            ("post_attention_layernorm", dim),
            ("self_attn.attn_sub_norm", dim),
            ("mlp.ffn_sub_norm", hidden),
        ):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.full((width,), 1.0 / width)
    config = BitNetConfig(
        **sizes,
        rms_norm_eps=1e-12,
        rope_theta=10000.0,
        hidden_act="silu",
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=None,
    )
    return _filled(BitNetForCausalLM(config), weights, sizes)


def _filled(model: Any, weights: dict[str, Tensor], sizes: dict[str, int]) -> Any:
    for name in list(weights):
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = sizes["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            weights[name] = _rotary_order(weights[name], heads)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder ../shared/data (SPECDEC_SHARED replaces ../shared); skips where it is absent."""
    root = os.environ.get("SPECDEC_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    folder = Path(root) / "data"
    if not folder.is_dir():
        pytest.skip(f"the small published models are not here: {folder} does not exist (SPECDEC_SHARED sets it)")
    return folder


@pytest.fixture(scope="session")
def published_model(shared_data: Path) -> Callable[[str], Any]:
    """`published_model("stories260K")`: a transformers model, float32, the same object at every call."""

    @cache
    def load(name: str) -> Any:
        path = shared_data / "models" / PUBLISHED[name]
        return (_bitllama if name.startswith("bit") else _llama2c)(path)

    return load


@pytest.fixture(scope="session")
def tok512(shared_data: Path) -> Any:
    """The SentencePiece tokenizer that four of the published models share."""
    sentencepiece = pytest.importorskip("sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_file=str(shared_data / "tokenizers/tok512/tok512.model"))

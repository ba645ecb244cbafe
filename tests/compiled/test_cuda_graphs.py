"""Passes and loops that CUDA graphs hold, without their graphs: what they are held to before they are trusted; a loop
drafts what single calls draft, and looks at nothing.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fixtures.decoding import decode, seeded
from torch.utils._python_dispatch import TorchDispatchMode

from specdec.compiled import cuda_graphs, traced
from specdec.compiled.cuda_graphs import Choice, StaticLoop, StaticStep, random_slots, tolerance, trusted
from specdec.compiled.passes import compile_decoder
from specdec.drafters import small_model
from specdec.drafters.adaptive import Adaptive
from specdec.drafters.small_model import SmallModel
from specdec.models import forward_pass
from specdec.models.attention import pin_attention
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass
from specdec.models.masks import MaskBuffers
from specdec.records import TextStart, Tree, chain_tree
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.verifiers.base import verifiers

TEXT = [5, 9, 33, 2, 60, 17, 9]
PROMPT = [7, 3, 19, 44, 3, 19, 52, 7]
GAMMA = 3
CUTS = [
    {"temperature": 0.0},
    {"temperature": 1.3},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.7},
]
OPTIMISE, CAPTURE = StaticLoop.optimise, StaticLoop.capture
# What the host can learn from a tensor only by waiting for the device.
WAITING = {*"_local_scalar_dense item nonzero is_nonzero equal masked_select _unique2".split(), "boolean index"}


@pytest.fixture
def decoder(tiny_model, monkeypatch):
    """Makes a decoder over a free cache of 512 slots, in buckets of 64 and more."""
    monkeypatch.setattr(cuda_graphs, "_LEAST_SLOTS", 64)

    @torch.inference_mode()
    def make(name="llama"):
        made = Decoder(tiny_model(name), name, 512)
        compile_decoder(made, {}, 64, "trace")
        made.context_length = 400
        return made

    return make


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_right_pass_is_trusted(decoder, name, size):
    made = decoder(name)
    assert StaticStep(made, size).departure(made) < 1e-6
    assert made.length == 0 and not made.cache.layers[0].keys.any(), "the cache is free for the next text"


@torch.inference_mode()
@pytest.mark.parametrize("wrong", ["a slot ahead is seen", "trees are taken for chains", "positions", "one bucket"])
def test_a_wrong_pass_is_not(decoder, monkeypatch, wrong):
    made = decoder()
    step, sight = StaticStep(made, 5), forward_pass._sight

    def off(places, columns, below):
        positions, keys, seen = sight(places, columns, below)
        if wrong == "a slot ahead is seen":
            seen = seen | (keys == positions[:, None] + 1)
        if wrong == "positions":
            positions = positions + 1 - torch.ones_like(positions).cumsum(0).clamp_max(2)
        if wrong == "one bucket" and len(columns) == 128:
            seen = seen & (columns > 0)
        return positions, keys, seen

    monkeypatch.setattr(forward_pass, "_sight", off)
    if wrong == "trees are taken for chains":
        monkeypatch.setattr(StaticStep, "_show", lambda step, tree: None)
    assert step.departure(made) > tolerance(torch.float32)


@torch.inference_mode()
@pytest.mark.parametrize("greedy", [True, False])
def test_a_loop_is_compared_with_plain_calls(decoder, greedy):
    """Also one that drafts another token than its model's, or from another law."""
    made = decoder()

    def chosen(slip):
        def choose(logits, uniform):
            logits = logits + slip * torch.arange(logits.shape[-1])
            if greedy:
                return Choice(*[logits.argmax(-1)] * 2, None)
            law = logits.softmax(-1)
            token = (law.cumsum(-1) > uniform).int().argmax(-1)
            return Choice(token, token, law)

        return choose

    loop = StaticLoop(made, 4, chosen(0))
    assert loop.departure(made) < 1e-6

    def of_another_model(passes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "_choose", chosen(1.0))
            return StaticLoop._run(loop, passes)

    loop._run = of_another_model
    assert loop.departure(made) > tolerance(torch.float32)


@torch.inference_mode()
def test_a_slot_that_is_read_by_mistake_holds_something(decoder):
    made = decoder()
    with random_slots(made.cache):
        keys = made.cache.layers[0].keys.clone()
        assert keys.ne(0).all()
        made.cache.length = 100
    with random_slots(made.cache):
        assert torch.equal(made.cache.layers[0].keys, keys), "the same at every start"


def test_a_pass_that_fails_is_made_more_simply_or_left_out(caplog):
    """No kernels of ours serve it, inductor fails: captured without. All differ: eager; each fault is said once."""

    class Graph:
        apart, serves = 0.0, False

        def fuse(self, decoder):
            return self.serves

        def optimise(self):
            raise RuntimeError("no triton\nlong story")

        def capture(self):
            self.captured = True

        def departure(self, plain):
            return self.apart

    decoder = SimpleNamespace(name="m", model=SimpleNamespace(dtype=torch.bfloat16))
    made = trusted(Graph, decoder, "a call on 5 tokens")
    assert made.captured and caplog.messages == [
        "m: a call on 5 tokens cannot be compiled for a CUDA graph, so it is captured without inductor: no triton"
    ]
    caplog.clear()
    Graph.serves = True
    assert trusted(Graph, decoder, "a call on 5 tokens").captured and not caplog.messages
    Graph.apart = 0.2
    assert trusted(Graph, decoder, "a call on 5 tokens") is None
    assert len(caplog.messages) == 3
    assert caplog.messages[0].endswith("so inductor compiles it: it departs from plain calls by 0.2, more than 0.1")
    assert caplog.messages[2].endswith("so it is eager: it departs from plain calls by 0.2, more than 0.1")


def test_what_is_not_finite_departs():
    plain = torch.tensor([[1.0, -4.0]])
    assert cuda_graphs.logit_departure(torch.tensor([[1.5, -4.0]]), plain) == pytest.approx(0.125)
    assert cuda_graphs.logit_departure(torch.tensor([[torch.nan, -4.0]]), plain) == torch.inf


def test_the_kernel_that_plans_for_every_length_is_left_out_on_a_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)
    pin_attention(torch.device("cpu"))
    assert asked == []
    pin_attention(torch.device("cuda"))
    assert asked == [False]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_masks_on_a_gpu_begin_where_its_kernels_can_read(dtype):
    """A GPU gets aligned lines, always with the same strides, where a CPU gets a view of any address."""
    windows = {"full_attention": None, "sliding_attention": 5}
    views, copies = (MaskBuffers(windows, dtype, torch.device("cpu")) for _ in range(2))
    assert not views.aligned and MaskBuffers(windows, dtype, torch.device("meta")).aligned is False
    copies.aligned = True
    trees = (chain_tree(0), chain_tree(4), Tree((-1, -1, 0, 2)), chain_tree(6), chain_tree(99))
    misaligned, strides = 0, {}
    for prefix in (0, 1, 7, 13, 64):
        for tree in trees:
            one, other = (masks.view(tree, prefix, 200) for masks in (views, copies))
            for kind in windows:
                assert torch.equal(one[kind], other[kind])
                assert other[kind].data_ptr() % 16 == 0 and other[kind].stride(2) % 8 == 0
                strides.setdefault(tree, set()).add(other[kind].stride(2))
                misaligned += one[kind].data_ptr() % 8 != 0 or one[kind].stride(2) % 8 != 0
    assert misaligned and all(len(each) == 1 for each in strides.values())


@torch.inference_mode()
def test_a_pass_gives_its_states_too(decoder):
    """States come of all tokens of a draft, and of no others where it is smaller than the graph."""
    made = decoder()
    made.keep_states((0, 1))
    compile_decoder(made, {}, 64, "trace")
    made.start(TEXT, 64)
    made.passes.steps[5] = StaticStep(made, 5)
    tokens = torch.tensor([4, 9, 1])
    made.forward(tokens, chain_tree(2))
    plain = made.model(input_ids=torch.tensor([[*TEXT[:-1], *tokens]]), output_hidden_states=True).hidden_states
    assert (made.states - torch.cat([plain[-1], plain[-2]], -1)[0, -3:]).abs().max() < 1e-12
    assert isinstance(made.passes.steps[5](tokens, 6, chain_tree(2)), Pass)


def begin(*parts, prompt=PROMPT, capacity=64):
    """Start a text in each of the parts, with a generator of its own."""
    for part in parts:
        part.start(TextStart(prompt, capacity, generator=generator_for(0, "p", "draft")))
    return parts


@pytest.fixture
def target_of(tiny_model, sampling):
    return lambda **how: Causal(tiny_model("llama"), sampling(**how))


@pytest.fixture
def looped(tiny_model, make_structure, on_a_gpu):
    """`looped(target)`: a drafter that drafts chains of GAMMA by its loop."""

    def make(target, name="llama", **how):
        drafter = SmallModel(tiny_model(name), target, **how)
        on_a_gpu(drafter, make_structure("chain", GAMMA))
        return drafter

    return make


def assert_same_draft(plain, loop, structure):
    one, other = (drafter.draft(structure) for drafter in (plain, loop))
    assert one.tokens.tolist() == other.tokens.tolist() and len(one) == structure.gamma
    assert plain._decoder.length == loop._decoder.length
    assert (one.q is None) == (other.q is None)
    if one.q is not None:
        torch.testing.assert_close(other.q, one.q, atol=1e-12, rtol=0)
    return one.tokens.tolist()


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Makes a drafter prepare as it does on a GPU, less the compilation and the captures; gives the loops made so."""

    @torch.inference_mode()
    def compile_without_capture(decoder, rows, capacity, mode, packages=None):
        compile_decoder(decoder, (), capacity, mode)
        for count in rows:
            decoder.passes.steps[count] = StaticStep(decoder, count)

    made: list[StaticLoop] = []
    monkeypatch.setattr(small_model, "compile_decoder", compile_without_capture)
    monkeypatch.setattr(StaticLoop, "optimise", lambda loop: None)
    monkeypatch.setattr(StaticLoop, "capture", lambda loop: made.append(loop))

    def prepare(drafter, structure, capacity=64):
        small = drafter.drafter if isinstance(drafter, Adaptive) else drafter
        device, small._device, small._compilation = small._device, torch.device("cuda"), "inductor"
        drafter.prepare(capacity, structure)
        small._device = device
        return made

    return prepare


@pytest.fixture
def count_loops(monkeypatch):
    """The gammas of all drafts that loops have made."""
    made: list[int] = []
    call = StaticLoop.__call__

    def counting(self, *arguments):
        made.append(self.gamma)
        return call(self, *arguments)

    monkeypatch.setattr(StaticLoop, "__call__", counting)
    return made


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "drafts", "how"),
    [*((("llama", "gemma3")[cut % 2], "sampled", how) for cut, how in enumerate(CUTS)), ("gemma3", "greedy", CUTS[1])],
    ids=str,
)
def test_the_drafts_are_those_of_single_calls(
    tiny_model, target_of, make_structure, looped, count_loops, name, drafts, how
):
    """After every number of accepted tokens, and between shorter and longer drafts, which take single calls."""
    target = target_of(**how)
    pair = begin(SmallModel(tiny_model(name), target, drafts=drafts), looped(target, name, drafts=drafts))
    count_loops.clear()  # that of the check against plain calls
    asked = [(3, 0), (3, 3), (3, 1), (2, 2), (3, 2), (5, 1), (3, 0)]  # gamma, accepted
    for gamma, accepted in asked:
        tokens = assert_same_draft(*pair, make_structure("chain", gamma))
        for drafter in pair:
            drafter.commit([*tokens[:accepted], (tokens[accepted] + 1) % 61 if accepted < gamma else 5])
    assert count_loops == [GAMMA] * sum(gamma == GAMMA for gamma, _ in asked)


@torch.inference_mode()
def test_a_draft_outlives_the_next(target_of, make_structure, looped):
    """A replay writes over what the graph gave before."""
    (drafter,) = begin(looped(target_of(temperature=1.0)))
    first = drafter.draft(make_structure("chain", GAMMA))
    given = drafter._loop._choice
    assert torch.equal(first.tokens, given.tokens) and torch.equal(first.q, given.q)
    for ours, static in ((first.tokens, given.tokens), (first.q, given.q), (drafter._drafted, given.read)):
        assert ours.data_ptr() != static.data_ptr()


class Replayed:
    """A CUDA graph as the host sees it: what was recorded runs again, into the tensors that it gave the first time."""

    def __init__(self, run):
        self._run, self.result = run, run()

    def __call__(self):
        for static, new in zip(self.result, self._run(), strict=True):
            static.copy_(new)
        return self.result


@pytest.mark.slow
@torch.inference_mode()
def test_a_recorded_loop_drafts_the_same(tiny_model, target_of, make_structure, on_a_gpu, monkeypatch):
    """Its passes on two rows and on one are traced apart: nothing checks afterwards which of them is called."""
    monkeypatch.setattr(cuda_graphs, "captured", Replayed)
    monkeypatch.setattr(cuda_graphs, "recorded", partial(traced.recorded, backend="eager"))
    target = target_of(temperature=1.0)
    pair = [SmallModel(tiny_model("llama"), target) for _ in range(2)]
    (loop,) = on_a_gpu(pair[1], make_structure("chain", GAMMA))
    OPTIMISE(loop)
    CAPTURE(loop)
    begin(*pair)
    for accepted in (0, 3, 1):
        tokens = assert_same_draft(*pair, make_structure("chain", GAMMA))
        for drafter in pair:
            drafter.commit([*tokens[:accepted], 5])


@torch.inference_mode()
@pytest.mark.parametrize("how", CUTS, ids=str)
def test_nothing_in_it_waits_for_the_device(target_of, make_structure, looped, how):
    (drafter,) = begin(looped(target_of(**how)))

    class Watching(TorchDispatchMode):
        seen: set[str] = set()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.add(function.overloadpacket.__name__)
            if function.overloadpacket.__name__.startswith("index") and isinstance(args[1], (list, tuple)):
                self.seen |= {"boolean index" for index in args[1] if index is not None and index.dtype == torch.bool}
            return function(*args, **(kwargs or {}))

    with Watching():
        draft = drafter.draft(make_structure("chain", GAMMA))
    assert "index_copy_" in Watching.seen and not WAITING & Watching.seen
    for look in (lambda: int(draft.tokens[0]), lambda: draft.tokens[draft.tokens > 0]):
        Watching.seen = set()
        with Watching():
            look()
        assert WAITING & Watching.seen, "it would have been noticed"


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_host_waits_once_in_a_round(target_of, make_structure, looped, monkeypatch, temperature):
    """Of all that a round reads off tensors, only the acceptance comes from the device; what a commit reads was copied
    to the host before that, and has arrived with it.
    """
    target = target_of(temperature=temperature)
    compile_decoder(target.decoder, (), 64, "trace")
    target.decoder.passes.steps[GAMMA + 1] = StaticStep(target.decoder, GAMMA + 1)
    verifier = verifiers.build({"name": "speculative_sampling"})
    _, drafter = begin(target, looped(target))
    seen = []
    for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda *given, name=name, read=read: seen.append(name) or read(*given))
    # On a CPU nothing is copied ahead, so that the logits are checked at once.
    monkeypatch.setattr(Causal, "_check_finite", lambda self: None)
    draft = drafter.draft(make_structure("chain", GAMMA))
    p = target.verify(draft)
    assert seen == []
    decided = verifier.accept(draft, p, generator_for(0, "p", "accept"))
    assert len(seen) == 1
    target.commit(decided.path, decided.next_token)
    assert len(seen) == 1


@torch.inference_mode()
def test_only_what_it_fits_is_its_business(target_of, make_structure, looped, count_loops):
    """A prompt of one token, a text too long for the cache, and a threshold, which is read after every token."""
    drafter, chain = looped(target_of(temperature=1.0)), make_structure("chain", GAMMA)
    count_loops.clear()  # that of the check against plain calls
    for prompt, capacity, asked in (([7], 64, chain), (PROMPT, 600, chain), (PROMPT, 64, chain.until(0.5))):
        begin(drafter, prompt=prompt, capacity=capacity)
        drafter.draft(asked)
        assert not count_loops
    begin(drafter)
    drafter.draft(chain)
    assert count_loops == [GAMMA]


@pytest.mark.parametrize(("temperature", "vocabulary"), [(0.0, 61), (1.0, 50)])
def test_a_generation_is_the_same_with_it(tiny_llama, target_of, make_structure, on_a_gpu, temperature, vocabulary):
    """Ends of texts, which are clamped, two texts in one cache, and a model whose output matrix is narrower."""
    target, chain, model = target_of(temperature=temperature), make_structure("chain", GAMMA), tiny_llama(vocabulary)
    pair = [SmallModel(model, target) for _ in range(2)]
    on_a_gpu(pair[1], chain)
    for prompt in (PROMPT, PROMPT[::-1]):
        one, other = (
            decode(target, drafter, chain, prompt, 14, "speculative_sampling", **seeded()).rounds for drafter in pair
        )
        for ours, theirs in zip(one, other, strict=True):
            assert (ours.draft_tokens, ours.committed) == (theirs.draft_tokens, theirs.committed)
            assert ours.beta == pytest.approx(theirs.beta, abs=1e-9)


def test_it_is_made_for_the_primary_chain(tiny_model, target_of, make_structure, on_a_gpu):
    drafter, chain = SmallModel(tiny_model("llama"), target_of(temperature=1.0)), make_structure("chain", GAMMA)
    drafter.prepare(64, chain)
    assert drafter._loop is None, "nothing is compiled on a CPU that was not asked to"
    (made,) = on_a_gpu(drafter, chain)
    assert made.gamma == GAMMA and made.cache.capacity == 512
    # The confidence rule looks after every token; the heuristic asks for whole drafts now and then.
    assert len(on_a_gpu(Adaptive(drafter, "confidence", 0.3), chain)) == 1
    assert len(on_a_gpu(Adaptive(drafter, "heuristic"), chain)) == 2

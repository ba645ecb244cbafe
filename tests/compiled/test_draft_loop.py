"""The loop that a CUDA graph holds, without its graph: it drafts what single calls draft, and looks at nothing."""

from functools import partial

import pytest
import torch
from fixtures.decoding import decode, seeded
from torch.utils._python_dispatch import TorchDispatchMode

from specdec.compiled import cuda_graphs, traced
from specdec.compiled.cuda_graphs import StaticStep
from specdec.compiled.draft_loop import StaticLoop
from specdec.compiled.passes import compile_decoder
from specdec.drafters import small_model
from specdec.drafters.adaptive import Adaptive
from specdec.drafters.small_model import SmallModel
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.verifiers.base.contract import verifiers

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

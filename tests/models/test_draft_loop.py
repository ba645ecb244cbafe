"""The loop that a CUDA graph holds, without its graph: it drafts what single calls draft, and looks at nothing."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec.clock import CpuClock
from specdec.decode import generate
from specdec.drafters.adaptive import Adaptive
from specdec.drafters.small_model import SmallModel
from specdec.models import compile as compilation
from specdec.models import draft_loop
from specdec.models.compile import StaticStep
from specdec.models.decoder import Decoder
from specdec.models.draft_loop import StaticLoop
from specdec.records import Request, TextStart
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.verifiers.base.contract import verifiers

PROMPT = [7, 3, 19, 44, 3, 19, 52, 7]
GAMMA = 3
CUTS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.7},
]
OPTIMISE, CAPTURE = StaticLoop.optimise, StaticLoop.capture
# What the host can learn from a tensor only by waiting for the device.
WAITING = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "is_nonzero",
    "equal",
    "masked_select",
    "_unique2",
    "boolean index",
}


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Makes a drafter prepare as it does on a GPU, less the compilation and the captures; gives the loops made so."""

    compile_nothing_for = Decoder.compile

    @torch.inference_mode()
    def compile_without_capture(decoder, rows, capacity, mode):
        compile_nothing_for(decoder, (), capacity, mode)
        for count in rows:
            decoder._steps[count] = StaticStep(decoder.model, decoder.cache, count, decoder._windows)

    made: list[StaticLoop] = []
    monkeypatch.setattr(Decoder, "compile", compile_without_capture)
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
@pytest.mark.parametrize("how", CUTS, ids=str)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_drafts_are_those_of_single_calls(
    tiny_model, sampling, make_structure, on_a_gpu, count_loops, name, drafts, how
):
    """After every number of accepted tokens, and between shorter and longer drafts, which take single calls."""
    target = Causal(tiny_model("llama"), sampling(**how))
    plain, looped = (SmallModel(tiny_model(name), target, drafts=drafts) for _ in range(2))
    on_a_gpu(looped, make_structure("chain", GAMMA))
    count_loops.clear()  # that of the check against plain calls
    for drafter in (plain, looped):
        drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    asked = [(3, 0), (3, 3), (3, 1), (3, 2), (2, 2), (3, 3), (5, 1), (3, 0), (1, 0), (3, 1)]  # gamma, accepted
    for gamma, accepted in asked:
        one, other = (drafter.draft(make_structure("chain", gamma)) for drafter in (plain, looped))
        assert one.tokens.tolist() == other.tokens.tolist() and len(one) == gamma
        assert plain._decoder.length == looped._decoder.length
        if one.q is None:
            assert other.q is None
        else:
            torch.testing.assert_close(other.q, one.q, atol=1e-12, rtol=0)
        tokens = one.tokens.tolist()
        for drafter in (plain, looped):
            drafter.commit([*tokens[:accepted], (tokens[accepted] + 1) % 61 if accepted < gamma else 5])
    assert count_loops == [GAMMA] * sum(gamma == GAMMA for gamma, _ in asked)


@torch.inference_mode()
def test_a_draft_outlives_the_next(tiny_model, sampling, make_structure, on_a_gpu):
    """A replay writes over what the graph gave before."""
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    drafter = SmallModel(tiny_model("llama"), target)
    on_a_gpu(drafter, make_structure("chain", GAMMA))
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    first = drafter.draft(make_structure("chain", GAMMA))
    given = drafter._loop._choice
    assert torch.equal(first.tokens, given.tokens) and torch.equal(first.q, given.q)
    for ours, static in ((first.tokens, given.tokens), (first.q, given.q), (drafter._drafted, given.read)):
        assert ours.data_ptr() != static.data_ptr()


class Replayed:
    """A CUDA graph as the host sees it: what was recorded runs again, into the tensors that it gave the first time."""

    def __init__(self, run):
        self._run, self.result = run, run()

    def replay(self):
        for static, new in zip(self.result, self._run(), strict=True):
            static.copy_(new)
        return self.result


@pytest.mark.slow
@torch.inference_mode()
def test_a_recorded_loop_drafts_the_same(tiny_model, sampling, make_structure, on_a_gpu, monkeypatch):
    """Its passes on two rows and on one are traced apart: nothing checks afterwards which of them is called."""

    def traced(function):
        return torch.compile(
            compilation._with_own_code(function),
            fullgraph=True,
            backend="eager",
            options={"guard_filter_fn": compilation._shapes_only},
        )

    monkeypatch.setattr(draft_loop, "captured", Replayed)
    monkeypatch.setattr(draft_loop, "compiled", traced)
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    plain, looped = (SmallModel(tiny_model("llama"), target) for _ in range(2))
    (loop,) = on_a_gpu(looped, make_structure("chain", GAMMA))
    OPTIMISE(loop)
    CAPTURE(loop)
    for drafter in (plain, looped):
        drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    for accepted in (0, 3, 1):
        one, other = (drafter.draft(make_structure("chain", GAMMA)) for drafter in (plain, looped))
        assert one.tokens.tolist() == other.tokens.tolist()
        torch.testing.assert_close(other.q, one.q, atol=1e-12, rtol=0)
        for drafter in (plain, looped):
            drafter.commit([*one.tokens.tolist()[:accepted], 5])


@torch.inference_mode()
@pytest.mark.parametrize("how", CUTS, ids=str)
def test_nothing_in_it_waits_for_the_device(tiny_model, sampling, make_structure, on_a_gpu, how):
    target = Causal(tiny_model("llama"), sampling(**how))
    drafter = SmallModel(tiny_model("llama"), target)
    on_a_gpu(drafter, make_structure("chain", GAMMA))
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))

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


def watched(seen, name, read):
    """`read`, a method of tensors, which adds its name to `seen` at every call."""
    return lambda tensor, *given: seen.append(name) or read(tensor, *given)


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_host_waits_once_in_a_round(tiny_model, sampling, make_structure, on_a_gpu, monkeypatch, temperature):
    """Of all that a round reads off tensors, only the acceptance comes from the device; what a commit reads was copied
    to the host before that, and has arrived with it.
    """
    target = Causal(tiny_model("llama"), sampling(temperature=temperature))
    target.decoder.compile((), 64, "trace")
    target.decoder._steps[GAMMA + 1] = StaticStep(target.model, target.decoder.cache, GAMMA + 1, target.decoder.windows)
    drafter = SmallModel(tiny_model("llama"), target)
    on_a_gpu(drafter, make_structure("chain", GAMMA))
    verifier = verifiers.build({"name": "speculative_sampling"})
    for part in (target, drafter):
        part.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    seen = []
    for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, watched(seen, name, getattr(torch.Tensor, name)))
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
def test_only_what_it_fits_is_its_business(tiny_model, sampling, make_structure, on_a_gpu, count_loops):
    """A prompt of one token, a text too long for the cache, and a threshold, which is read after every token."""
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    drafter, chain = SmallModel(tiny_model("llama"), target), make_structure("chain", GAMMA)
    on_a_gpu(drafter, chain)
    count_loops.clear()  # that of the check against plain calls
    drafter.start(TextStart([7], 64, generator=generator_for(0, "p", "draft")))
    drafter.draft(chain)
    drafter.start(TextStart(PROMPT, 600, generator=generator_for(0, "p", "draft")))
    drafter.draft(chain)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    drafter.draft(chain.until(0.5))
    assert not count_loops
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    drafter.draft(chain)
    assert count_loops == [GAMMA]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_generation_is_the_same_with_it(tiny_model, tiny_llama, sampling, make_structure, on_a_gpu, temperature):
    """Ends of texts, which are clamped, two texts in one cache, and a model whose output matrix is narrower."""
    target = Causal(tiny_model("llama"), sampling(temperature=temperature))
    for model in (tiny_model("llama"), tiny_llama(50)):
        plain, looped = (SmallModel(model, target) for _ in range(2))
        on_a_gpu(looped, make_structure("chain", GAMMA))
        for prompt in (PROMPT, PROMPT[::-1]):
            generations = [
                generate(
                    target=target,
                    drafter=drafter,
                    verifier=verifiers.build({"name": "speculative_sampling"}),
                    structure=make_structure("chain", GAMMA),
                    request=Request(
                        prompt,
                        14,
                        draft_generator=generator_for(0, "p", "draft"),
                        accept_generator=generator_for(0, "p", "accept"),
                    ),
                    clock=CpuClock(),
                )
                for drafter in (plain, looped)
            ]
            one, other = ([(row.draft_tokens, row.committed) for row in each.rounds] for each in generations)
            assert one == other
            one, other = ([beta for row in each.rounds for beta in row.beta] for each in generations)
            assert one == pytest.approx(other, abs=1e-9)


def test_it_is_made_for_the_primary_chain(tiny_model, sampling, make_structure, on_a_gpu):
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    drafter, chain = SmallModel(tiny_model("llama"), target), make_structure("chain", GAMMA)
    drafter.prepare(64, chain)
    assert drafter._loop is None, "nothing is compiled on a CPU that was not asked to"
    (made,) = on_a_gpu(drafter, chain)
    assert made.gamma == GAMMA and made.cache.capacity == 512
    # The confidence rule looks after every token; the heuristic asks for whole drafts now and then.
    assert len(on_a_gpu(Adaptive(drafter, "confidence", 0.3), chain)) == 1
    assert len(on_a_gpu(Adaptive(drafter, "heuristic"), chain)) == 2

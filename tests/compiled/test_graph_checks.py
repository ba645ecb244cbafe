"""What a GPU's passes are held to before they are trusted, tried on passes that are not captured."""

from types import SimpleNamespace

import pytest
import torch

from specdec.compiled import cuda_graphs
from specdec.compiled.cuda_graphs import StaticStep
from specdec.compiled.draft_loop import Choice, StaticLoop
from specdec.compiled.graph_checks import departure, loop_departure, random_slots, step_departure, tolerance, trusted
from specdec.compiled.passes import compile_decoder
from specdec.models import forward_pass
from specdec.models.attention import pin_attention
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass
from specdec.models.masks import MaskBuffers
from specdec.records import Tree, chain_tree

TEXT = [5, 9, 33, 2, 60, 17, 9]


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
    assert step_departure(StaticStep(made, size), made) < 1e-6
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
    assert step_departure(step, made) > tolerance(torch.float32)


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
    assert loop_departure(loop, made) < 1e-6

    def of_another_model(passes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "_choose", chosen(1.0))
            return StaticLoop._run(loop, passes)

    loop._run = of_another_model
    assert loop_departure(loop, made) > tolerance(torch.float32)


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
    """Inductor fails: captured without it. Both differ: eager, and each fault is said once."""

    class Graph:
        def optimise(self):
            raise RuntimeError("no triton\nlong story")

        def capture(self):
            self.captured = True

    decoder = SimpleNamespace(name="m", model=SimpleNamespace(dtype=torch.bfloat16))
    made = trusted(Graph, lambda graph, plain: 0.0, decoder, "a call on 5 tokens")
    assert made.captured and caplog.messages == [
        "m: a call on 5 tokens cannot be compiled for a CUDA graph, so it is captured without inductor: no triton"
    ]
    caplog.clear()
    assert trusted(Graph, lambda graph, plain: 0.2, decoder, "a call on 5 tokens") is None
    assert len(caplog.messages) == 2
    assert caplog.messages[1].endswith("so it is eager: it departs from plain calls by 0.2, more than 0.1")


def test_what_is_not_finite_departs():
    plain = torch.tensor([[1.0, -4.0]])
    assert departure(torch.tensor([[1.5, -4.0]]), plain) == pytest.approx(0.125)
    assert departure(torch.tensor([[torch.nan, -4.0]]), plain) == torch.inf


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
    """What a CPU gets as a view of any address comes as lines that are aligned, always with the same strides."""
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
    """Of a draft that is smaller than the graph, too."""
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

"""Compiled passes against the eager one, on tiny models; the CUDA graph's step without its graph."""

import os
import signal

import pytest
import torch

from specdec import progress
from specdec.compiled import cuda_graphs, passes
from specdec.compiled.cuda_graphs import StaticStep, slot_buckets
from specdec.compiled.passes import compile_decoder, mode_for
from specdec.compiled.traced import TracedStep
from specdec.errors import Interrupted, UsageError
from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree
from specdec.signals import interruptible

TEXT = [5, 9, 33, 2, 60, 17, 9, 33, 41, 8, 5, 22, 7]
EXACT = 1e-12


@torch.inference_mode()
def walk(decoder: Decoder, capacity: int = 64) -> torch.Tensor:
    """Logits of calls on 1, 3 and 2 rows behind a prefill, with rows taken back in between."""
    decoder.start(TEXT, capacity)
    calls = [([TEXT[-1]], 0), ([4, 9, 1], 2), ([30], 0), ([11, 12], 1), ([6, 2, 3], 3), ([8], 0)]
    logits = []
    for tokens, taken_back in calls:
        logits.append(decoder.forward(torch.tensor(tokens), chain_tree(len(tokens) - 1)).clone())
        decoder.length -= taken_back
    return torch.cat(logits)


@pytest.fixture
def eager_and_static(tiny_model, monkeypatch):
    """Makes an eager decoder, and one as `compile` does on a GPU, less the capture: graphs for these sizes, which
    attend to buckets from 16 slots on.
    """
    monkeypatch.setattr(cuda_graphs, "_LEAST_SLOTS", 16)

    @torch.inference_mode()
    def make(name, *sizes):
        eager, static = (Decoder(tiny_model(name), name, 512) for _ in range(2))
        compile_decoder(static, {}, 64, "trace")
        for size in sizes:
            static.passes.steps[size] = StaticStep(static, size)
        return eager, static

    return make


@pytest.fixture
def eager_and_traced(tiny_model):
    """Makes an eager decoder, and one whose passes are traced for these sizes."""

    def make(name, sizes, **options):
        eager, traced = (Decoder(tiny_model(name), name, 512) for _ in range(2))
        compile_decoder(traced, sizes, 64, "trace", **options)
        return eager, traced

    return make


def recordings():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_what_is_left_of_the_passes_reckons_with_the_first_one_that_takes_longer(tiny_model, monkeypatch):
    """The pass for any number of tokens, which comes first, takes 24 s, and the one for a single token 10 s."""
    time, left = [0.0], []
    monkeypatch.setattr(progress, "now", lambda: time[0])

    def trace(_, count):
        left.append(progress._open[-1].left)
        time[0] += 10 if count else 24

    monkeypatch.setattr(passes.CompiledPasses, "trace", trace)
    model = tiny_model("llama")
    compile_decoder(Decoder(model, "tiny", 512), (1, 4), 64, "trace")
    assert left == [pytest.approx(0.3 * 3.5 * model.config.num_hidden_layers), pytest.approx(10, rel=0.2)]


@pytest.mark.parametrize("name", ["llama", "mistral_window", "gemma3"])
def test_static_shapes_give_the_logits_of_growing_ones(eager_and_static, name):
    eager, static = eager_and_static(name, 1, 3)
    assert (walk(eager) - walk(static)).abs().max() < EXACT
    assert static.cache.capacity == 512 and static.length == eager.length


WIDE = Tree((-1, -1, 0, 2))  # as many nodes as the graph has room for; smaller ones are filled up
TREES = [WIDE, chain_tree(4), Tree((-1, -1)), Tree((-1, 0, 0, 1)), chain_tree(1), WIDE]


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "mistral_window", "gemma3", "opt"])
def test_one_graph_serves_every_draft_of_its_size_or_smaller(eager_and_static, monkeypatch, name):
    """Between one topology and another, in two buckets, with a draft that is committed in between."""
    eager, static = eager_and_static(name, 5)
    used, call = [], StaticStep.__call__
    monkeypatch.setattr(StaticStep, "__call__", lambda step, *given: used.append(given[1]) or call(step, *given))
    for decoder in (eager, static):
        decoder.start(TEXT[:7], 64)
    for number, tree in enumerate(TREES):
        tokens = torch.arange(len(tree) + 1) * 11 % 61
        one, other = (decoder.forward(tokens, tree).clone() for decoder in (eager, static))
        assert (one - other).abs().max() < EXACT and eager.length == static.length
        for decoder in (eager, static):
            prefix = decoder.length - len(tree)
            decoder.cache.commit(prefix, [prefix + 1] if number == 0 else [])
    assert used == [6, 8, 9, 10, 11, 12], "five slots more than the last of these no longer fit in the first bucket"


@torch.inference_mode()
def test_what_has_no_room_in_a_graph_is_eager(eager_and_static):
    """Slots behind the last one do not exist, and a graph would write into them."""
    eager, static = eager_and_static("llama", 5)
    step = static.passes.steps[5]
    assert step.fits(2, 507) and not step.fits(2, 508) and not step.fits(6, 10)
    for decoder in (eager, static):
        decoder.start(TEXT, 512)
        decoder.length = 509  # free slots hold zeros
    tokens = torch.tensor([5, 9])
    assert (eager.forward(tokens, chain_tree(1)) - static.forward(tokens, chain_tree(1))).abs().max() < EXACT


def test_a_graph_attends_to_no_more_slots_than_its_text_needs():
    assert slot_buckets(512) == [512] and slot_buckets(1024) == [1024]
    assert slot_buckets(1536) == [1024, 1536] and slot_buckets(4096) == [1024, 2048, 4096]


@pytest.fixture
def two_decoders(eager_and_traced, monkeypatch):
    """An eager decoder, and one whose traced passes run as they were written, so that making them takes no time. They
    still write into the cache, and return the layers, that they were made for.
    """
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    return eager_and_traced("llama", {1, 3}, copies=3)


def test_passes_serve_no_other_cache(two_decoders):
    eager, traced = two_decoders
    buffers = traced.cache
    for capacity in (64, 600, 64):
        assert (walk(eager, capacity) - walk(traced, capacity)).abs().max() < EXACT
        assert (traced.cache is buffers) == (capacity == 64)


@torch.inference_mode()
def test_trees_and_batches_are_placed_as_in_a_plain_pass(two_decoders):
    """One is a tree in one sequence; the other has more paths than the compiled cache has copies."""
    traced = two_decoders[1]
    buffers = traced.cache
    for nodes, copies in (((-1, -1, 0, 2), 1), ((-1, -1, -1, -1), 3)):
        tree, tokens, found = Tree(nodes), torch.tensor([1, 2, 3, 4, 5]), []
        for decoder in two_decoders:
            decoder.start(TEXT, 64, copies)
            found.append((decoder.forward if copies == 1 else decoder.forward_paths)(tokens, tree))
            decoder.length = len(TEXT)
            found.append(decoder.forward(torch.tensor([7, 8, 9]), chain_tree(2)))
        # A compiled pass writes into buffers of its own: a larger batch leaves them alone, the next text finds them.
        assert (traced.cache is buffers) == (copies == 1) and buffers.allocated == 3
        traced.start(TEXT, 64, 3)
        assert traced.cache is buffers
        traced.start(TEXT, 64, 4)
        assert traced.cache is not buffers, "copies that it has no room for are decoded in a cache of their own"
        assert all((one - other).abs().max() < EXACT for one, other in zip(found[:2], found[2:], strict=True))


@torch.inference_mode()
def test_passes_of_other_layers_are_not_used(two_decoders):
    """Layers that are asked for after the passes were made, against transformers' own hidden states."""
    for decoder in two_decoders:
        decoder.keep_states((1,))
        decoder.start(TEXT, 64)
        decoder.forward(torch.tensor([TEXT[-1], 4, 9]), chain_tree(2))
        plain = decoder.model(input_ids=torch.tensor([[*TEXT, 4, 9]]), output_hidden_states=True).hidden_states[-2]
        assert (decoder.states - plain[0, -3:]).abs().max() < EXACT


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("architecture", ["gemma4", "llama4"])
def test_one_record_serves_every_number_of_rows(eager_and_traced, architecture, monkeypatch):
    """Chains and trees in turn, beyond the number that it was made for, and beyond the size of a mask's buffer, behind
    several prefixes; bit for bit the eager pass. Layers with windows that share keys, and with chunks and experts; OPT,
    with learned positions and biases, is traced in `test_weight_reads.py` and `test_packed_products.py`.
    """
    eager, traced = eager_and_traced(architecture, {5})
    assert traced.passes.sizes == (0, 1)
    used, call, graphs = [], TracedStep.__call__, recordings()
    monkeypatch.setattr(TracedStep, "__call__", lambda *given: used.append(len(given[1])) or call(*given))
    wide = Tree((-1, -1, 0, 1))
    chains = [chain_tree(rows - 1) for rows in (2, 3, 17, 1, 70, 4)]
    trees = [chain_tree(4), wide, chain_tree(4), Tree((-1, 0, 0, 2)), *chains, wide, Tree((-1, -1))]
    for text in (TEXT, TEXT[:7]):
        for decoder in (eager, traced):
            decoder.start(text, 120)
        for tree in trees:
            tokens = torch.arange(len(tree) + 1) % 61
            assert torch.equal(eager.forward(tokens, tree), traced.forward(tokens, tree))
            eager.length = traced.length = len(text)
    assert used == 2 * [len(tree) + 1 for tree in trees]
    assert recordings() == graphs, "nothing is recorded twice"


@pytest.mark.slow
@torch.inference_mode()
def test_one_record_serves_every_batch(eager_and_traced):
    """Of as many rows as copies or fewer, wide or narrow; bit for bit the eager pass."""
    eager, traced = eager_and_traced("gemma2", {1}, copies=4)
    assert traced.passes.sizes == (-1, 0, 1)
    trees = [(-1, -1), (-1, -1, 0, 0, 1), (-1, -1, -1), (-1, 0, 1, 2, 3, -1, 5), (-1, -1, -1, 0, -1), (-1, 0, 0, 1)]
    graphs = recordings()
    for copies in (4, 3, 2):
        for decoder in (eager, traced):
            decoder.start(TEXT, 120, copies)
        for tree in map(Tree, trees):
            if len(tree.leaves) <= copies:
                tokens = torch.arange(len(tree) + 1) + 3
                assert torch.equal(*(decoder.forward_paths(tokens, tree) for decoder in (eager, traced)))
                eager.length = traced.length = len(TEXT)
        assert traced.cache is traced.passes.cache
    assert recordings() == graphs, "nothing is recorded twice"


def test_without_a_compiler_true_is_refused_and_auto_goes_on(caplog):
    from torch._inductor import config

    cpu = torch.device("cpu")
    assert mode_for(True, cpu) == "inductor"
    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert mode_for(False, cpu) is None and mode_for("trace", cpu) == "trace"
        assert mode_for(True, torch.device("cuda")) == "inductor"
        with pytest.raises(UsageError, match=r"target\.compile=true: .*g\+\+.*target\.compile=auto") as refused:
            mode_for(True, cpu)
        assert refused.value.exit_code == 2
        assert mode_for("auto", cpu) == "trace"
    assert "traced, not compiled" in caplog.text


@pytest.mark.slow
def test_a_model_that_decides_by_its_numbers_stays_eager_and_says_so(tiny_llama, monkeypatch, caplog):
    """As models do that change their rotary frequencies beyond a length: one graph cannot hold both ways."""
    model = tiny_llama(61, layers=1)
    norm = model.model.norm.forward
    monkeypatch.setattr(model.model.norm, "forward", lambda x: norm(x) if float(x.sum()) < 1e9 else x)
    decoder = Decoder(model, "two-faced", 512)
    compile_decoder(decoder, {1}, 64, "trace")
    assert decoder.passes is None and "two-faced cannot be traced" in caplog.text
    assert (walk(Decoder(model, "eager", 512)) - walk(decoder)).abs().max() < EXACT


def test_a_signal_that_arrives_while_a_model_is_traced_ends_the_command(tiny_model, monkeypatch, caplog):
    """torch adds its stack to the error and raises one of its own, seen with a SIGINT during a real trace."""
    decoder = Decoder(tiny_model("llama"), "interrupted", 512)

    def traced(*_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Interrupted as error:
            error.args = (f"{error.args[0]}\n\nfrom user code:\n  File ...",)
            raise torch._dynamo.exc.InternalTorchDynamoError(str(error)) from error

    monkeypatch.setattr(passes.CompiledPasses, "trace", traced)
    with pytest.raises(Interrupted) as ended, interruptible():
        compile_decoder(decoder, {1, 3}, 64, "trace")
    assert str(ended.value) == "Stopped by SIGINT; what was finished is on disk." and ended.value.exit_code == 130
    assert "cannot be traced" not in caplog.text

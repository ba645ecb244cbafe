"""Passes compiled into packages for a CPU: their numbers, their folder, what happens where they cannot be had, and how
torch calls the compiler.
"""

import linecache
import shutil
import threading
from copy import deepcopy

import pytest
import torch
from fixtures.loaded_models import random_model
from torch._inductor import codecache
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.exc import CppCompileError
from torch.nn.functional import linear

from specdec.certification.tiny_models import SIZES
from specdec.compiled import layers, packaged, passes
from specdec.compiled.call_sequence import PackagedStep
from specdec.compiled.packaged import compiled, two_at_a_time
from specdec.compiled.packages import PackageFolder
from specdec.compiled.passes import auto_mode, compile_decoder, compiled_product
from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree

TEXT = [5, 9, 33, 2, 60, 17, 9, 33, 41, 8, 5, 22, 7]
ORDER = 1e-4  # of float32 sums in another order, over the largest logit


def llama(layers, seed):
    """A Llama in float32, with two heads to each pair of keys and values."""
    values = SIZES | dict(vocab_size=64, num_hidden_layers=layers, num_key_value_heads=2, max_position_embeddings=600)
    return random_model("LlamaConfig", values, seed, matrices=1.0, vectors=1.0).float()


@pytest.fixture(scope="module")
def model():
    return llama(1, 3)


@pytest.fixture
def deeper():
    return llama(3, 4)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A folder with the packages of the model."""
    path = tmp_path_factory.mktemp("packages") / "models" / "compiled"
    decoder = opened(model, path)
    assert decoder.passes.sizes == (0, 1)
    assert {choice["pass"] for choice in decoder.choices.values()} == {"inductor"}
    return path


@pytest.fixture
def compiling_nothing(monkeypatch):
    """Makes every compilation an error; what is traced in its place runs as it was written, which takes no time."""

    def refuse(*given):
        raise RuntimeError("it is not compiled again")

    monkeypatch.setattr(packaged, "compiled", refuse)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


def opened(model, folder, **limit):
    decoder = Decoder(model, "tiny", 512)
    compile_decoder(decoder, {1, 3}, 64, "inductor", packages=PackageFolder(folder, **limit))
    return decoder


def traced(decoder):
    return decoder.passes.sizes == (0, 1) and {choice["pass"] for choice in decoder.choices.values()} == {"trace"}


@torch.inference_mode()
def walk(decoder, text, capacity=64):
    """Logits of chains and trees of several sizes behind a growing prefix, with tokens taken back in between."""
    decoder.start(text, capacity)
    logits = []
    for nodes, kept in (((), 1), ((0, 1), 2), ((-1, -1, 0, 2), 1), ((0,), 2), ((), 1), ((-1, 0, -1, 1, 1, 2), 3)):
        tree = Tree((-1, *nodes)) if nodes else chain_tree(0)
        before = decoder.length
        logits.append(decoder.forward(torch.arange(len(tree) + 1) * 5 % 61, tree).clone())
        decoder.length = before + min(kept, 1)
    return torch.cat(logits)


@pytest.mark.slow
@torch.inference_mode()
def test_a_second_decoder_reads_the_packages_and_gives_the_numbers_of_plain_modules(
    model, folder, compiling_nothing, monkeypatch
):
    monkeypatch.setattr(packaged, "cut", None)  # its calls are known
    plain, ours = Decoder(deepcopy(model), "tiny", 512), opened(model, folder)
    assert ours.passes.sizes == (0, 1) and "inductor" in str(ours.choices)
    suffixes = sorted(file.suffix for file in folder.iterdir())
    assert suffixes == [*[".json"] * 2, *[".so"] * 4], "head, layer, tail and the walk through them"
    for text in (TEXT, TEXT[:5], TEXT * 3):
        expected = walk(plain, text)
        assert (walk(ours, text) - expected).abs().max() < ORDER * expected.abs().max()
        assert ours.cache is ours.passes.cache
    assert torch.equal(walk(plain, TEXT, 600), walk(ours, TEXT, 600)), "a long text is decoded by the plain modules"
    ours.start(TEXT, 64)
    first = ours.forward(torch.tensor([7]), chain_tree(0))
    kept = first.clone()
    ours.forward(torch.tensor([8]), chain_tree(0))
    assert torch.equal(first, kept), "results stay when the next call is made"
    memory = first.untyped_storage()._weak_ref()
    del first
    assert torch.UntypedStorage._expired(memory), "what nobody holds any more is freed"
    torch.UntypedStorage._free_weak_ref(memory)
    ours.length = ours.cache.capacity
    with pytest.raises(IndexError, match="the cache has 512 slots, 513 were written"):
        ours.forward(torch.tensor([9]), chain_tree(0))


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("kept", [(), (1, 0)])
def test_packages_serve_deeper_models_of_other_weights(deeper, folder, compiling_nothing, kept, monkeypatch):
    """All calls, the prefill too, in one piece of memory with other weights than those that were compiled with."""
    plain = Decoder(deepcopy(deeper), "plain", 512)
    ours = Decoder(deeper, "deeper", 4)  # a prefill in chunks
    if kept == (1, 0):
        monkeypatch.undo()  # the states that the output head reads are made by a program of their own
    for decoder in (plain, ours):
        decoder.keep_states(kept)
    compile_decoder(ours, {1, 3}, 64, "inductor", packages=PackageFolder(folder))
    monkeypatch.setattr(ours, "plain", None)
    taken, take = [], PackagedStep.take
    monkeypatch.setattr(PackagedStep, "take", lambda step, name: taken.append(name) or take(step, name))
    for text in (TEXT, TEXT[:2]):
        expected = walk(plain, text)
        assert (walk(ours, text) - expected).abs().max() < ORDER * expected.abs().max()
        if kept:
            assert (plain.states - ours.states).abs().max() < ORDER * plain.states.abs().max()
        taken.clear()
        for decoder in (plain, ours):
            decoder.start(text, 64)
        assert "logits" not in taken, "a prefill makes none"
        if kept:
            assert (plain.states - ours.states).abs().max() < ORDER * plain.states.abs().max()
    places = sorted(weight.data_ptr() for weight in deeper.parameters())
    assert places[-1] - places[0] < sum(weight.nbytes + 64 for weight in deeper.parameters())


@pytest.mark.slow
def test_a_short_context_is_compared_as_far_as_it_reaches(model, folder, compiling_nothing):
    short = deepcopy(model)
    short.config.max_position_embeddings = 48
    for _ in range(2):  # the second time by calls that are known
        assert {choice["pass"] for choice in opened(short, folder).choices.values()} == {"inductor"}


@pytest.mark.slow
def test_a_pass_that_differs_is_said_and_traced(model, folder, tmp_path, compiling_nothing, monkeypatch, caplog):
    """Writing into buffers that are not the cache's, in a pass that is known; and logits that are wrong in calls on
    nine tokens, in one that is cut anew.
    """
    folder = shutil.copytree(folder, tmp_path / "packages")
    call, with_tensors = PackagedStep.__call__, packaged.with_tensors

    def wrong(step, tokens, *given):
        result = call(step, tokens, *given)
        return result._replace(logits=result.logits * (1.01 if len(tokens) == 9 else 1.0))

    def apart(model, cache, inputs):
        return with_tensors(model, deepcopy(cache), inputs)

    plain = walk(Decoder(model, "tiny", 512), TEXT)
    for place, name, fault in ((packaged, "with_tensors", apart), (PackagedStep, "__call__", wrong)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fault)
            ours = opened(model, folder)
        assert traced(ours) and caplog.text.count("tiny: what was compiled differs from the plain modules by") == 1
        assert (walk(ours, TEXT) - plain).abs().max() < ORDER * plain.abs().max()
        caplog.clear()
        for note in folder.glob("*.json"):
            note.unlink()  # the programs stay


@pytest.mark.slow
def test_what_cannot_be_compiled_or_takes_too_long_is_said_and_traced(model, tmp_path, compiling_nothing, caplog):
    assert traced(opened(model, tmp_path))
    assert "tiny: compilation failed, so calls are traced instead: it is not compiled again" in caplog.text
    assert not list(tmp_path.iterdir())
    assert traced(opened(model, tmp_path, seconds=38))
    assert "tiny: compiling takes about 39 s, once, so calls are traced instead; target.compile=true" in caplog.text


def test_auto_compiles_what_is_short_beside_the_decoding(model, tmp_path):
    """39 seconds, beside calls that take half a millisecond."""
    ours, packages = Decoder(model, "tiny", 512), PackageFolder(tmp_path / "none")
    assert auto_mode(ours, packages, 320_000) == ("inductor", "")
    assert auto_mode(ours, packages, 300_000)[0] == "trace"
    mode, why = auto_mode(ours, packages, 320_000, 90.0)
    assert mode == "trace" and "takes about 39 s, once, beside some 90 s of decoding (target.compile=true" in why
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_what_is_compiled_already_takes_no_time(model, deeper, folder, compiling_nothing):
    for each in (model, deeper):
        assert auto_mode(Decoder(each, "tiny", 512), PackageFolder(folder), 1) == ("inductor", "")
    assert {choice["pass"] for choice in opened(model, folder, seconds=0).choices.values()} == {"inductor"}


@pytest.mark.slow
def test_a_drafters_output_layer_is_multiplied_by_a_program_of_its_own(tmp_path, monkeypatch, caplog):
    weight, other = torch.randn(2, 1003, 48)
    product = compiled_product(weight, PackageFolder(tmp_path))
    vectors = torch.randn(70, 48)
    shaped = (vectors[:6].view(3, 2, 48), vectors[:1].expand(4, -1), vectors[None, :0])  # also of no token
    for given in (vectors, vectors[:1], vectors[0], *shaped):
        for layer in (weight, other):
            torch.testing.assert_close(product(given, layer), linear(given, layer))
    assert product is not linear and len(list(tmp_path.glob("output-product-*.so"))) == 1
    assert "output layer" not in caplog.text
    monkeypatch.setattr(packaged, "compiled", lambda program: 1 / 0)
    again = compiled_product(other, PackageFolder(tmp_path))
    assert torch.equal(again(vectors[:2], other), product(vectors[:2], other)), "a package serves layers of its shape"
    assert compiled_product(weight[1:], PackageFolder(tmp_path)) is linear
    assert "output layer is not compiled: division by zero" in caplog.text
    monkeypatch.setattr(
        passes, "packaged_product", lambda *given: lambda vectors, weight: 1.01 * linear(vectors, weight)
    )
    assert compiled_product(weight, PackageFolder(tmp_path)) is linear
    assert "differs from torch's, which is used" in caplog.text


def make(path):
    """Write a package, as a compilation does."""
    path.write_bytes(b"code")


def test_a_folder_that_cannot_be_written_costs_one_sentence(tmp_path, caplog):
    occupied = tmp_path / "compiled"
    occupied.write_text("a file")
    packages = PackageFolder(occupied)
    for _ in range(2):
        path = packages.package("one", {"a": 1}, make)
        assert path.read_bytes().startswith(b"code") and not path.is_relative_to(tmp_path)
    assert caplog.text.count("cannot be written") == 1 and "target.compile_cache=" in caplog.text


def test_a_package_is_made_once_for_all_that_it_depends_on(tmp_path):
    packages, made = PackageFolder(tmp_path), []

    def package(**values):
        return packages.package("one", values, lambda path: made.append(path) or make(path))

    assert package(threads=2, dtype="float32") == package(dtype="float32", threads=2)
    assert package(dtype="float32", threads=1) != package(dtype="float32", threads=2)
    assert len(made) == 2 and packages.size == 2 * (4 + 32) and not any(path.exists() for path in made)


def test_a_compilation_that_fails_leaves_no_file(tmp_path):
    def fail(path):
        make(path)
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        PackageFolder(tmp_path).package("one", {}, fail)
    assert not list(tmp_path.iterdir())


def test_sources_are_not_held_whose_lines_can_be_read_again(monkeypatch):
    typed, lines = (9, None, ["x = 1\n"], "<cell>"), linecache.getlines(layers.__file__)
    monkeypatch.setitem(linecache.cache, "<cell>", typed)  # as a notebook keeps what was typed
    assert layers.__file__ in linecache.cache
    packaged._collect()
    assert layers.__file__ not in linecache.cache and linecache.cache["<cell>"] == typed
    assert linecache.getlines(layers.__file__) == lines


def test_a_damaged_package_is_made_again(tmp_path):
    packages = PackageFolder(tmp_path)
    path = packages.package("one", {}, make)
    sound = path.read_bytes()
    packages.remember({"calls": 2}, ["one"])
    assert packages.recall({"calls": 2}) == ["one"] and packages.recall({"calls": 3}) is None
    (note,) = tmp_path.glob("*.json")
    note.write_text('["on')
    assert packages.recall({"calls": 2}) is None
    for damaged in (sound[:-1], sound[1:], b"", b"x" * len(sound)):
        path.write_bytes(damaged)
        assert not packages.has(path.name)
        assert packages.package("one", {}, make) == path and path.read_bytes() == sound


class Builder(CppBuilder):
    """A call of the compiler that makes a file of this name."""

    def __init__(self, file: str) -> None:
        self.file = file

    def get_target_file_path(self) -> str:
        return self.file


def test_the_sources_of_a_program_are_compiled_side_by_side(monkeypatch):
    both, made = threading.Barrier(2, timeout=30), []

    def build(builder):
        if builder.file.endswith(".o"):
            both.wait()  # one after another, the first would wait in vain
        made.append(builder.file)

    monkeypatch.setattr(CppBuilder, "build", build)
    with two_at_a_time():
        for file in ("a.wrapper.o", "a.kernel.o", "a.so"):
            Builder(file).build()
    assert sorted(made[:2]) == ["a.kernel.o", "a.wrapper.o"] and made[2:] == ["a.so"]
    assert CppBuilder.build is build


def test_what_a_compiler_says_of_a_source_is_raised_before_it_is_linked(monkeypatch):
    made = []

    def build(builder):
        if builder.file == "a.wrapper.o":
            raise RuntimeError("no such instruction")
        made.append(builder.file)

    monkeypatch.setattr(CppBuilder, "build", build)
    with pytest.raises(RuntimeError, match="no such instruction"), two_at_a_time():
        for file in ("a.wrapper.o", "a.kernel.o", "a.so"):
            Builder(file).build()
    assert made == ["a.kernel.o"]


def test_the_headers_of_both_sources_are_made_side_by_side(monkeypatch):
    both, asked = threading.Barrier(2, timeout=30), []

    def precompile(header, command, **options):
        asked.append((header, command, options))
        if len(asked) < 3:
            both.wait()
        return header

    monkeypatch.setattr(codecache, "_precompile_header", precompile)
    options = {"device_type": "cpu", "aot_mode": True}
    of_kernels = codecache._get_cpp_prefix_header("cpu")
    with two_at_a_time():
        assert codecache._precompile_header("wrapper.h", "command", min_optimize=True, **options) == "wrapper.h"
        codecache._precompile_header(of_kernels, "command", **options)
    assert asked[2] == (of_kernels, "command", options) and asked[2] in asked[:2]


def test_a_compiler_older_than_the_processor_is_asked_what_it_knows_once_it_fails(monkeypatch):
    asked = []

    def aot_compile(program, given, options):
        asked.append(options.get("cpp.vec_isa_ok"))
        if asked == [True]:
            raise CppCompileError(["g++"], "unrecognized option")
        return "library"

    monkeypatch.setattr(torch._inductor, "aot_compile", aot_compile)
    assert compiled(layers.product(torch.ones(4, 2)).program) == "library" and asked == [True, None]

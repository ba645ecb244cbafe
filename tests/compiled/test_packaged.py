"""Passes compiled into packages for a CPU: their numbers, their folder, and what happens where they cannot be had."""

import shutil
from copy import deepcopy
from zipfile import ZipFile

import pytest
import torch

from specdec.compiled import packaged
from specdec.compiled.packaged import PackagedStep
from specdec.compiled.packages import PackageFolder, weights_hash
from specdec.compiled.passes import compile_decoder
from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree

TEXT = [5, 9, 33, 2, 60, 17, 9, 33, 41, 8, 5, 22, 7]
ORDER = 1e-4  # of float32 sums in another order, over the largest logit


@pytest.fixture(scope="module")
def model():
    """A Llama of one layer in float32, with two heads to each pair of keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=600, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A folder with the packages of the model."""
    path = tmp_path_factory.mktemp("packages") / "models" / "compiled"
    decoder = Decoder(model, "tiny", 512)
    compile_decoder(decoder, {1, 3}, 64, "inductor", packages=PackageFolder(path))
    assert decoder.passes.sizes == (0, 1)
    assert {choice["pass"] for choice in decoder.choices.values()} == {"inductor"}
    return path


@pytest.fixture
def compiling_nothing(monkeypatch):
    """Makes every compilation an error."""

    def refuse(*given):
        raise RuntimeError("it is not compiled again")

    monkeypatch.setattr(packaged, "_write_package", refuse)


def opened(model, folder, **options):
    decoder = Decoder(model, "tiny", 512)
    compile_decoder(decoder, {1, 3}, 64, "inductor", packages=PackageFolder(folder), **options)
    return decoder


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
def test_a_second_decoder_reads_the_packages_and_gives_the_numbers_of_plain_modules(model, folder, compiling_nothing):
    plain, ours = Decoder(model, "tiny", 512), opened(model, folder)
    assert ours.passes.sizes == (0, 1) and sorted(file.suffix for file in folder.iterdir()) == [".pt2", ".pt2"]
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


@pytest.mark.slow
def test_packages_attend_by_our_kernel(folder):
    for package in ("llama-one-*", "llama-any-*"):
        (path,) = folder.glob(package)
        with ZipFile(path) as archive:
            kernels = [archive.read(name) for name in archive.namelist() if name.endswith("kernel.cpp")]
        assert b"merge(Row& row" in b"".join(kernels)


@pytest.mark.slow
def test_a_pass_that_differs_is_said_and_traced(model, folder, compiling_nothing, monkeypatch, caplog):
    call = PackagedStep.__call__

    def wrong(step, tokens, *given):
        result = call(step, tokens, *given)
        return result._replace(logits=result.logits * (1.01 if len(tokens) == 9 else 1.0))

    monkeypatch.setattr(PackagedStep, "__call__", wrong)
    ours = opened(model, folder)
    assert [choice["pass"] for choice in ours.choices.values()] == ["trace", "inductor"]
    assert "tiny, calls on any number of tokens: what was compiled differs from the plain modules by" in caplog.text
    plain = walk(Decoder(model, "tiny", 512), TEXT)
    assert (walk(ours, TEXT) - plain).abs().max() < ORDER * plain.abs().max()
    caplog.clear()
    make = PackagedStep.__init__

    def apart(step, *given):
        """Write into buffers that are not the cache's."""
        make(step, *given)
        step._buffers = [buffer.clone() for buffer in step._buffers]

    monkeypatch.setattr(PackagedStep, "__call__", call)
    monkeypatch.setattr(PackagedStep, "__init__", apart)
    assert {choice["pass"] for choice in opened(model, folder).choices.values()} == {"trace"}
    assert caplog.text.count("differs from the plain modules") == 2


@pytest.mark.slow
@torch.inference_mode()
def test_wide_calls_are_traced_where_the_plain_modules_are_faster(model, folder, compiling_nothing, monkeypatch):
    from specdec.compiled import passes as module

    # A clock on which plain calls take 5 s, compiled ones 1 s, and 9 s from 16 tokens on.
    now = [0.0]
    forward = Decoder.forward

    def timed(decoder, tokens, tree, **options):
        now[0] += (9 if len(tokens) >= 16 else 1) if decoder.passes.steps else 5
        return forward(decoder, tokens, tree, **options)

    monkeypatch.setattr(Decoder, "forward", timed)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    ours = Decoder(model, "tiny", 512)
    compile_decoder(ours, {1, 64}, 64, "inductor", packages=PackageFolder(folder))
    monkeypatch.undo()
    assert ours.choices["any number of tokens"]["up to"] == 15
    assert ours.choices["more tokens"] == {"pass": "trace"} and ours.passes.sizes == (-3, 0, 1)
    plain = Decoder(model, "tiny", 512)
    for decoder in (plain, ours):
        decoder.start(TEXT, 64)
    served, call = [], PackagedStep.__call__
    monkeypatch.setattr(PackagedStep, "__call__", lambda *given: served.append(len(given[1])) or call(*given))
    for size in (15, 16, 40):
        tokens, tree = torch.arange(size), chain_tree(size - 1)
        one, other = plain.forward(tokens, tree), ours.forward(tokens, tree)
        assert (one - other).abs().max() < ORDER * one.abs().max()
        plain.length = ours.length = len(TEXT)
    assert served == [15]


@pytest.mark.slow
def test_what_cannot_be_compiled_is_said_and_traced(model, tmp_path, compiling_nothing, caplog):
    ours = opened(model, tmp_path)
    assert ours.passes.sizes == (0, 1) and {choice["pass"] for choice in ours.choices.values()} == {"trace"}
    assert "tiny, calls on 1 token: compilation failed, so they are traced instead: it is not compiled" in caplog.text
    assert "tiny, calls on any number of tokens: compilation failed" in caplog.text
    assert not list(tmp_path.iterdir())


def make(path):
    """Write a package, as a compilation does."""
    path.write_bytes(b"code")


def test_a_folder_that_cannot_be_written_costs_one_sentence(tmp_path, caplog):
    occupied = tmp_path / "compiled"
    occupied.write_text("a file")
    packages = PackageFolder(occupied)
    for _ in range(2):
        path = packages.package("one", {"a": 1}, make)
        assert path.read_bytes() == b"code" and not path.is_relative_to(tmp_path)
    assert caplog.text.count("cannot be written") == 1 and "target.compile_cache=" in caplog.text


def test_a_package_is_made_once_for_all_that_it_depends_on(tmp_path):
    packages, made = PackageFolder(tmp_path), []

    def package(**values):
        return packages.package("one", values, lambda path: made.append(path) or make(path))

    assert package(threads=2, dtype="float32") == package(dtype="float32", threads=2)
    assert package(dtype="float32", threads=1) != package(dtype="float32", threads=2)
    assert len(made) == 2 and packages.size == 8 and not any(path.exists() for path in made)


def test_a_compilation_that_fails_leaves_no_file(tmp_path):
    def fail(path):
        make(path)
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        PackageFolder(tmp_path).package("one", {}, fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_damaged_package_is_made_again(model, folder, tmp_path, monkeypatch):
    copies = tmp_path / "compiled"
    shutil.copytree(folder, copies)
    sound = {file.name.partition("-")[2].partition("-")[0]: file for file in folder.iterdir()}
    for file in copies.iterdir():
        file.write_bytes(b"no zip")
    written = []

    def write(model, cache, kinds, kept, any_number, path, exported):
        written.append(shutil.copy(sound["any" if any_number else "one"], path))

    monkeypatch.setattr(packaged, "_write_package", write)
    assert {choice["pass"] for choice in opened(model, copies).choices.values()} == {"inductor"}
    assert len(written) == 2


def test_another_weight_is_another_hash(model):
    other = deepcopy(model)
    assert weights_hash(other) == weights_hash(model)
    other.model.norm.weight[3] += 1e-3
    assert weights_hash(other) != weights_hash(model)

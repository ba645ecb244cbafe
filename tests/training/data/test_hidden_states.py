"""States from disk and computed on the way: the same numbers, within the space there is."""

import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specdec.errors import NumericsError, UsageError
from specdec.targets.causal import Causal
from specdec.training.data.head_data import open_sequences
from specdec.training.data.hidden_states import StateSource

ROWS = 16 * 16 * 8  # bytes of a sequence: 16 tokens, 16 wide, float64


@pytest.fixture
def opened(head_data, text_target):
    """`opened(*offsets, teacher=False, **states)`: a source of states, of the last layer if none is given."""

    def make(
        *offsets: int, teacher: bool = False, target: Any = text_target, sequences: int = 12, **states: Any
    ) -> StateSource:
        config = head_data(sequences=sequences, passes=1, states=states)
        return StateSource(target, offsets or (0,), open_sequences(config, text_target, 3), config.states, teacher)

    return make


def small_shards(source: StateSource, size: int = 5) -> StateSource:
    source._shard_size = size
    return source


@pytest.mark.parametrize(("offset", "dtype"), [(0, "auto"), (0, "bfloat16"), (1, "float16"), (2, "auto")])
def test_cached_and_streamed_are_the_same_and_the_models_own(opened, text_target, offset, dtype):
    cached = small_shards(opened(offset, cache="disk", dtype=dtype, teacher=True))
    streamed = opened(offset, cache="none", dtype=dtype, teacher=True)
    cached.prepare()
    streamed.prepare()
    assert cached.cached and not streamed.cached
    for batch in [cached.sequences.train(2), *cached.sequences.heldout(), *cached.sequences.train(0).split(3)]:
        (a, ta), (b, tb) = cached.states(batch), streamed.states(batch)
        assert a.dtype == b.dtype == (torch.float64 if dtype == "auto" else getattr(torch, dtype))
        assert a.shape == (len(batch), 16, 16)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(ta, tb)
        expected = text_target.model(batch.tokens, output_hidden_states=True)
        torch.testing.assert_close(a, expected.hidden_states[-1 - offset].to(a.dtype))
        close = dict(rtol=1e-7, atol=1e-7) if dtype == "auto" or offset else dict(rtol=0.05, atol=0.3)
        torch.testing.assert_close(ta.double(), expected.logits, **close)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_several_layers_stand_side_by_side_as_asked(opened, text_target, monkeypatch, dtype):
    """A cache that has the last of the teacher's layers asks the target for nothing."""
    cached, streamed = (
        small_shards(opened(2, 1, cache=cache, dtype=dtype, teacher=True)) for cache in ("disk", "none")
    )
    cached.prepare()
    batch = cached.sequences.train(1)
    expected, logits = (each.clone() for each in text_target.hidden.sequence(batch.tokens, 2, 1))
    found = [streamed.states(batch)]
    assert cached.offsets == ((2, 1, 0) if dtype == "auto" else (2, 1))
    if dtype == "auto":
        monkeypatch.setattr(text_target.hidden, "sequence", None)
    for states, teacher in (*found, cached.states(batch)):
        torch.testing.assert_close(states, expected.to(states.dtype))
        torch.testing.assert_close(teacher, logits)


def test_the_cache_is_filled_once_and_what_is_there_is_kept(opened, text_target, monkeypatch):
    calls = []
    real = text_target.hidden.sequence

    def counted(tokens, offset):
        if tokens.shape[1] > 4:  # not the look at a model's shape
            calls.append(len(tokens))
            if len(calls) == 3:
                raise KeyboardInterrupt
        return real(tokens, offset)

    monkeypatch.setattr(text_target.hidden, "sequence", counted)
    source = small_shards(opened(cache="disk"))
    with pytest.raises(KeyboardInterrupt):
        source.prepare()
    assert [path.name for path in sorted(source.folder.glob("*.bin"))] == ["train_0000000_0000005.bin"]
    calls[:] = [0] * 3
    again = small_shards(opened(cache="disk"))
    again.prepare()
    assert sum(calls) == 12 + 5 - 5  # training and held-out sequences less those of the first file
    assert again.folder == source.folder
    calls[:] = [0] * 3
    third = small_shards(opened(cache="disk"))
    third.prepare()
    batch = third.sequences.train(1)
    states, _ = third.states(batch)
    assert calls == [0] * 3
    torch.testing.assert_close(states, real(batch.tokens, 0)[0].clone())


def test_other_weights_layers_dtypes_and_texts_have_their_own_cache(
    opened, head_data, text_target, tiny_llama, sampling
):
    other = Causal(tiny_llama(len(text_target.tokenizer), seed=1), sampling(), text_target.tokenizer)
    states = head_data(states={"cache": "disk"}).states
    text = StateSource(text_target, (0,), open_sequences(head_data(), text_target, seed=4), states, False)
    sources = [opened(), opened(1), opened(dtype="bfloat16"), opened(target=other), text]
    assert len({source.folder for source in sources}) == len(sources)


def test_a_longer_training_keeps_the_files_of_a_shorter(opened, text_target):
    for sequences in (8, 12):
        longer = small_shards(opened(cache="disk", sequences=sequences), 4)
        longer.prepare()
    names = sorted(path.name for path in longer.folder.glob("train*.bin"))
    assert names == ["train_0000000_0000004.bin", "train_0000004_0000008.bin", "train_0000008_0000012.bin"]
    batch = longer.sequences.batch("train", np.arange(12))
    torch.testing.assert_close(longer.states(batch)[0], text_target.hidden.sequence(batch.tokens, 0)[0].clone())


@pytest.mark.parametrize(("offset", "teacher", "layers"), [(0, False, 1), (1, True, 2)])
def test_beyond_the_limit_states_are_streamed(opened, offset, teacher, layers):
    """The limit is on both layers that a teacher needs, and is checked before anything is written."""
    needed = layers * (12 + 5) * ROWS
    for size, cached in ((needed, True), (needed - 1, False)):
        source = opened(offset, cache="disk", limit_gib=size / 2**30, teacher=teacher)
        source.prepare()
        assert source.cached == cached and source.bytes == needed
        assert bool(list(source.folder.glob("*.bin"))) == cached
        assert source.states(source.sequences.train(0))[0].shape == (4, 16, 16)
        for file in source.folder.glob("*"):
            file.unlink()


def test_too_little_space_is_said_before_anything_is_computed(opened, monkeypatch):
    needed = 17 * ROWS
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    small_shards(opened(cache="disk")).prepare()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    opened(cache="none").prepare()
    full = opened(cache="disk", shard_mib=2)  # another cache
    monkeypatch.setattr(full.target.hidden, "sequence", None)
    with pytest.raises(UsageError, match=f"data.states.folder=.*needs {needed:,} bytes.* 100 are free") as refused:
        full.prepare()
    assert refused.value.exit_code == 2 and "data.states.cache=none" in str(refused.value)


def test_a_layer_beyond_the_models_and_states_that_a_dtype_cannot_hold_are_refused(opened, text_target, monkeypatch):
    real = text_target.hidden.sequence
    monkeypatch.setattr(text_target.hidden, "sequence", lambda t, o: (real(t, o)[0] * 1e6, real(t, o)[1]))
    with pytest.raises(UsageError, match="heads.offset=3: the target has 2 layers"):
        opened(3)
    source = opened(dtype="float16")
    with pytest.raises(NumericsError, match="not finite in torch.float16: set data.states.dtype to bfloat16"):
        source.states(source.sequences.train(0))


def test_logits_that_are_more_than_a_product_come_from_the_model(opened, text_target, monkeypatch):
    real = text_target.hidden.sequence

    def capped(tokens, offset):
        states, logits = real(tokens, offset)
        return states, 5.0 * (logits / 5.0).tanh()

    plain = opened(teacher=True)
    assert plain._last is not None
    monkeypatch.setattr(text_target.hidden, "sequence", capped)
    for cache in ("none", "disk"):
        source = opened(teacher=True, cache=cache)
        source.prepare()
        batch = source.sequences.train(1)
        assert source._last is None
        torch.testing.assert_close(source.states(batch)[1], capped(batch.tokens, 0)[1].clone())


def test_a_file_that_is_gone_or_not_whole_is_made_again(opened):
    source = small_shards(opened(cache="disk"))
    states, teacher = source.states(source.sequences.train(0))
    assert states.shape == (4, 16, 16) and teacher is None and not source.folder.exists(), "unprepared, it computes"
    source.prepare()
    assert source.missing() == []
    next(source.folder.glob("heldout*.bin")).unlink()
    cut = source.folder / "train_0000005_0000010.bin"
    cut.write_bytes(cut.read_bytes()[:-1])
    assert source.missing() == [("train", range(5, 10)), ("heldout", range(5))]
    source.prepare()
    assert source.missing() == []

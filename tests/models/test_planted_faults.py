"""Faults of masks and positions, planted in an architecture of our own: every one is found when the model is opened,
with short windows and with long ones.
"""

import pytest
import torch
from fixtures.decoding import decode
from fixtures.faulty_architecture import (
    Fault,
    LayerCall,
    mask_of_another_layer_type,
    no_fault,
    one_window_for_all_texts,
    positions_of_the_first_text,
    replace,
    toy,
)
from fixtures.plain_laws import plain_greedy

from specdec.batching.batch_parts import batch_target
from specdec.certification.greedy_identity import GREEDY, NEW_TOKENS, Scattered
from specdec.errors import ModelLoadError, UsageError
from specdec.models.comparison import Comparison
from specdec.targets.causal import Causal

# Contexts in which nothing is compared far behind the beginning, where a fault would be met as well.
SIZES = {"short": dict(window=6, chunk=8), "long": dict(window=68, chunk=90)}
SIZES = {size: values | dict(max_position_embeddings=150) for size, values in SIZES.items()}
PROMPTS = {"short": 21, "long": 96}  # tokens, behind window and chunk


FAULTS: dict[str, Fault] = {"mask_of_another_layer_type": mask_of_another_layer_type}


def planted(fault: Fault) -> Fault:
    FAULTS[fault.__name__] = fault
    return fault


def distances(call: LayerCall) -> torch.Tensor:
    """How far back each key is from each token, by positions: [B, N, S]."""
    return call.query_positions[:, :, None] - call.key_positions[:, None, :]


@planted
def window_off_by_one_behind_a_cache(call: LayerCall) -> LayerCall:
    if call.kind != "local" or not call.cached:
        return call
    return replace(call, visible=call.visible & (distances(call) < call.window - 1))


@planted
def window_ignored_in_trees(call: LayerCall) -> LayerCall:
    """A mask of the caller's that is no chain is taken as it is."""
    branches = call.query_positions.shape[1] > 1 and bool((call.query_positions.diff(dim=1) != 1).any())
    return replace(call, visible=call.given) if branches and call.kind != "global" else call


@planted
def local_positions_from_the_length_of_the_cache(call: LayerCall) -> LayerCall:
    if call.kind != "local":
        return call
    count = call.query_positions.shape[1]
    return replace(call, rotated=torch.arange(call.cached, call.cached + count).expand_as(call.query_positions))


@planted
def window_counted_in_slots(call: LayerCall) -> LayerCall:
    """As GPT-Neo has it: a buffer by slots, on top of the mask that is given."""
    if call.kind != "local":
        return call
    count, keys = call.visible.shape[1:]
    slots = torch.arange(call.cached, call.cached + count)[:, None] - torch.arange(keys)
    return replace(call, visible=call.visible & (slots < call.window))


@planted
def chunks_begin_where_the_call_begins(call: LayerCall) -> LayerCall:
    if call.kind != "chunked" or not call.cached or call.given is None:
        return call
    begin = call.query_positions.amin(1)[:, None]
    queries, keys = ((places - begin).div(call.chunk, rounding_mode="floor") for places in
                     (call.query_positions, call.key_positions))  # fmt: skip
    return replace(call, visible=call.given & (queries[:, :, None] == keys[:, None, :]))


@planted
def hidden_keys_leak_a_little(call: LayerCall) -> LayerCall:
    """The mask of the caller is a penalty of 11 to the score, which hides a key nearly."""
    if call.given is None:
        return call
    return replace(call, visible=torch.ones_like(call.visible), bias=call.bias.masked_fill(~call.visible, -11.0))


# The five that follow were made by somebody who had not seen how models are examined, and committed after it.
@planted
def window_ends_with_the_last_token_of_a_short_call(call: LayerCall) -> LayerCall:
    """New keys push old ones out of a buffer of one window before the earlier tokens of the call have seen them."""
    count, keys = call.visible.shape[1:]
    if call.kind != "local" or not call.cached or count >= call.window:
        return call
    return replace(call, visible=call.visible & (torch.arange(keys) >= call.cached + count - call.window))


@planted
def evicted_keys_do_not_come_back(call: LayerCall) -> LayerCall:
    """A local layer drops the keys behind its window after each call, even where drafts of it are rejected later."""
    if call.kind != "local":
        return call
    lowest = call.memory.get("lowest", 0) if call.cached else 0
    call.memory["lowest"] = max(lowest, call.cached + call.visible.shape[1] - call.window + 1)
    return replace(call, visible=call.visible & (call.key_positions >= lowest)[:, None, :])


@planted
def mask_made_anew_where_a_call_crosses_chunks(call: LayerCall) -> LayerCall:
    """A chunked layer builds its own mask from positions when a call belongs to two chunks: siblings see each other."""
    chunks = call.query_positions // call.chunk
    if call.kind != "chunked" or not call.cached or bool(chunks.amin() == chunks.amax()):
        return call
    same = chunks[:, :, None] == (call.key_positions // call.chunk)[:, None, :]
    return replace(call, visible=(distances(call) >= 0) & same)


@planted
def mask_of_an_earlier_call_of_the_same_sizes(call: LayerCall) -> LayerCall:
    """Local layers keep the masks that they have made, by sizes: a tree gets the mask of another tree."""
    if call.kind != "local" or call.given is None:
        return call
    sizes = (call.cached, *call.visible.shape)
    return replace(call, visible=call.memory.setdefault(sizes, call.visible))


@planted
def positions_counted_through_the_batch(call: LayerCall) -> LayerCall:
    """Behind a cache a row's new tokens are rotated as if they followed those of the row above."""
    rows, count = call.query_positions.shape
    if call.kind != "global" or not call.cached:
        return call
    return replace(call, rotated=call.query_positions + count * torch.arange(rows)[:, None])


def prompt_of(size: str) -> tuple[int, ...]:
    return tuple((7 * place * place + 3 * place) % 61 for place in range(PROMPTS[size]))


def check_decoding(target, size, make_structure):
    """Assert that what is served decodes what plain passes say, behind the windows."""
    own = plain_greedy(target.model, prompt_of(size), NEW_TOKENS)
    for shape in ("chain", "tree"):
        written = decode(target, Scattered(own), make_structure(shape, 4), prompt_of(size), NEW_TOKENS)
        assert written.tokens == own, shape


@pytest.mark.parametrize("size", SIZES)
def test_without_a_fault_every_call_is_trusted(size, make_structure, monkeypatch):
    """And no text is compared twice, where lengths stand so near to each other that the same ones cross them."""
    seen, plain = [], Comparison.plain

    def seen_and_made(trial):
        seen.append((trial._decoder.model, len(trial._prompt)))
        return plain(trial)

    monkeypatch.setattr(Comparison, "plain", seen_and_made)
    target = Causal(toy(no_fault, **SIZES[size]), GREEDY)
    probed = target.decoder.probed
    assert probed.packed and probed.rows and probed.batch and probed.pieces and probed.static and not probed.pending
    assert len(seen) == len(set(seen)) > 4
    check_decoding(target, size, make_structure)


# A long window is crossed by the same comparisons on a shortened copy: faults of each kind of layer show that it is.
LONG = ("window_off_by_one_behind_a_cache", "chunks_begin_where_the_call_begins", "evicted_keys_do_not_come_back")


@pytest.mark.parametrize(("fault", "size"), [*((fault, "short") for fault in FAULTS), *((f, "long") for f in LONG)])
def test_a_planted_fault_is_found(fault, size, make_structure):
    model = toy(FAULTS[fault], **SIZES[size])
    try:
        target = Causal(model, GREEDY)
    except ModelLoadError as refusal:
        assert "(toy, " in str(refusal) and "\n" not in str(refusal)
        return
    probed = target.decoder.probed
    assert not (probed.packed and probed.rows and probed.pieces), "trusted with everything"
    check_decoding(target, size, make_structure)


@pytest.mark.parametrize("fault", [one_window_for_all_texts, positions_of_the_first_text])
def test_a_fault_of_texts_of_different_lengths_is_found(fault, make_structure):
    """One text alone is decoded as it should be, and a batch of several is refused."""
    target = Causal(toy(fault), GREEDY)
    assert target.decoder.probed.packed and target.decoder.probed.rows
    check_decoding(target, "short", make_structure)
    with pytest.raises(UsageError, match=r"measurement\.batch_size=2: where texts of different lengths") as refused:
        batch_target(target, 2)
    assert "of their spread" in str(refused.value) and str(refused.value).endswith("use measurement.batch_size=1.")


@pytest.mark.parametrize("share", [0.0, 1e-8])
def test_tokens_that_were_left_out_and_change_what_follows_by_less_than_rounding_are_found(share):
    """A buffer keeps the states of a call's last tokens, of which the next call reads a share."""
    model, kept = toy(no_fault, **SIZES["short"]).double(), {}

    def read_and_keep(layer, given, states):
        leaked = kept.get("last", 0.0)
        kept["last"] = states[:, -1:].mean(0, keepdim=True)
        return states + share * leaked

    decoder = Causal(model, GREEDY).decoder
    model.layers[0].register_forward_hook(read_and_keep)
    trial = Comparison(decoder, PROMPTS["short"])
    assert trial.plain()
    for check, visible, hidden in (
        *((trial.chain, "chain", "rejected"), (trial.packed, "packed", "branches")),
        *((trial.rows, "rows", "sequences"), (trial.batch, "batch", "texts")),
    ):
        assert check() is (share == 0), visible
        assert trial.errors[visible] < 1e-5 and (trial.errors[hidden] > 0) is (share > 0)

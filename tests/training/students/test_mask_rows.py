"""Masks behind the positions of a text, against plain sequences that are evaluated one by one."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from specdec.models.decoder import attention_windows
from specdec.training.recipes import SubtasksConfig
from specdec.training.students.parallel_student import UNSCORED, DraftAccuracy, MaskRows, mask_rows, row_losses

MASK, LENGTH = 60, 18


def subtasks(ahead: int = 4, keep: float = 0.7, keep_least: float = 0.2) -> SubtasksConfig:
    return SubtasksConfig(name="tiny", ahead=ahead, keep=keep, keep_least=keep_least, mask_token=MASK)


def made(config: SubtasksConfig, batch: int = 3, length: int = LENGTH, seed: int = 0) -> tuple[Any, Any, MaskRows]:
    """Random texts, of which about one token in four is not scored, and their rows."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(MASK, (batch, length), generator=generator)
    scored = torch.rand(batch, length, generator=generator) > 0.25
    return tokens, scored, mask_rows(tokens, scored, config, MASK, generator)


@pytest.mark.parametrize("architecture", ["opt", "gemma3"])  # positions by number; layers with and without a window
@torch.no_grad()
def test_each_row_is_the_end_of_a_plain_sequence(tiny_model, architecture):
    """The text up to a position and the masks behind it, in a pass of its own, give the same law and the same loss."""
    model = tiny_model(architecture)
    tokens, scored, rows = made(subtasks(), batch=2)
    mask = rows.attention(attention_windows(model.config, "tiny"), model.dtype)
    logits = model(input_ids=rows.tokens, attention_mask=mask, position_ids=rows.positions, use_cache=False).logits
    losses, right = row_losses(model, rows.tokens, mask, rows.positions, rows.targets)
    kinds = set()
    for b in range(len(tokens)):
        for row, (start, level) in enumerate(zip(rows.starts[b].tolist(), rows.levels.tolist(), strict=True)):
            plain = torch.cat([tokens[b, : start + 1], torch.full((level,), MASK)])
            law = model(input_ids=plain[None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits[b, row], law, atol=1e-10, rtol=0)
            place = start + level + 1
            predicted = place < LENGTH and bool(scored[b, place])
            kinds.add((predicted, level))
            expected = F.cross_entropy(law.float(), tokens[b, place]) if predicted else torch.tensor(0.0)
            assert float(losses[b, row]) == pytest.approx(float(expected), abs=1e-5)
            assert bool(right[b, row]) == (predicted and int(law.argmax()) == int(tokens[b, place]))
    assert kinds == {(predicted, level) for predicted in (True, False) for level in range(4)}


@pytest.mark.parametrize(
    ("keep", "least", "shares"),
    [(0.7, 0.2, [0.7, 0.49, 0.343, 0.2401, 0.2, 0.2, 0.2]), (1.0, 0.2, [1.0] * 7), (0.5, 0.9, [0.5] * 7)],
)
def test_subtasks_are_dropped_to_their_shares(keep, least, shares):
    config = subtasks(8, keep, least)
    assert config.counts(1000) == pytest.approx([1000 * share for share in shares], abs=0.5)
    _, _, rows = made(config, length=208)
    assert rows.levels.bincount().tolist() == [208, *config.counts(200)]
    assert subtasks(8, 0.0, 0.0).counts(50) == [1] * 7, "none is left out altogether"


def test_the_earlier_masks_of_a_mask_are_never_dropped_and_chance_decides_which_are():
    _, _, rows = made(subtasks(keep=0.5), length=40)
    for b in range(3):
        behind = [set(rows.starts[b, rows.levels == level].tolist()) for level in range(4)]
        assert len(behind[3]) < len(behind[2]) < len(behind[1]) < len(behind[0])
        assert behind[3] < behind[2] < behind[1] < set(range(36)), "the last four would predict beyond the text"
    first = rows.starts[:, rows.levels == 1]
    assert not torch.equal(first[0].sort().values, first[1].sort().values)
    again, other = made(subtasks(keep=0.5), length=40)[2], made(subtasks(keep=0.5), length=40, seed=1)[2]
    assert torch.equal(rows.starts, again.starts) and not torch.equal(rows.starts, other.starts)


def test_masks_stand_behind_positions_whose_next_token_is_scored():
    tokens = torch.arange(30).unsqueeze(0)
    scored = torch.arange(30).unsqueeze(0) % 3 == 1
    rows = mask_rows(tokens, scored, subtasks(3, 0.3, 0.0), MASK, torch.Generator().manual_seed(0))
    assert (rows.starts[0, rows.levels > 0] % 3 == 0).all()


def test_accuracy_counts_each_level_and_the_rows_whose_branch_was_right_so_far():
    _, _, rows = made(subtasks(), batch=4, length=60)
    right = torch.rand(rows.tokens.shape, generator=torch.Generator().manual_seed(5)) < 0.6
    nats = torch.rand(rows.tokens.shape, generator=torch.Generator().manual_seed(6))
    accuracy = DraftAccuracy(4)
    for part in (slice(0, 1), slice(1, 4)):
        some = MaskRows(rows.tokens[part], rows.starts[part], rows.levels, rows.targets[part])
        accuracy.add(right[part], nats[part], some)
    place = {
        (b, int(rows.levels[r]), int(rows.starts[b, r])): (b, r)
        for b in range(4)
        for r in range(len(rows.levels))
        if rows.targets[b, r] != UNSCORED
    }
    for level in range(4):
        of_level = {key: at for key, at in place.items() if key[1] == level}
        ahead = {
            key: at
            for key, at in of_level.items()
            if all((key[0], k, key[2]) in place and right[place[key[0], k, key[2]]] for k in range(level))
        }
        found, name = accuracy.metrics(), f"heldout/token_{level + 1}."
        assert found[name + "top1"] == pytest.approx(sum(bool(right[at]) for at in of_level.values()) / len(of_level))
        given = sum(bool(right[at]) for at in ahead.values()) / len(ahead)
        assert found[name + "top1_given_earlier"] == pytest.approx(given)
        mean = sum(float(nats[at]) for at in of_level.values()) / len(of_level)
        assert found[name + "nats_per_token"] == pytest.approx(mean)

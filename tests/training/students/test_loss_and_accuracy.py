"""Against torch's own cross entropy and gradients, and against counting one position at a time."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import Heads
from specdec.training.students import loss_and_accuracy
from specdec.training.students.head_student import HeadLosses, HeadStudent
from specdec.training.students.loss_and_accuracy import ChunkedCrossEntropy, HeadAccuracy, Positions, TargetScore, ranks

D, V, K = 6, 11, 3


@pytest.fixture(autouse=True)
def two_positions_at_a_time(monkeypatch):
    """Several chunks, the last one shorter."""
    monkeypatch.setattr(loss_and_accuracy, "_CHUNK_BYTES", {"cpu": 2 * 4 * V})


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def make_heads(generator: torch.Generator, trained: bool = True, **changes: object) -> Heads:
    values = dict(
        name="test", count=K, grounded=False, mixer="mlp", layers=1, width=None, state="hidden", offset=0, prefix=False,
        output="own",
    )  # fmt: skip
    weights = torch.randn(2, V, D, generator=generator, dtype=torch.float64)
    heads = Heads(HeadsConfig(**values | changes), weights[0], weights[1]).double()
    if trained:
        with torch.no_grad():
            for weight in heads.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return heads


def batch(generator: torch.Generator, rows: int = 3, length: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    states = torch.randn(rows, length, D, generator=generator, dtype=torch.float64)
    tokens = torch.randint(V, (rows, length), generator=generator)
    scored = torch.rand(rows, length, generator=generator) < 0.7
    return states, tokens, scored


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_chunked_loss_and_its_gradients_are_those_of_torch(generator, share):
    features = torch.randn(7, D, generator=generator, dtype=torch.float64, requires_grad=True)
    output = torch.randn(V, D, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(V, (7,), generator=generator)
    teacher = torch.randn(5, V, generator=generator, dtype=torch.float64)
    laws = torch.randint(5, (7,), generator=generator)
    where = Positions(torch.ones(1, 7, dtype=torch.bool), targets, laws)
    ours = ChunkedCrossEntropy.apply(features, output, where, teacher, share)
    logits = features @ output.T
    soft = teacher[laws].softmax(-1)
    theirs = (1 - share) * F.cross_entropy(logits, targets, reduction="sum")
    theirs = theirs + share * F.cross_entropy(logits, soft, reduction="sum")
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    for a, b in zip(
        torch.autograd.grad(2.5 * ours, (features, output)), torch.autograd.grad(2.5 * theirs, (features, output)),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"grounded": True}, {"grounded": True, "mixer": "gru"}, {"output": "shared"}])
def test_the_teacher_is_the_target_where_the_token_was_drawn(generator, changes):
    heads = make_heads(generator, **changes)
    states, tokens, scored = batch(generator)
    teacher = torch.randn(3, 9, V, generator=generator, dtype=torch.float64)
    expected = 0.0
    for k, features in enumerate(heads.features(states, tokens), start=1):
        law = heads.logits(k, features).log_softmax(-1)
        for row, t in scored[:, k + 1 :].nonzero().tolist():
            expected -= (teacher[row, t + k].softmax(-1) * law[row, t]).sum().item() / k
    losses = HeadLosses(heads, None, SimpleNamespace(teacher=1.0, self_distillation=0.0))
    loss, _ = losses(tokens, scored, [0.0, *(1 / k for k in range(1, K + 1))], states, teacher)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_no_scored_token_no_loss(generator):
    heads = make_heads(generator)
    states, tokens, scored = batch(generator)
    losses = HeadLosses(heads, None, SimpleNamespace(teacher=0.0, self_distillation=0.0))
    loss, _ = losses(tokens, torch.zeros_like(scored), [1.0] * (K + 1), states, None)
    loss.backward()
    assert loss.item() == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in heads.parameters())


def test_ranks_count_the_likelier_tokens_and_break_ties_by_id(generator):
    features = torch.randn(9, D, generator=generator)
    output = torch.randn(V, D, generator=generator)
    targets = torch.randint(V, (9,), generator=generator)
    order = (features @ output.T).sort(descending=True, stable=True).indices
    expected = [row.tolist().index(target) for row, target in zip(order, targets.tolist(), strict=True)]
    assert ranks(features, output, targets).tolist() == expected
    equal = ranks(torch.zeros(3, D), output, torch.tensor([0, 4, 10]))
    assert equal.tolist() == [0, 4, 10]


@pytest.mark.parametrize("changes", [{}, {"grounded": True}, {"prefix": True}])
def test_accuracies_against_counting_one_position_at_a_time(generator, changes):
    heads = make_heads(generator, **changes)
    accuracy = HeadAccuracy(K)
    places, given = ([[] for _ in range(K)] for _ in range(2))  # all of a head, and where the earlier ones were right
    for _ in range(2):
        states, tokens, scored = batch(generator, rows=4, length=12)
        HeadStudent.count(accuracy, heads, states, tokens, scored)
        features = heads.features(states, tokens)
        best = [heads.logits(k, features[k - 1]).argsort(-1, descending=True) for k in range(1, K + 1)]
        for row in range(4):
            for t in range(12):
                for k in range(1, K + 1):
                    if t + k + 1 > 11 or not scored[row, t + k + 1]:
                        continue
                    place = best[k - 1][row, t].tolist().index(int(tokens[row, t + k + 1]))
                    earlier = [j for j in range(1, k) if scored[row, t + j + 1]]
                    right = len(earlier) == k - 1 and all(
                        int(best[j - 1][row, t, 0]) == int(tokens[row, t + j + 1]) for j in earlier
                    )
                    places[k - 1].append(place)
                    given[k - 1] += [place] * right
    metrics = accuracy.metrics()
    assert given[0] == places[0] and 0 < len(given[1]) < len(places[1])
    for k in range(K):
        for top in range(5):
            for suffix, found in (("", places[k]), ("_given_earlier", given[k])):
                expected = sum(place <= top for place in found) / len(found) if found else math.nan
                name = f"heldout/head_{k + 1}.top{top + 1}{suffix}"
                assert metrics[name] == pytest.approx(expected, nan_ok=True)


def test_the_targets_own_score(generator):
    _, tokens, scored = batch(generator)
    logits = torch.randn(3, 9, V, generator=generator, dtype=torch.float64)
    score = TargetScore()
    score.add(logits[:1], tokens[:1], scored[:1])
    score.add(logits[1:], tokens[1:], scored[1:])
    losses, tops = [], []
    for row, t in scored[:, 1:].nonzero().tolist():
        losses.append(-float(logits[row, t].log_softmax(-1)[tokens[row, t + 1]]))
        tops.append(int(tokens[row, t + 1]) in logits[row, t].topk(3).indices.tolist())
    metrics = score.metrics()
    assert metrics["heldout/target.nats_per_token"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert metrics["heldout/target.top3"] == pytest.approx(sum(tops) / len(tops))

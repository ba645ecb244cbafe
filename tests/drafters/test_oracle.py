"""The oracle makes the capped-geometric model true: coins and corrupt tokens. `tests/test_run.py` has its rounds."""

import time

import pytest
import torch
from fixtures.drafting import chain, decoded

from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.models.decoder import Decoder
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.session.arm import Forced
from specdec.targets.causal import Causal

SIZE = 7


@pytest.fixture
def cycle(table):
    """A deterministic law: 0, 3, 6, 2, 5, 1, 4, 0, ..."""
    law = [[float(column == (row + 3) % SIZE) for column in range(SIZE)] for row in range(SIZE)]
    return table(law)


def oracle(target, alpha, step_ms=0.0):
    values = {"name": "oracle", "alpha": alpha, "step_ms": step_ms, "forced": False, "shape": None}
    return drafters.build(values, target=target)


def proposals(drafter, reference, gamma, prompt="a"):
    drafter.start(TextStart([0], 1000, generator=generator_for(3, prompt, "draft"), reference=reference))
    seen: dict[int, set[int]] = {}
    for position in range(len(reference)):
        for offset, token in enumerate(drafter.draft(chain(gamma)).tokens.tolist()):
            seen.setdefault(position + offset, set()).add(token)
        drafter.commit([reference[position]])
    assert all(len(tokens) == 1 for tokens in seen.values())
    return [seen[position].pop() for position in range(len(reference))]


def test_coins_do_not_depend_on_alpha_beyond_their_threshold(cycle):
    reference = [index % SIZE for index in range(200)]
    wrong = [
        {i for i, token in enumerate(proposals(oracle(cycle, alpha), reference, 4)) if token != reference[i]}
        for alpha in (0.3, 0.6, 0.9, 1.0)
    ]
    assert wrong[0] > wrong[1] > wrong[2] > wrong[3] == set()


def test_a_corrupt_token_always_differs_and_is_uniform_over_the_others(cycle):
    """Alpha 0, 6,000 tokens in six drafts: none right; chi-square over the 6 wrong ones below 27.9 (false alarm
    4e-5, 5 d.o.f.).
    """
    drafter, counts = oracle(cycle, 0.0), torch.zeros(SIZE, dtype=torch.long)
    for text in range(6):
        drafter.start(TextStart([0], 1000, generator=generator_for(text, "a", "draft"), reference=[2] * 1000))
        counts += torch.bincount(drafter.draft(chain(1000)).tokens, minlength=SIZE)
    assert counts[2] == 0
    others = counts[counts > 0].double()
    assert len(others) == SIZE - 1
    assert float(((others - 1000) ** 2 / 1000).sum()) < 27.9


def test_forced_mode_commits_the_record_whatever_the_target_says(table, random_law):
    """The target would write something else; the rounds are those of the coins on a target that agrees."""
    target = table(random_law(SIZE, 1))
    record = [(5 * index * index + 1) % SIZE for index in range(48)]
    forced = Forced(target, record)
    alone = drafters.build({"name": "none"}, target=target)
    assert decoded(target, alone, chain(4), [0], 48).tokens != tuple(record)
    assert decoded(forced, alone, chain(4), [0], 48).tokens == tuple(record)
    for alpha in (0.0, 0.7, 1.0):
        for rule in ("greedy", "speculative_sampling"):
            generation = decoded(forced, oracle(target, alpha), chain(4), [0], 48, rule, "a", record)
            assert generation.tokens == tuple(record)
            drafter = oracle(target, alpha)
            drafter.start(TextStart([0], 1000, generator=generator_for(0, "a", "draft"), reference=record))
            wrong = (drafter.draft(chain(48)).tokens != torch.tensor(record)).nonzero().flatten().tolist()
            position = 0
            for row in generation.rounds:
                right = [position + i not in wrong for i in range(len(row.draft_tokens))]
                assert row.accepted == [*right, False].index(False)
                position += len(row.committed)
    target, record = table(random_law(SIZE, 1), end_token=6), [1, 2, 3, 6]
    generation = decoded(Forced(target, record), oracle(target, 1.0), chain(3), [0], 50, reference=record)
    assert generation.tokens == tuple(record) and generation.finish == "end_token", "it ends with the record"


def test_the_artificial_cost_is_spent_per_drafted_token(cycle):
    drafter = oracle(cycle, 1.0, step_ms=2.0)
    drafter.start(TextStart([0], 1000, generator=generator_for(0, "a", "draft"), reference=[1, 2, 3]))
    began = time.perf_counter()
    drafter.draft(chain(5))  # three tokens are left
    assert time.perf_counter() - began >= 0.006
    began = time.perf_counter()
    drafter.draft(chain(5).clamped(0))
    assert time.perf_counter() - began < 0.5


@torch.inference_mode()
def test_a_model_beside_it_costs_its_calls_and_changes_no_token(cycle, tiny_llama, sampling, monkeypatch):
    """It reads every token, so that after every number of accepted ones a draft takes one call for each of its own."""
    shape = {
        **{"model_type": "llama", "seed": 0, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "intermediate_size": 16, "vocab_size": 61, "max_position_embeddings": 128},
    }
    target = Causal(tiny_llama(61), sampling(temperature=0.0))
    values = {"name": "oracle", "alpha": 0.6, "step_ms": 0.0, "forced": True}
    alone, beside = (drafters.build({**values, "shape": given}, target=target) for given in (None, shape))
    calls, forward = [], Decoder.forward
    monkeypatch.setattr(
        Decoder, "forward", lambda *given, **more: calls.append(len(given[1])) or forward(*given, **more)
    )
    reference = [index * 7 % 61 for index in range(40)]
    for drafter in (alone, beside):
        drafter.start(TextStart([3, 5, 9], 64, generator=generator_for(3, "a", "draft"), reference=reference))
    for accepted in (0, 3, 1, 3):
        calls.clear()
        one, other = (drafter.draft(chain(3)).tokens.tolist() for drafter in (alone, beside))
        assert one == other and len(calls) == 3 and sum(calls) <= 4
        for drafter in (alone, beside):
            drafter.commit([*one[:accepted], 7])
    with pytest.raises(UsageError, match=r"drafter\.shape: a random model drafts for a transformers target"):
        drafters.build({**values, "shape": shape}, target=cycle)

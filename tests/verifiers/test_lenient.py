"""The lenient rule against its exact law by enumeration, and what a run says about a rule that is not lossless."""

import json

import numpy as np
import pytest
import torch
from fixtures.drafting import chain, decoded
from oracles.acceptance import beta

from specdec import run
from specdec.certification.exact import TableDrafter
from specdec.records import Draft, chain_tree
from specdec.sampling import one_hot
from specdec.verifiers.base import Verifier, VerifierCapabilities, verifiers

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.1, 0.2], dtype=torch.float64)
RULES = [("plain", "sampled"), ("lenient", "sampled"), ("plain", "greedy")]


def lenient(lenience, residual="plain", form="sampled"):
    return verifiers.build({"name": "lenient", "lenience": lenience, "residual": residual, "form": form})


@pytest.mark.parametrize("lenience", [1.0, 0.3])
@pytest.mark.parametrize(("residual", "form"), RULES)
def test_the_first_token_has_the_law_that_the_rule_states(first_token, random_law, residual, form, lenience):
    rule = lenient(lenience, residual, form)
    for p, q in [(P, Q), (random_law(5, 1)[0], random_law(5, 2)[0])]:
        for drafted in (q, *one_hot(torch.arange(len(p)), len(p)).double()):
            law, accepted = first_token(rule, p, drafted)
            assert (law - rule.law(p, drafted)).abs().max() < 1e-12
            assert float(rule.passed(p, drafted).sum()) == pytest.approx(accepted, abs=1e-12)


@pytest.mark.parametrize("lenience", [0.8, 0.3])
@pytest.mark.parametrize(("residual", "power"), [("plain", 0), ("lenient", 1)])
def test_what_follows_a_rejection_is_drawn_from_p_without_that_share_of_q(
    first_token, random_law, residual, power, lenience
):
    """Appendix A.5, written out: min(q, p/l) passes, what is missing goes to norm((p - q)_+) or norm((p - lq)_+)."""
    for p, q in [(P, Q), *zip(random_law(5, 1)[:2], random_law(5, 2), strict=False)]:
        passed = np.minimum(q.numpy(), p.numpy() / lenience)
        left = np.maximum(p.numpy() - lenience**power * q.numpy(), 0.0)
        law, _ = first_token(lenient(lenience, residual), p, q)
        assert law.numpy() == pytest.approx(passed + (1 - passed.sum()) * left / left.sum(), abs=1e-12)


def test_total_variation_of_the_worked_example():
    # l = 0.5: q passes up to 2p = (1, .6, .3, .1), the missing 0.1 goes to (6/7, 0, 1/7, 0); 0.2 + 0.05 are lost.
    assert float(lenient(0.5).total_variation(P, Q)) == pytest.approx(0.25)
    assert float(lenient(1.0).total_variation(P, Q)) == pytest.approx(0.0, abs=1e-12)
    # Greedy: tokens 0 and 1 pass (p >= 0.25), and token 1 is not the argmax.
    assert float(lenient(0.5, form="greedy").total_variation(P, Q)) == pytest.approx(0.5)


def test_at_lenience_1_it_is_speculative_sampling(random_law):
    rules = [lenient(1.0), lenient(1.0, "lenient"), verifiers.build({"name": "speculative_sampling"})]
    for seed in range(20):
        p, q = random_law(6, seed)[:5].float(), random_law(6, seed + 200)[:4].float()
        tokens = torch.multinomial(q, 1, generator=torch.Generator().manual_seed(seed)).squeeze(-1)
        draft = Draft(tokens, chain_tree(4), q if seed % 3 else None)
        one, other, strict = (rule.accept(draft, p, torch.Generator().manual_seed(seed)) for rule in rules)
        assert one == other == strict


def test_the_greedy_form_keeps_what_is_likely_enough():
    """Accepted where p(x) >= l max p (the published text prints the inequality the other way round)."""
    rule = lenient(0.5, form="greedy")
    p = torch.stack([P, torch.tensor([0.3, 0.25, 0.2, 0.25]), P, P])  # each position has a best token of its own
    for tokens, accepted in (([1, 1, 1], 3), ([0, 2, 2], 2), ([3, 0, 0], 0)):
        acceptance = rule.accept(Draft(torch.tensor(tokens), chain_tree(3)), p, None)
        assert len(acceptance.path) == accepted and acceptance.next_token == 0
        assert acceptance.rejected == (accepted < 3)
    assert rule.accept(Draft(torch.empty(0, dtype=torch.long), chain_tree(0)), p[:1], None).next_token == 0


def test_a_round_records_the_departure_at_every_tested_position(table, random_law):
    law, rule = random_law(4, 0), lenient(0.3)
    target, drafter = table(law, temperature=1.0), TableDrafter(Q.expand(4, -1))
    rounds = decoded(target, drafter, chain(3), [0], 60, rule).rounds
    root, departures = 0, rule.total_variation(law, Q.expand(4, -1))
    chances = beta(law.numpy(), Q.numpy(), 0.3)
    for item in rounds:
        before = [root, *item.draft_tokens][: item.accepted + item.rejected]
        assert item.tv == pytest.approx([float(departures[token]) for token in before])
        assert item.beta == pytest.approx([chances[token] for token in before])
        root = item.committed[-1]
    assert any(item.rejected for item in rounds) and any(len(item.tv) == 3 for item in rounds)
    assert all(item.tv == () for item in decoded(target, drafter, chain(3), [0], 60).rounds)


def test_a_rule_that_is_not_lossless_has_to_say_what_it_emits():
    class Silent(Verifier):
        capabilities = VerifierCapabilities(handles=frozenset({"chain"}), lossless=False)

        def accept(self, draft, p, generator):
            raise AssertionError

    with pytest.raises(NotImplementedError, match="Silent"):
        Silent().total_variation(P, Q)
    with pytest.raises(NotImplementedError, match="Silent"):
        Silent().passed(P, Q)
    for name in verifiers.names():
        rule = verifiers.get(name)
        assert rule.capabilities.lossless or rule.passed is not Verifier.passed, name


@pytest.mark.slow
def test_a_run_reports_the_departure_and_claims_no_identity(in_process, tmp_path):
    """The whole command: table target, corpus n-gram, lenient rule."""
    (tmp_path / "corpus.jsonl").write_text('{"tokens": [0, 1, 2, 0, 1, 1, 2, 2, 0, 1, 0, 2]}\n')
    changes = ["drafter.corpus=corpus.jsonl", "drafter.field=tokens", "verifier.lenience=0.3", "seed=1"]
    arguments = ["+debug=tiny", "+drafter=corpus_ngram", "verifier=lenient", "sampling=temperature", *changes]
    ended = in_process(run, *arguments, "measurement.gammas=[]", "tracking.enabled=false", "hydra.run.dir=out")
    assert ended.code == 0, ended.error
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    metrics = summary["metrics"]
    assert 0 < metrics["lossless/tv.ci_low"] <= metrics["lossless/tv"] <= metrics["lossless/tv.ci_high"] < 1
    assert not {"lossless/identical", "lossless/divergences", "lossless/unexplained"} & set(metrics)
    assert "tokens_per_round.replay" not in metrics  # a strict replay would count too many rounds
    assert metrics["account/alpha"] == pytest.approx(metrics["alpha.text"], rel=1e-12)
    assert metrics["alpha.text"] == pytest.approx(metrics["alpha.mle"], abs=0.1)
    assert any(note.startswith("Lossy:") for note in summary["notes"])

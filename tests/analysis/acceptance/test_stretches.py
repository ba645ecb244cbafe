"""Stretches of the text: the likelihood against enumeration, its limits against theory, predictions of other gammas."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
from fixtures import simulated_rounds as simulation
from oracles.rounds import expected_rounds, markov_tokens_per_round

from specdec.analysis.acceptance import prediction as P
from specdec.analysis.acceptance import stretches as S
from specdec.analysis.acceptance.laws import rounds_of_texts
from specdec.analysis.acceptance.prediction_section import one_sentence
from specdec.analysis.rounds import Arms


def trace_of(texts, gamma, most):
    """Make the trace of texts given as lists of (offered, accepted); each text ends after its last round."""
    lines = []
    for text, rounds in enumerate(texts):
        left = sum(accepted + 1 for _, accepted in rounds)
        for offered, accepted in rounds:
            lines.append((text, text, offered, accepted, accepted < offered, min(left - 1, gamma), accepted + 1))
            left -= accepted + 1
    names = ("text", "prompt", "offered", "accepted", "rejected", "room", "committed")
    return S.make_trace(dict(zip(names, np.array(lines).T, strict=True)), most)


def by_enumeration(model, rounds, gamma):
    """Return the chance of a text's rounds at each level, over all sequences of kinds, a kind for every token."""
    size, kinds = sum(accepted + 1 for _, accepted in rounds), model.start.shape[1]
    by_level = []
    for level in range(len(S.LEVELS)):
        total = 0.0
        for path in product(range(kinds), repeat=size + 1):  # the kind after the last token is summed over
            chance, at, left = model.start[level, path[0]], 0, size
            for offered, accepted in rounds:
                least = model.least[level, :, path[at]]
                chance *= least[offered] - (0 if offered == min(left - 1, gamma) else least[offered + 1])
                for k in range(accepted):
                    chance *= model.accept[level, k, path[at + k]]
                if accepted < offered:
                    chance *= 1 - model.accept[level, accepted, path[at + accepted]]
                for step in range(at, at + accepted + 1):
                    chance *= model.change[level, path[step], path[step + 1]]
                at, left = at + accepted + 1, left - accepted - 1
            total += chance
        by_level.append(total)
    return np.array(by_level)


@pytest.fixture(scope="module")
def small():
    family = S.Family(2, 3, offers=True, centre=1.5)
    parameters = np.random.default_rng(0).normal(size=family.size)
    texts = [[(3, 1), (0, 0), (2, 2), (1, 0), (0, 0)], [(3, 3), (1, 1), (0, 0)]]
    return family, parameters, texts


def test_likelihood_is_the_sum_over_all_levels_and_kinds(small):
    family, parameters, texts = small
    model = family.stretches(parameters[None])
    trace = trace_of(texts, 3, 2)
    value, _ = S.Likelihood(family, trace).by_prompt(parameters)
    mean = 2.5 * np.tanh(parameters[7] * (np.log([8.0, 7.0]) - 1.5) / 2.5)  # drift: the eighth
    law = np.exp(-((S.LEVELS - mean[:, None]) ** 2) / 2)
    law /= law.sum(axis=1, keepdims=True)
    summed = [law[text] @ by_enumeration(model, rounds, 3) for text, rounds in enumerate(texts)]
    assert value == pytest.approx(np.log(summed).sum(), abs=1e-9)


def test_a_level_raises_acceptance_and_draws_into_easier_kinds():
    family = S.Family(3, 2, offers=False, centre=0.0)
    parameters = np.zeros((1, family.size))
    parameters[0, 8:11] = -1, 0, 1
    plain = family.stretches(parameters)
    np.testing.assert_allclose(plain.change, 1 / 3)  # without spread and pull all levels are one
    np.testing.assert_allclose(plain.accept, plain.accept[:1].repeat(len(S.LEVELS), axis=0))
    parameters[0, 12], parameters[0, 14] = 0.5, 0.8  # spread and pull
    model = family.stretches(parameters)
    at = int(np.flatnonzero(S.LEVELS == 2)[0])
    np.testing.assert_allclose(model.accept[at, 0], 1 / (1 + np.exp(-np.array([0.0, 1.0, 2.0]))))
    np.testing.assert_allclose(model.change[at, 0], np.exp([0, 0.8, 1.6]) / np.exp([0, 0.8, 1.6]).sum())


def test_slopes_of_the_likelihood_by_prompt(small):
    family, parameters, texts = small
    likelihood = S.Likelihood(family, trace_of(texts, 3, 2))
    _, slopes = likelihood.by_prompt(parameters)
    for text, rounds in enumerate(texts):
        alone = S.Likelihood(family, trace_of([rounds], 3, 1))
        for index, step in enumerate(1e-4 * np.eye(family.size)):
            rise = (alone.by_prompt(parameters + step)[0] - alone.by_prompt(parameters - step)[0]) / 2e-4
            assert slopes[text, index] == pytest.approx(rise, abs=1e-6)


def test_long_texts_are_cut_into_pieces_that_keep_every_round(monkeypatch, small):
    monkeypatch.setattr(S, "PIECE", 3)
    trace = trace_of([*small[2], [(3, 0)] * 8], 3, 3)
    assert (trace.rounds >= 0).sum() == 5 + 3 + 8 and trace.first.sum() == 3 and len(trace.rounds) == 6
    assert sorted(trace.text) == [0, 0, 1, 2, 2, 2] and trace.lengths.tolist() == [8, 7, 8]
    kept = trace.codes[trace.rounds[trace.text == 1][0]]
    assert kept[:, :3].tolist() == [[3, 3, 0], [1, 1, 0], [0, 0, 0]]


def test_a_refit_begins_at_the_maximum_and_not_where_the_mean_was_put_right(monkeypatch):
    """Texts of two kinds that no level follows can shift acceptance far; climbing from there ends in another place."""
    monkeypatch.setattr(S, "KINDS", (1, 2))
    generator = np.random.default_rng(0)
    texts = [
        [(4, int(accepted)) for accepted in np.minimum(generator.geometric(1 - chance, size=30) - 1, 4)]
        for chance in (0.9, 0.3) * 15
    ]
    trace = trace_of(texts, 4, len(texts))
    fit = S.fit_stretches(4, False, trace)
    assert fit.family.kinds == 2
    shifted = fit.family.raised(fit.likeliest, 4.0)
    again = S.fit_stretches(4, False, trace, replace(fit, parameters=shifted))
    likelihood = S.Likelihood(fit.family, trace)  # flat along some parameters, which processors round into other ends
    assert likelihood.negative(again.likeliest)[0] == pytest.approx(likelihood.negative(fit.likeliest)[0], abs=1e-3)
    expected, _ = again.taken[0].by_prompt(again.family, again.parameters)
    assert expected.sum() == pytest.approx(0, abs=0.1)  # rounds, of 900
    few = replace(fit.taken[0], gamma=1, rounds=fit.taken[0].lengths / 2)  # every draft of one token accepted
    ends = S.at_both_ends(fit, few)
    assert 0 < few.too_many(ends.family, ends.parameters) < few.too_many(fit.family, fit.parameters) / 2
    assert np.abs(ends.parameters).max() < 2 * S.BOUND


def chain(start, change, accept, depth):
    """Make the model of drafts that are accepted alike at every depth, with full offers."""
    least = np.ones((1, depth + 2, len(start)))
    least[:, -1] = 0
    return S.Stretches(
        np.array([change]), np.array([start]), np.broadcast_to(accept, (1, depth, len(start))).astype(float), least
    )


def test_one_kind_is_the_capped_geometric_model():
    model = chain([1.0], [[1.0]], [0.8], 7)
    rounds = rounds_of_texts(model.moves(5), model.start, np.arange(129))
    np.testing.assert_allclose(rounds[0], expected_rounds(0.8, 5, 128))


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_kinds_that_accept_always_or_never_are_the_markov_chain(gamma):
    a01, a11 = 0.5, 0.9
    model = chain([0.5, 0.5], [[1 - a01, a01], [1 - a11, a11]], [0.0, 1.0], 6)
    rounds = rounds_of_texts(model.moves(gamma), model.start, np.arange(1001))[0]
    assert 256 / (rounds[512] - rounds[256]) == pytest.approx(markov_tokens_per_round(a01, a11, gamma), abs=2e-5)
    law = S.stationary(model.moves(gamma).sum(axis=1))
    tokens = np.einsum("bi,bkij,k->", law, model.moves(gamma), np.arange(1, gamma + 2))
    assert tokens == pytest.approx(markov_tokens_per_round(a01, a11, gamma), abs=1e-6)


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_drafts_behind_whole_ones_have_a_chance_of_their_own(gamma):
    first, behind = 0.6, 0.9
    model = replace(chain([1.0], [[1.0]], [first], 7), behind=np.array([[behind]]))
    moves = model.moves_behind(gamma)
    after = S.stationary(moves.sum(axis=1))[0]
    whole = np.array([first, behind]) * first ** (gamma - 1)  # chance to accept a draft whole, behind either
    assert after @ whole == pytest.approx(after[1])
    tokens = 1 + np.array([first, behind]) * sum(first**k for k in range(gamma))
    assert np.einsum("i,kij,k->", after, moves[0], np.arange(1, gamma + 2)) == pytest.approx(after @ tokens)
    alike = replace(model, behind=np.array([[first]])).moves_behind(gamma)
    once = rounds_of_texts(model.moves(gamma), model.start, np.arange(64))
    np.testing.assert_allclose(rounds_of_texts(alike, np.array([[1.0, 0.0]]), np.arange(64)), once)


def test_nothing_offered_is_no_whole_draft():
    model = replace(chain([1.0], [[1.0]], [0.5], 2), least=np.zeros((1, 4, 1)), behind=np.array([[0.9]]))
    model.least[:, 0] = 1.0  # always silent
    moves = model.moves_behind(2)
    assert moves[0, 0, :, 0].tolist() == [1.0, 1.0] and moves[0, :, :, 1].sum() == 0


def lookups(prompts, tokens, gamma, first, behind):
    """Simulate drafts whose tokens are accepted with chance `first`, the first behind a whole draft with `behind`."""
    generator, lines = np.random.default_rng([7, gamma]), []
    for prompt in range(prompts):
        left, begin = tokens, first
        while left:
            accepted = 0
            while accepted < min(gamma, left - 1) and generator.random() < (first if accepted else begin):
                accepted += 1
            offered = min(gamma, left - 1)
            begin = behind if 0 < accepted == offered else first
            lines.append((f"p{prompt:05d}", offered, accepted, offered - accepted > 0, accepted + 1, left))
            left -= accepted + 1
    columns = ["prompt", "offered", "accepted", "rejected", "committed", "tokens_left"]
    rounds = pd.DataFrame(lines, columns=columns).assign(gamma=gamma, repeat=0, cell="x", method=simulation.METHOD)
    return rounds.assign(rejected=rounds["rejected"] * 1, round=rounds.groupby("prompt").cumcount())


def test_the_smallest_gamma_tells_what_the_largest_hides(monkeypatch):
    """At gamma 12 hardly a draft is accepted whole, so that only gamma 1 shows how well the ones behind do."""
    monkeypatch.setattr(S, "KINDS", (1,))
    monkeypatch.setattr(P, "SPLITS", 2)
    found = P.predict(Arms.of(pd.concat([lookups(60, 200, gamma, 0.5, 0.8) for gamma in (1, 2, 3, 12)])), refits=50)
    errors = {model: table.set_index("gamma") for model, table in found.table.groupby("model")}
    one, both = errors["stretches"], errors["stretches.ends"]
    assert one.loc[1, "error"] < -0.05 and one.loc[2, "error_high"] < 0
    assert both["error"].abs().max() < 0.015 and found.chosen == "stretches.ends"
    assert (both["error_low"] < both["error"]).all() and (both["error_low"] < 0.005).all()
    assert (both["error_high"] > -0.005).all() and both["error_high"].max() < 0.05


@pytest.mark.slow
def test_every_gamma_is_predicted_where_the_formula_and_markov_miss(monkeypatch):
    """Drafts wear off with depth, on prompts that differ."""
    monkeypatch.setattr(S, "KINDS", (1, 2))
    monkeypatch.setattr(P, "SPLITS", 2)
    tables = [simulation.falling(120, 250, gamma, 0, (12, 3), 0.85, tokens=250) for gamma in (1, 2, 5, 12)]
    found = P.predict(Arms.of(pd.concat(tables)), replicates=20, refits=20)
    errors = {model: table.set_index("gamma") for model, table in found.table.groupby("model")}
    stretches = errors["stretches"]
    assert stretches["error"].abs().max() < 0.015
    assert ((stretches["error_low"] < 5e-3) & (stretches["error_high"] > -5e-3)).all()
    assert (stretches["error_high"] - stretches["error_low"]).max() < 0.08
    assert ((stretches["split_low"] <= stretches["error"]) & (stretches["error"] <= stretches["split_high"])).all()
    assert min(errors[model]["error"].abs().max() for model in ("capped_geometric.mle", "markov")) > 0.05
    ends = errors["stretches.ends"]  # where drafts are accepted alike behind whole ones, it predicts no worse
    assert ends["error"].abs().max() < 0.015 and (ends["error_high"] - ends["error_low"]).max() < 0.08
    assert found.chosen == "stretches.ends" and found.splits == 2 and found.luck < 0.1
    assert one_sentence(found).startswith("Capped geometric, for the drafts that were offered, ")


def test_halves_share_the_lengths_of_their_texts(monkeypatch):
    monkeypatch.setattr(P, "SPLITS", 5)
    tokens = np.random.default_rng(1).pareto(1.2, size=101) * 60
    sides = P._sides(tokens, 0)
    assert sides.shape == (5, 101) and len(np.unique(sides, axis=0)) == 5
    order = np.argsort(tokens)
    assert (sides[:, order][:, 0:100:2] != sides[:, order][:, 1:100:2]).all()
    for prompts, seed in product((2, 3), range(8)):  # split once, into halves that hold something
        (side,) = P._sides(np.arange(prompts), seed)
        assert set(side) == {0, 1}


def test_only_the_smallest_and_the_largest_gamma_are_read_and_replay_is_not_ranked():
    """Replay has seen the texts that the others predict; few rounds have no stretches."""
    parts = {gamma: simulation.markov(10, 20, gamma, 3, 0.4, 0.8) for gamma in (1, 3, 6)}
    rounds = pd.concat(parts.values())
    sums = rounds.groupby(["gamma", "prompt"], as_index=False).agg(
        tokens=("committed", "sum"), rounds=("round", "size")
    )
    options = {"replay": sums, "replicates": 20, "refits": 0}
    whole, texts = P.predict(Arms.of(rounds), **options), Arms.of(rounds).texts
    ends = {(simulation.METHOD, gamma): partial(parts.__getitem__, gamma) for gamma in (1, 6)}
    found = P.predict(Arms({**ends, (simulation.METHOD, 3): pytest.fail}, texts), **options)
    pd.testing.assert_frame_equal(found.table, whole.table)
    assert "replay" not in set(whole.models["model"]) and "replay" in set(whole.table["model"])
    assert whole.read_off["worst_error"].tolist() == pytest.approx([0.0])
    assert "fewer than 60 rounds" in whole.left_out["stretches"] and whole.chosen == "markov"
    with pytest.raises(ValueError, match="replay at gamma 1 lacks prompts"):
        P.predict(Arms.of(rounds), replay=sums[sums["prompt"] != "p00003"], replicates=10, refits=0)

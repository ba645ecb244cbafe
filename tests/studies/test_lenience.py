"""The study on a table target: alphas against the laws by hand, and the rules in live decoding."""

import numpy as np
import pytest
from oracles.acceptance import beta

from specdec.replay.expected_rounds import TextReplay

LAW = [[0.45, 0.35, 0.2], [0.1, 0.35, 0.55], [0.5, 0.2, 0.3]]
TOKENS = "prompts.tokens=[[0,1,2,0,1,2],[1,2,2,1,2],[2,0,1,2,0]]"
SMALL = (f"target.law={LAW}", TOKENS, "study.others=[]", "study.leniences=[0.5,0.1]", "structure.gamma=3")
NGRAM = ("drafter=ngram", "measurement.max_new_tokens=40")


@pytest.fixture
def on_table(study, tmp_path):
    """The study on a table, with a bigram model fitted on a few tokens."""
    (tmp_path / "corpus.jsonl").write_text('{"tokens": [0, 1, 2, 0, 1, 1, 2, 2, 0, 1, 0, 2, 2, 1]}\n')
    bigram = ("drafter=bigram", "drafter.corpus=corpus.jsonl", "drafter.field=tokens", "measurement.max_new_tokens=40")

    def run(*overrides, drafter=bigram):
        return study("lenience", *drafter, *SMALL, *overrides)

    return run


@pytest.mark.slow
def test_every_rule_has_its_texts_and_alphas_keep_their_bounds(on_table):
    found, tables = on_table("study.repeats=2")
    outputs, alphas = tables["outputs"], tables["alphas"]
    cells = {(form, lenience) for form in ("sampled", "greedy") for lenience in (0.0, 1.0, 0.5, 0.1)}
    assert set(outputs[["form", "lenience"]].itertuples(index=False, name=None)) == cells
    assert (outputs.groupby(["form", "lenience"]).size() == 3 * 2).all() and (outputs["tokens"] == 40).all()
    plain = outputs[outputs["lenience"] == 0.0]
    assert (plain["rounds"] == 40).all() and (plain["offered"] == 0).all()
    sums = alphas.groupby(["form", "lenience"])[["chance", "positions"]].sum()
    assert (sums["positions"] == 3 * 40).all()
    alpha = sums["chance"] / sums["positions"]
    for form in ("sampled", "greedy"):
        assert alpha[form, 1.0] <= alpha[form, 0.5] <= alpha[form, 0.1] <= 1
    assert alpha["sampled", 0.5] <= alpha["sampled", 1.0] / 0.5
    strict = outputs[(outputs["lenience"] == 1.0) & (outputs["form"] == "sampled")]
    assert strict["tv"].max() < 1e-4 and strict["otherwise"].max() < 1e-4  # lossless, up to rounding
    loose = outputs[(outputs["lenience"] == 0.1) & (outputs["form"] == "sampled")]
    assert (loose["tv"] > 1).all() and (loose["otherwise"] > 0).all()
    assert loose["rounds"].sum() < strict["rounds"].sum()
    assert found.metrics["lenience/sampled.tokens_per_round.0.1"] == loose["tokens"].sum() / loose["rounds"].sum()


@pytest.mark.slow
def test_alpha_is_the_mean_of_the_rules_chance_along_the_plain_text(on_table, monkeypatch):
    """A point-mass drafter: sum min(p / l, q) is min(1, p / l) of its token, and greedily 0 or 1."""
    seen = []

    def spy(replay, rule):
        along = original(replay, rule)
        seen.append((replay.target.sampling.temperature, tuple(replay.request.prompt), tuple(replay.text), along))
        return along

    original = TextReplay.agreement
    monkeypatch.setattr(TextReplay, "agreement", spy)
    _, tables = on_table("study.forms=[sampled]", drafter=NGRAM)
    assert len(seen) == 3 * 3 and {each[0] for each in seen} == {1.0}
    law = np.array(LAW)
    for place, (_, prompt, text, along) in enumerate(seen):
        lenience = (1.0, 0.5, 0.1)[place % 3]
        lasts = [prompt[-1], *text[:-1]]
        reachable = [{0.0, *beta(law[last], np.eye(3), lenience)} for last in lasts]
        for value, known in zip(along.beta, reachable, strict=True):
            assert min(abs(value - each) for each in known) < 1e-6
        line = tables["alphas"].iloc[place]
        assert (line["lenience"], line["chance"]) == (lenience, pytest.approx(sum(along.beta)))

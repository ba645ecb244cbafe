"""The study on a table target and on a tiny model: its arms are the rules, and every figure can be had another way."""

import math

import pytest
import torch

SMALL = ("study.temperatures=[0.5,1.0]", "study.epsilons=[0.09,0.3]", "study.epsilon_temperature=1.0")
SHAPE = ("structure=tree", "structure.nodes=6", "structure.depth=3")
LAW = [[0.45, 0.35, 0.2], [0.1, 0.35, 0.55], [0.5, 0.2, 0.3]]
TABLE = (f"target.law={LAW}", "prompts.tokens=[[0,1,2,0,1,2],[1,2,2,1,2],[2,0,1,2,0]]")
NGRAM = ("drafter=ngram", "~drafter.drafts")  # what the text has said before
ON_TABLE = ("typical_acceptance", *SMALL, *SHAPE, *TABLE, *NGRAM)
ARMS = {
    (0.0, "plain", 0.0),
    (0.0, "greedy", 0.0),
    *((temperature, rule, 0.0) for temperature in (0.5, 1.0) for rule in ("plain", "rejection")),
    *((temperature, "typical", 0.09) for temperature in (0.5, 1.0)),
    (1.0, "typical", 0.3),
}


@pytest.mark.slow
def test_every_rule_has_its_texts(study):
    found, tables = study(*ON_TABLE, "study.repeats=2")
    outputs = tables["outputs"]
    keys = ["temperature", "rule", "epsilon"]
    assert set(outputs[keys].itertuples(index=False, name=None)) == ARMS
    assert (outputs.groupby(keys).size() == 3 * 2).all() and (outputs["tokens"] == 24).all()
    plain = outputs[outputs["rule"] == "plain"]
    assert (plain["rounds"] == plain["tokens"]).all() and (plain["offers"] == 0).all()
    lossless = outputs["rule"].isin(["plain", "greedy", "rejection"])
    assert (outputs.loc[lossless, ["tv", "otherwise"]] == 0).all(axis=None)
    typical = outputs[~lossless]
    assert typical["tv"].between(0, typical["tokens"]).all() and (typical["tv"] > 0).any()
    assert (typical["otherwise"] > 0).any() and (typical["otherwise"] <= typical["offers"]).all()
    # Greedy text is the same with and without drafts, and likelier than what is sampled.
    cold = outputs[outputs["temperature"] == 0].pivot_table(index="stream", columns="rule", values="log_likelihood")
    assert cold["plain"].tolist() == pytest.approx(cold["greedy"].tolist())
    # Sampling repeats with other numbers.
    warm = outputs[(outputs["rule"] == "plain") & (outputs["temperature"] == 1.0)]
    assert warm.groupby("stream")["log_likelihood"].nunique().max() == 2
    assert tables["settings"].to_dict("records") == [{"epsilon": 0.09, "delta": 0.3, "epsilon_temperature": 1.0}]
    assert found.metrics["typical_acceptance/typical.tokens_per_call.1"] == pytest.approx(
        typical.query("temperature == 1 and epsilon == 0.09").pipe(lambda t: t["tokens"].sum() / t["rounds"].sum())
    )


@pytest.mark.slow
def test_plain_text_has_the_likelihood_that_its_temperature_gives(study):
    """Mean log-likelihood at temperature 1 is minus the entropy rate; five standard errors of 1,200 tokens."""
    _, tables = study(*ON_TABLE, "study.repeats=4", "measurement.max_new_tokens=100", "study.epsilons=[]")
    plain = tables["outputs"].query("rule == 'plain' and temperature == 1")
    law = torch.tensor(LAW, dtype=torch.float64)
    stationary = torch.linalg.matrix_power(law, 200)[0]
    rate = float((stationary * torch.special.entr(law).sum(-1)).sum())
    assert plain["log_likelihood"].sum() / plain["tokens"].sum() == pytest.approx(-rate, abs=5 * 0.5 / math.sqrt(1200))

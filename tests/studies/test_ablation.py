"""Study `ablation`: its histograms add up to the rounds, rows and tokens of the replay, and bad input."""

import pytest

SMALL = ("structure.k=4", "structure.w=3")


@pytest.mark.slow
def test_histograms_add_up(study, tiny_target):
    found, tables = study("ngrammys_ablation", *tiny_target, *SMALL)
    replay, histograms = tables["replay"], tables["histograms"]
    by_stream = replay.set_index("stream").sort_index()
    rounds = by_stream["rounds"]
    accepted = histograms[histograms["histogram"] == "accepted"]
    assert (accepted.groupby("stream")["count"].sum() == rounds).all()
    tokens = (accepted["value"] * accepted["count"]).groupby(accepted["stream"]).sum()
    assert (tokens == by_stream["accepted"]).all()
    won = accepted[accepted["strategy"] != ""].groupby(["stream", "strategy"])["count"].sum()
    ranks = histograms[histograms["histogram"] == "rank"].groupby(["stream", "strategy"])["count"].sum()
    assert (won == ranks).all() and len(won) == len(ranks) > 0
    rows = histograms[histograms["histogram"] == "allotment"]
    assert (rows["value"] * rows["count"]).sum() == replay["paths"].sum() <= 4 * rounds.sum()
    parts = {name.split("/")[1].split(".")[0] for name in found.metrics if name.startswith("ablation/") and "." in name}
    assert parts == {"ngram", "model_bigram"}
    assert found.metrics["ablation/tokens_per_call"] == pytest.approx(replay["tokens"].sum() / rounds.sum())


def test_texts_too_short_for_any_draft(study):
    found, _ = study("ngrammys_ablation", *SMALL, "measurement.max_new_tokens=1")
    assert "proposed nothing" in found.sections[0].text[0] and found.metrics == {}

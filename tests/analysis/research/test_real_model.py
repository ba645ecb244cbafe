"""Sentences and verdicts on a real model, from made measurements whose answers are known."""

import json

import pytest

from specdec.analysis.account.gap_account import FACTORS
from specdec.analysis.research import claims, committed, grounded_gain, real_model

PROMPTS = [f"p{number}" for number in range(20)]


def timed(prompts, name, speeds, **more):
    """A line of `decoding`, whose plain decoding takes a second for each of 10 tokens in each of 20 prompts."""
    plain = {"tokens": [10] * 20, "rounds": [10] * 20, "seconds": [10.0] * 20, "verify": [9.0] * 20}
    arms = {
        gamma: plain | {"rounds": [5] * 20, "seconds": [10 / value * (1 + 0.01 * (at % 2)) for at in range(20)]}
        for gamma, value in speeds.items()
    }
    line = {"part": "decoding", "set": prompts, "temperature": 0, "name": name, "gamma": 4, "prompts": PROMPTS}
    return {**line, "baseline": plain, "arms": arms, "metrics": {"lossless/identical": 1.0}, **more}


def walked(errors):
    """A line of `along` at three gammas; `errors` of the formula, all others are right."""
    right = [[0.0, -0.01, 0.01]] * 3
    return {
        **{"part": "along", "set": "gsm8k", "temperature": 0, "name": "ngram", "prompts": PROMPTS, "tokens": 200},
        **{"gammas": [1, 2, 3], "tokens_per_round": [1.2, 1.3, 1.4], "intervals": [[1.1, 1.5]] * 3},
        "errors": {"capped_geometric.text": errors, "markov": right, "stretches": right, "stretches.ends": right},
    }


@pytest.fixture
def sections(tmp_path):
    def read(*lines):
        path = tmp_path / "real_model.json"
        path.write_text(json.dumps({"figures": lines}), encoding="utf-8")
        return real_model.real_sections(path)

    return read


def test_what_pays_is_said_for_each_set_with_the_best_draft_length(sections):
    pays, *_ = sections(
        timed("gsm8k", "ngram", {"2": 1.2, "4": 1.5}),
        timed("gsm8k", "suffix", {"4": 0.8}),
        timed("humaneval", "ngram", {"4": 0.9}, as_generate=[19, 20]),
    )
    answer = pays.text[0]
    assert "19 of 20 plain texts are token by token" in answer
    assert "on GSM8K, greedy ngram with drafts of 4, 1.49 (" in answer and "suffix" not in answer
    assert "on HumanEval, greedy none beyond chance: the best is ngram with drafts of 4, 0.90 (" in answer
    assert "take an eighth less" not in pays.text[1]
    ((_, table),) = pays.tables
    assert table["tokens per round"].tolist() == ["2.00 (2.00 to 2.00)"] * 3


def test_a_session_before_calls_on_one_token_became_faster_is_named(sections):
    before, now = timed("gsm8k", "ngram", {"4": 1.5}, date="2026-11-28"), timed("mt_bench", "ngram", {"4": 1.5})
    assert "measured before, on GSM8K, greedy, divide" in sections(before, now)[0].text[1]


def test_the_worst_error_of_the_formula_is_said_with_its_gamma_and_what_takes_most_of_the_speedup(sections):
    account = {"account/draft": 0.95, "account/verify": 0.6, "speedup": 1.0, "speedup.capped_geometric": 2.0}
    line = walked([[0.01, 0.0, 0.02], [0.08, 0.05, 0.11], [-0.04, -0.06, -0.02]])
    _, formula, *_ = sections(line, timed("gsm8k", "ngram", {"4": 1.0}, metrics=account))
    ((_, table),) = formula.tables
    assert table["capped geometric: worst"].tolist() == ["+8.0% (+5.0% to +11.0%)"]
    assert table["capped geometric: at gamma"].tolist() == [2]
    assert "promises, 50% is measured" in formula.text[-1] and FACTORS["verify"].cause in formula.text[-1]


def test_advice_is_right_where_it_stands_on_the_same_side_of_one(sections):
    advised = {"2": [1.1, 1.0, 1.2], "4": [1.3, 1.2, 1.4], "8": [1.0, 0.9, 1.1]}
    _, _, advice, *_ = sections(timed("gsm8k", "ngram", {"2": 0.9, "4": 1.5}, advised=advised))
    assert "rightly in 1 of 2 cases" in advice.text[0]
    assert advice.tables[0][1]["foretold"].tolist() == ["1.10 (1.00 to 1.20)", "1.30 (1.20 to 1.40)"]


def test_a_feature_drafter_is_told_of_beside_heads_where_it_took_turns_with_them(sections):
    quantities = {"tokens_per_s": 30.0, "tokens_per_round": 1.6, "speedup": 0.8}
    for beside in ((), ("eagle",)):
        told = [("baseline", "tokens_per_s", 37.0), (grounded_gain.PAIR, "speedup.ratio", 0.75)]
        told += [(grounded_gain.PAIR, "tokens_per_round.difference", 0.2)]
        told += [(name, *pair) for name in ("medusa", "grounded", *beside) for pair in quantities.items()]
        figures = [
            {"method": method, "category": "all", "figure": figure, "value": value, "low": value, "high": value}
            for method, figure, value in told
        ]
        session = {"part": "heads", "set": "mt_bench", "temperature": 0, "name": "grounded", "count": 40}
        *_, heads, _, _ = sections({**session, "figures": figures})
        assert heads.tables[0][1]["drafter"].tolist() == ["grounded", "medusa", *beside]
        assert len(heads.text) == 1 + len(beside)
    assert (
        "0.80 (0.80 to 0.80) times as fast as plain decoding on 40 prompts of MT-Bench, greedy, with 1.60"
        in heads.text[1]
    )


def test_the_hours_of_sessions_are_said_of_those_that_wrote_them_down(sections):
    first = [timed("gsm8k", name, {"4": 1.5}, date="2026-11-29", minutes=30.0) for name in ("ngram", "suffix")]
    pays, *_ = sections(*first, timed("humaneval", "ngram", {"4": 1.5}, date="2026-11-29", minutes=60.0))
    assert pays.text[-1].endswith("how long 2 of its 2 sessions took: 1.5 hours together.")
    pays, *_ = sections(*first, timed("humaneval", "ngram", {"4": 1.5}))
    assert pays.text[-1].endswith("how long 1 of its 2 sessions took: 0.5 hours together.")
    _, formula, *_ = sections({**walked([[0.0, 0.0, 0.0]] * 3), "date": "2026-11-29", "minutes": 60.0})
    assert formula.text[-1].endswith("how long 1 of its 1 session took: 0.5 hours together, 2 at a time.")


def test_a_searched_tree_is_told_of_or_that_none_was_predicted_to_pay(sections):
    metrics = {"tree_search/tree.speedup.8": 1.1, "tree_search/tree.tokens_per_round.8": 1.7}
    metrics |= {"tree_search/chain.speedup.2": 0.9, "tree_search/chain.tokens_per_round.2": 1.5}
    chosen = {"tree_search/chosen.speedup": 1.2, "tree_search/chosen.nodes": 3.0, "tree_search/chosen.depth": 2.0}
    study = {"part": "study", "set": "mt_bench", "temperature": 0}
    *_, trees, _ = sections(
        {**study, "name": "tree_search_eagle", "metrics": metrics | chosen},
        {**study, "name": "tree_search_grounded", "metrics": metrics},
        {**study, "name": "bigram", "metrics": {}},
    )
    assert "for eagle one of 3 nodes and depth 2, 1.20 times as fast" in trees.text[0]
    assert "for grounded none, since plain decoding was predicted to be faster" in trees.text[0]
    table = trees.tables[0][1]
    assert table["structure"].tolist() == ["tree, nodes 8", "chain, gamma 2"] * 2
    assert table["speedup"].tolist() == ["1.10", "0.90"] * 2


def test_the_fastest_block_is_told_of_beside_the_papers_and_a_bigram_alone(sections):
    grid = {"grid/best_k": 1.0, "grid/best_w": 4.0}
    for shape, speedup, tokens in (("best", 2.0, 1.96), ("10x10", 0.4, 3.0)):
        ends = {"": speedup, ".ci_low": speedup - 0.1, ".ci_high": speedup + 0.1}
        grid |= {f"grid/whole.{shape}.speedup{end}": value for end, value in ends.items()}
        grid[f"grid/whole.{shape}.tokens_per_call"] = tokens
    study = {"part": "study", "set": "humaneval", "temperature": 0}
    topk = {"topk/model_bigram.w2.best": 1.38, "topk/model_bigram.w2.best_k": 25.0}
    calls = {f"transition/t11_ms.{context}": 50.0 + context / 50 for context in (50, 1000)}
    for way, slowdown, tokens in (("", 9.0, 3.0), ("packed.", 6.0, 11.0)):
        calls |= {f"transition/{way}slowdown.10x10.{context}": slowdown for context in (50, 1000)}
        calls |= {f"transition/{way}tokens_within_10pct.{context}": tokens for context in (50, 1000)}
    *_, blocks = sections(
        {**study, "name": "ngrammys_grid", "metrics": grid},
        {**study, "name": "ngrammys_topk", "metrics": topk},
        {**study, "set": "gsm8k", "name": "ngrammys_grid", "metrics": grid, "date": "2026-11-28"},
        {**study, "name": "phase_transition", "metrics": calls, "slowdowns": {"1000": [9.0], "50": [7.0]}},
    )
    assert blocks.text[0].partition("measured before, on ")[2].startswith("GSM8K, greedy, divide")
    assert "is (1, 4) on HumanEval, greedy, 2.00 (1.90 to 2.10) times as fast" in blocks.text[0]
    assert "where (10, 10) is 0.40 (0.30 to 0.50); (1, 4) on GSM8K" in blocks.text[0]
    table = blocks.tables[0][1]
    assert table["tokens a call, (10, 10)"].tolist() == ["3.00", "3.00"]
    assert table["tokens a call, bigram alone"].tolist() == ["1.38 in 25 rows", "–"]
    table = blocks.tables[1][1]
    assert table["in the cache"].tolist() == ["50", "1000"] and table["(1, 1), ms"].tolist() == ["51", "70"]
    assert table["(10, 10), in rows"].tolist() == ["9.0"] * 2 and table["tokens, packed"].tolist() == ["11"] * 2


def test_what_is_not_measured_names_the_command(sections, tmp_path):
    pays, formula, advice, heads, trees, blocks = sections(walked([[0.01, 0.0, 0.02]] * 3))
    assert all("-k decoding" in section.text[0] and not section.tables for section in (pays, advice))
    assert "-k heads" in heads.text[0] and formula.figures
    assert all("-k study" in section.text[0] for section in (trees, blocks))
    assert all(real_model.COMMAND in section.text[0] for section in real_model.real_sections(tmp_path / "none.json"))


def test_a_real_model_that_measures_what_the_pocket_target_did_gets_its_verdicts(tmp_path):
    """A claim whose run is missing has none, and does not fall back on the other model's."""
    runs, path = committed.load_results(), tmp_path / "real_model.json"
    places = {  # run: part, prompts, temperature, name
        "small_model": ("decoding", "humaneval", 0, "layer_skip"),
        "small_model_sampled": ("decoding", "humaneval", 1, "layer_skip"),
        "small_model_docs": ("decoding", "mt_bench", 0, "layer_skip"),
    }
    for name in ("ngrammys_ablation", "ngrammys_grid", "phase_transition"):
        places[name] = ("study", "humaneval", 0, name)
    keys = ("part", "set", "temperature", "name")
    lines = [{**runs[run], **dict(zip(keys, place, strict=True))} for run, place in places.items()]
    sessions = grounded_gain.sessions()
    for prompts, name in (("mt_bench", "mt_bench"), ("humaneval", "stdlib_code")):
        figures = [row for row in sessions if row["prompts"] == name]
        session = {"set": prompts, "temperature": 0, "name": "grounded", "count": figures[0]["count"]}
        lines.append({"part": "heads", **session, "figures": figures})
    path.write_text(json.dumps({"figures": lines}), encoding="utf-8")
    there, here = claims.claims_on_real_model(path=path), {each.claim: each for each in claims.claims()}
    assert {each.paper for each in there.values()} == {claims.LEVIATHAN, claims.CHEN, claims.GROUNDED, claims.NGRAMMYS}
    assert {claim: each.verdict for claim, each in there.items()} == {claim: here[claim].verdict for claim in there}
    assert "α is higher at temperature 0 than at 1, for all models" not in there
    (domain,) = [each for claim, each in there.items() if "domain" in claim]
    assert "HumanEval over MT-Bench" in domain.ours

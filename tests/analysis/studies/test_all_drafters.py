"""The findings of `all_drafters` for rounds whose times are known."""

import pandas as pd
import pytest

from specdec.analysis.sections import About, findings
from specdec.analysis.studies.all_drafters import frontier, spread

ABOUT = About("model (float32), machine", "prompts", simulated=False, replicates=300, seed=0)
ARMS = {  # drafter: tokens per round, seconds of a draft, of training, lossless, outcome
    "ngram": (2.0, 0.0, 0.0, True, "same"),
    "heads": (3.0, 0.2, 600.0, True, "same"),
    "worse": (2.0, 0.5, 600.0, True, "near-tie"),
    "typical": (3.5, 5.0, 60.0, False, "differs"),
    "foreign": (1.5, 0.1, float("nan"), True, "same"),
}


def tables(prompts: int = 6, wrong: str = "") -> dict[str, pd.DataFrame]:
    arms, live = [], []
    for name, (_, _, seconds, lossless, _) in ARMS.items():
        about = {"structure": "gamma 4", "nodes": 4, "parameters": 0, "weight_bytes": 2_000_000}
        trained = {"training_tokens": 1e6, "training_seconds": seconds}
        arms.append({"arm": name, "drafter": name, "setting": "default", "lossless": lossless, **about, **trained})
    for prompt in range(prompts):
        rounds = 100 + 10 * prompt
        for name, (per_round, draft, _, _, outcome) in {"baseline": (1.0, 0.0, 0, True, "same"), **ARMS}.items():
            wobble = 1 + 0.01 * ((prompt + len(name)) % 3)
            live.append(
                {
                    **{"repeat": 0, "arm": name, "stream": f"p{prompt}", "prompt": f"p{prompt}", "category": ""},
                    **{"tokens": per_round * rounds, "rounds": rounds, "nodes": 4 * rounds * (name != "baseline")},
                    **{"draft_s": draft * rounds, "verify_s": rounds * wobble},
                    "round_s": (1 + draft) * rounds * wobble,
                    "outcome": "differs" if name == wrong else outcome,
                }
            )
    skipped = pd.DataFrame(columns=["reason", "category", "count"])
    return {"arms": pd.DataFrame(arms), "live": pd.DataFrame(live), "skipped": skipped}


def test_speedups_are_those_of_the_times_and_words_follow_from_them():
    found = findings("all_drafters", tables(), ABOUT)
    for name, (per_round, draft, *_) in ARMS.items():
        assert found.metrics[f"all_drafters/{name}.tokens_per_round"] == pytest.approx(per_round)
        assert found.metrics[f"all_drafters/{name}.speedup"] == pytest.approx(per_round / (1 + draft), rel=0.02)
    leads, pays, outcomes = found.sections[0].text[:3]
    assert leads.startswith("Fastest: heads, speedup 2.5") and "told apart from all others; the next, ngram" in leads
    assert pays == "4 of 5 drafters pay beyond chance; slower than no drafter: typical."
    assert "18 of 24 outputs" in outcomes and "6 part from it at near-ties" in outcomes
    assert outcomes.endswith("none is unexplained. By its rule not lossless: typical.")
    of_wrong = findings("all_drafters", tables(wrong="heads"), ABOUT)
    first = of_wrong.sections[0]
    assert first.text[0].startswith(f"**{of_wrong.refuted}** Fastest: ngram, speedup") and "(heads)" in of_wrong.refuted
    assert "not explained: heads" in first.text[2] and "heads" not in of_wrong.sections[1].text[0]
    assert "heads" not in first.tables[0][1]["drafter"].tolist()
    assert of_wrong.metrics["all_drafters/heads.speedup"] == found.metrics["all_drafters/heads.speedup"]
    section = found.sections[1]
    assert section.text[0].startswith("What more training buys: ngram at 2.")
    assert "then heads at 2." in section.text[0] and "10 min" in section.text[0]
    assert "worse" not in section.text[0] and section.text[0].endswith("Without a record of their training: foreign.")
    ((_, shown),) = found.sections[-1].tables
    line = shown[(shown["method"] == "EAGLE") & (shown["GPU"] == "A100")].iloc[0]
    assert (line["drafter here"], line["tokens per round"], line["speedup"]) == ("eagle", "3.58", "2.10")


def test_repeats_that_are_alike_change_no_figure_and_no_interval():
    once, twice = tables(), tables()
    twice["live"] = pd.concat([twice["live"], twice["live"].assign(repeat=1)], ignore_index=True)
    one, other = (findings("all_drafters", each, ABOUT).metrics for each in (once, twice))
    assert len(one) >= 4 * len(ARMS) and other == pytest.approx(one)


def test_a_prompt_is_compared_with_its_own_baseline():
    """Prompts that are slow for all methods alike leave nothing uncertain about a speedup."""
    slow = tables()
    seconds = ["draft_s", "verify_s", "round_s"]
    live = slow["live"]
    live["verify_s"], live["round_s"] = live["rounds"], live["rounds"] + live["draft_s"]
    live[seconds] = live[seconds].mul(1 + live["prompt"].str[1:].astype(int), axis=0)
    metrics = findings("all_drafters", slow, ABOUT).metrics
    for name, (per_round, draft, *_) in ARMS.items():
        for end in ("", ".ci_low", ".ci_high"):
            assert metrics[f"all_drafters/{name}.speedup{end}"] == pytest.approx(per_round / (1 + draft)), (name, end)


def test_one_prompt_says_nothing_about_chance():
    section = findings("all_drafters", tables(prompts=1), ABOUT).sections[0]
    assert section.text[0].endswith("1 prompt is too few for a verdict, which needs 5.")
    assert set(section.tables[0][1]["held by"]) == {"–"}


def test_nothing_beats_a_place_of_the_frontier_and_names_do_not_cover_each_other():
    for costs, values, expected in (
        ([0, 1, 2], [1, 3, 2], [0, 1]),
        ([0, 0, 5], [1, 2, 2], [1]),
        ([3], [1], [0]),
        ([2, 1], [5, 4], [1, 0]),
    ):
        assert frontier(costs, values) == expected
    heights = spread([1.0, 1.01, 1.02, 3.0], 0.1)
    assert all(above - below >= 0.1 - 1e-12 for below, above in zip(heights, heights[1:], strict=False))
    assert sum(heights) == pytest.approx(6.03) and spread([1.0, 2.0], 0.1) == [1.0, 2.0]

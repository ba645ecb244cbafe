"""Figures of study lenience from small tables, computed another way."""

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.sections import About, findings
from specdec.analysis.studies.lenience import drafter_alphas, rules
from specdec.theory.capped_geometric import optimal_gamma

ABOUT = About("small_model on pocket (float32), a computer", "stdlib_code", False, 300, 1)
LENIENCES = (1.0, 0.5, 0.1)
ALPHAS = {  # drafter, form -> alpha at each lenience
    ("small_model", "sampled"): (0.6, 0.7, 0.9),
    ("small_model", "greedy"): (0.7, 0.7, 0.8),
    ("bigram", "sampled"): (0.2, 0.25, 0.4),
    ("bigram", "greedy"): (0.3, 0.3, 0.35),
}
GAMMA, CALL, STEP = 4, 0.020, 0.002


def tables(prompts=8):
    generator = np.random.default_rng(0)
    outputs, alphas = [], []
    for number in range(prompts):
        name = f"p{number}"
        for (drafter, form), values in ALPHAS.items():
            positions, noise = int(generator.integers(40, 80)), generator.normal(0, 0.3)
            for lenience, alpha in zip(LENIENCES, values, strict=True):
                alphas.append(
                    {"drafter": drafter, "own": drafter == "small_model", "form": form, "lenience": lenience}
                    | {"stream": name, "prompt": name, "positions": positions, "chance": alpha * positions + noise}
                )
                if drafter == "bigram":
                    continue
                rounds = int(generator.integers(20, 40))
                accepted = int(rounds * 4 * alpha / 2)
                outputs.append(line(form, lenience, name, rounds, accepted))
        outputs += [line(form, 0.0, name, 50, 0) for form in ("sampled", "greedy")]
    return {
        "outputs": pd.DataFrame(outputs),
        "alphas": pd.DataFrame(alphas),
        "settings": pd.DataFrame([{"gamma": 4.0, "temperature": 1.0}]),
        "skipped": pd.DataFrame(columns=["reason", "category", "count"]),
    }


def line(form, lenience, prompt, rounds, accepted):
    drafts, tokens = lenience > 0, rounds + accepted
    offered, loss = GAMMA * rounds * drafts, (1 - lenience) * drafts
    return {
        **{"form": form, "lenience": lenience, "repeat": 0, "stream": prompt, "prompt": prompt, "category": ""},
        **{"tokens": tokens, "rounds": rounds, "draft_s": STEP * offered, "verify_s": CALL * rounds},
        **{"seconds": CALL * rounds + STEP * offered, "offered": offered, "accepted": accepted},
        **{"rejected": rounds // 2, "offers": rounds * drafts, "log_likelihood": -1.5 * tokens},
        **{"tv": 0.2 * loss * tokens, "otherwise": 0.25 * rounds * loss},
    }


def test_every_figure_is_a_ratio_of_sums():
    made = tables()
    cells, prompts = rules(made["outputs"], made["alphas"], GAMMA, 300, 1)
    assert prompts == 8 and len(cells) == 8
    ours, alphas = made["outputs"], made["alphas"]
    for form in ("sampled", "greedy"):
        mine = ours[(ours["form"] == form) & (ours["lenience"] == 0.1)]
        of_text = alphas[alphas["own"] & (alphas["form"] == form) & (alphas["lenience"] == 0.1)]
        (row,) = cells[(cells["form"] == form) & (cells["lenience"] == 0.1)].to_dict("records")
        (strict,) = cells[(cells["form"] == form) & (cells["lenience"] == 1.0)].to_dict("records")
        alpha = of_text["chance"].sum() / of_text["positions"].sum()
        rate = mine["tokens"].sum() / mine["rounds"].sum()
        assert (row["alpha"], row["rate"]) == pytest.approx((alpha, rate))
        omega = sum(alpha**k for k in range(GAMMA + 1))
        assert (row["omega"], row["formula"]) == pytest.approx((omega, omega / (1 + GAMMA * STEP / CALL)))
        assert row["c"] == pytest.approx(STEP / CALL)
        # Plain decoding takes a call for each token, ours a call and four steps for each round.
        assert row["speedup"] == pytest.approx(rate * CALL / (CALL + GAMMA * STEP))
        assert row["mle"] == pytest.approx(mine["accepted"].sum() / (mine["accepted"] + mine["rejected"]).sum())
        assert row["tv"] == pytest.approx(0.18) and row["log_likelihood"] == pytest.approx(-1.5)
        assert (row["lead"], row["rise"]) == pytest.approx((rate - strict["rate"], alpha - strict["alpha"]))
        best = optimal_gamma(alpha, STEP / CALL)
        assert (row["best"], row["best_speedup"]) == pytest.approx((best.gamma, best.speedup))
        for name in ("alpha", "speedup", "formula"):
            assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    plain = cells[cells["lenience"] == 0.0]
    assert plain[["alpha", "mle", "omega", "formula", "best"]].isna().all(axis=None) and (plain["rate"] == 1).all()


def test_alphas_of_every_drafter_stand_beside_their_strict_ones():
    found = drafter_alphas(tables()["alphas"], 300, 1)
    assert found["drafter"].unique().tolist() == ["small_model", "bigram"]  # the run's own first
    for row in found.to_dict("records"):
        values = dict(zip(LENIENCES, ALPHAS[row["drafter"], row["form"]], strict=True))
        assert row["alpha"] == pytest.approx(values[row["lenience"]], abs=0.02)
        assert row["rise"] == pytest.approx(values[row["lenience"]] - values[1.0], abs=0.02)


def test_the_sections_say_what_the_numbers_say():
    found = findings("lenience", tables(), ABOUT)
    alphas, worth, loss = found.sections
    assert all(len(section.figures) == 1 for section in found.sections)
    assert "no more than 1.000 was possible" in alphas.text[0]
    assert "as in the paper, where it changes nothing" in alphas.text[1]
    sampled = alphas.tables[0][1]
    assert list(sampled.columns) == ["drafter", "l = 1", "l = 0.5", "l = 0.1"]
    assert sampled["drafter"].tolist() == ["small_model", "bigram"] and sampled["l = 0.1"][1].startswith("0.40")
    assert len(worth.tables[0][1]) == 6 and "The capped geometric gives" in worth.text[0]
    assert len(loss.tables[0][1]) == 8 and "0.180" in loss.text[0]
    metrics = {name.removeprefix("lenience/"): value for name, value in found.metrics.items()}
    assert metrics["sampled.alpha.0.1"] == metrics["alpha.small_model.sampled.0.1"]
    assert metrics["sampled.over_strict.1"] == 0
    found = findings("lenience", tables(prompts=1), ABOUT)
    assert not [name for name in found.metrics if ".ci_" in name]
    assert "on too few prompts" in found.sections[0].text[1]

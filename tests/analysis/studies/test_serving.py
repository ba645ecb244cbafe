"""Findings of study `serving` on tables whose numbers are known."""

from math import exp, inf, isnan
from unittest.mock import Mock

import pandas as pd
import pytest

from specdec.analysis.pages import notebook
from specdec.analysis.sections import About, findings
from specdec.analysis.studies.serving import (
    ALWAYS,
    NEVER,
    ServingNumbers,
    committed_sections,
    over_replications,
    simulation_values,
    stops_paying_at,
    write_committed,
)
from specdec.errors import UsageError

LOADS = (0.2, 0.6, 1.0)
ABOUT = About("grounded on pocket (bfloat16), a machine", "stdlib_code", False, 200, 0)
# Seconds of a token of each policy by load; a request has 10 tokens, and nobody waits.
TOKEN_S = {"none": (1.0, 2.0, 4.0), "gamma 2": (0.5, 1.75, 5.0), "adaptive": (0.5, 1.7, 4.0)}
CAPACITY = {"none": 1.0, "gamma 2": 0.8, "adaptive": 1.0}


def tables():
    served, steps, simulations, capacity = [], [], [], []
    for policy, seconds in TOKEN_S.items():
        for replication in range(5):
            capacity.append((policy, replication, 100, 1000, 100 / CAPACITY[policy]))
            for load, token_s in zip(LOADS, seconds, strict=True):
                keys = {"policy": policy, "load": load, "rate": load, "replication": replication}
                for number in range(4):
                    times = {"arrived": number, "admitted": number, "prefilled": number + 1.0, "first": number + 1.5}
                    ends = number + 1.0 + 10 * token_s * (1 + 0.01 * (replication - 2))
                    served.append({**keys, "number": number, **times, "finished": ends, "rounds": 5, "tokens": 10})
                gamma = {"none": 0, "gamma 2": 2}.get(policy, 2 if load < 0.5 else 0)
                batch = {0.2: 1, 0.6: 4, 1.0: 8}[load]
                steps.append({**keys, "batch": batch, "gamma": gamma, "steps": 20, "seconds": 2.0, "tokens": 40})
                simulations.append({**keys, "window_s": 4.0, "little": 1e-16, "queue_begin": 0, "queue_end": 1})
    unknown = dict.fromkeys(("error_median", "error_worst", "target_s"), float("nan"))
    recording = {
        **unknown, "texts": "texts", "unknown": 0.0, "prompt_tokens": 5.0, "output_tokens": 10.0, "cost": "a line",
        "draft_growth": 0.0, "overhead_growth": 1.0, "slots": 8, "arrivals": "Poisson arrivals", "requests": 4,
        "warmup": 1, "replications": 5, "target_factor": 2.0,
    }  # fmt: skip
    step_times = [(b, g, 1 + 0.2 * b * (g + 1), 1 + 0.5 * g) for g in (0, 2) for b in range(1, 9)]
    empty = pd.DataFrame({"batch": [], "gamma": [], "tokens": [], "steps": [], "seconds": []})
    return {
        "served": pd.DataFrame(served).assign(alone_s=11.0),
        "served_steps": pd.DataFrame(steps),
        "simulations": pd.DataFrame(simulations),
        "capacity": pd.DataFrame(capacity, columns=["policy", "replication", "requests", "tokens", "seconds"]),
        "recording": pd.DataFrame([recording]),
        "step_times": pd.DataFrame(step_times, columns=["batch", "gamma", "seconds", "tokens_per_round"]),
        "measured_batches": empty,
        "closed": empty,
        "skipped": pd.DataFrame({"reason": [], "category": [], "count": []}),
    }


@pytest.mark.parametrize(
    ("worse", "load"),
    [
        ((-0.5, -0.5, -0.5), ALWAYS),
        ((0.5, -0.5, -0.5), NEVER),
        ((-0.3, 0.1, 0.2), 0.2 + 0.4 * 0.75),
        ((0.0, 0.0, 0.5), 0.6),
        ((-0.1, 0.009, 0.5), 0.6),  # a disadvantage below a per cent is none
        ((0.0, 0.0, 0.0), ALWAYS),
    ],
)
def test_the_load_from_which_a_policy_is_worse(worse, load):
    assert stops_paying_at(LOADS, worse) == pytest.approx(load)


def test_replications_have_students_interval():
    """1 to 5: mean 3, deviation 1.581139, t with 4 degrees of freedom 2.776445; on the logarithm's scale."""
    found = over_replications([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * 1.581139 / 5**0.5
    assert (found.estimate, found.low, found.high) == pytest.approx((3, 3 * exp(-half / 3), 3 * exp(half / 3)))
    assert not over_replications([1.0, 2.0, 3.0, 4.0]).known
    assert not over_replications([1.0]).known and not over_replications([1.0, inf]).known
    assert isnan(over_replications([1.0, float("nan")]).estimate)


def test_values_of_a_simulation():
    """Plain decoding, the middle replication: a prefill of 1 s, a first round of half a second, tokens of 1 s."""
    by_run = simulation_values(tables()).set_index(["policy", "load", "replication"])
    expected = {"tpot": 1.0, "ttft": 1.5, "latency_p50": 11.0, "met": 1, "goodput": 10.0, "throughput": 10.0}
    expected |= {"batch": 1}  # tpot: from the end of the prefill, over all tokens
    assert by_run.loc[("none", 0.2, 2), list(expected)].to_dict() == pytest.approx(expected)
    late = by_run.loc[("none", 1.0, 1)]
    assert late["met"] == 0 and late["goodput"] == 0  # 41 s, and twice 11 s were the target
    told = tables()
    told["recording"]["target_s"] = 41.2
    values = simulation_values(told).set_index(["policy", "load"])["met"]
    assert values["none", 1.0].tolist() == [1, 1, 1, 0, 0]


def test_where_speculation_is_to_be_switched_off():
    found = ServingNumbers(tables())
    used = found.of("gamma 2").set_index("load")["used"]
    assert used[0.6] == pytest.approx(0.75) and used[1.0] >= 1
    assert found.best_fixed == "gamma 2"
    off = found.ends.loc["gamma 2"]
    # From -12.5% at 0.6 to +25% at 1.0, a third of the way; batches of 4 and 8 there.
    assert off["load"] == pytest.approx(0.6 + 0.4 / 3) and off["batch"] == pytest.approx(4 + 4 / 3)
    assert found.ends.loc["adaptive", "load"] == ALWAYS
    # Goodput: plain decoding is within 22 s at 0.6, and so is gamma 2; at 1.0 nobody is.
    assert off["goodput"] == ALWAYS
    # 2 tokens a round against 1: 2 (1 + 0.2 B) < 1 + 0.6 B from B = 6 on, where B = 5 is even.
    assert off["model_batch"] == 6


@pytest.mark.slow
def test_what_is_said():
    said = findings("serving", tables(), ABOUT)
    answer, over_load, latency, chosen, assumed = said.sections
    for text, words in (
        (answer.text[0], "should stop at a load of 0.73 (0.73 to 0.73)"),
        (answer.text[0], "drafts 2 tokens"),
        (answer.text[1], "0.50 times as long as without drafts at a load of 0.2, 1.00 times at the worst load"),
        (over_load.text[1], "none from 1 on, gamma 2 from 1 on, adaptive from 1 on"),
        (latency.text[0], "a load of 0.6, the largest that all serve"),
        (chosen.text[0], "2.00 tokens on average in steps of 1, 0.00 in steps of 8"),
        (" ".join(assumed.text), "adds 0% of a draft and 100% of the overhead"),
    ):
        assert words in text
    rows = latency.tables[0][1].set_index(["load", "policy"])
    assert rows.loc[("1", "gamma 2"), "latency p50, s"] == "–" and rows.loc[("1", "gamma 2"), "queue"] == "grows"
    assert said.metrics["serving/simulated.gamma2.switch_off_load"] == pytest.approx(0.6 + 0.4 / 3)
    assert "serving/simulated.gamma2.latency_p99.1" not in said.metrics
    assert said.curves["curve/serving/simulated.tpot.none"] == pytest.approx({20: 1.0, 60: 2.0, 100: 4.0})
    headings = [said for section in said.sections for said in (section.title, *(name for name, _ in section.tables))]
    assert all(heading.startswith("Simulated") for heading in headings)
    changed = tables()
    changed["served"].loc[changed["served"]["policy"] == "gamma 2", "finished"] += 100
    assert "no fixed gamma pays" in findings("serving", changed, ABOUT).sections[0].text[0]


def test_committed_results_are_shown_where_there_is_no_run(tmp_path, monkeypatch):
    said, path = findings("serving", tables(), ABOUT), tmp_path / "serving.json"
    facts = {"command": "c", "date": "today", "cpu": "a core", "clock": "by hand", "load_average": [1.0, 2.0]}
    for setting in ("later", "first"):
        write_committed(setting, said, facts, ["first", "later"], path)
    sections, titles = committed_sections(path), [said.sections[at].title for at in (0, -1)]
    assert [each.title for each in sections] == [f"{t} ({setting})" for setting in ("first", "later") for t in titles]
    assert sections[0].text[: len(said.sections[0].text)] == said.sections[0].text
    assert "`c` on today, a core, load average 1.0 before and 2.0 after" in sections[0].text[-1]
    assert sections[0].tables[0][1].equals(said.sections[0].tables[0][1])
    monkeypatch.setattr(notebook, "latest_study", Mock(side_effect=UsageError("nothing here")))
    shown = notebook.study("sqlite:///none.db", "specdec", "serving")
    assert shown[0].title.startswith("Simulated") and shown[0].text[-1] == "nothing here"

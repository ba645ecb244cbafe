"""Study batching where calls take fixed + token n; one drafter always offers gamma tokens, one all or nothing."""

import json
import re
from itertools import product

import numpy as np
import pandas as pd
import pytest
from fixtures.measuring import write_lines
from oracles.calls import break_even_batch

from specdec.analysis.comparisons import interval
from specdec.analysis.sections import About, findings
from specdec.analysis.studies.batching import BatchNumbers, committed_in_words, committed_study

ABOUT = About("none on pocket (float32), a computer", "stdlib_code", False, 300, 1)
BATCHES, GAMMAS = (1, 2, 4, 8, 16, 32), (2, 4)
FIXED, TOKEN, STEP = 10e-3, 1e-3, 0.2e-3  # seconds: of a call, of each token in it, of a draft token per sequence
GAIN = {"steady": {2: 2.2, 4: 2.8}, "moody": {2: 1.5, 4: 1.6}}  # tokens per round
STEPS, OFFERS = 50, 0.5  # of a cell; share of rounds in which the moody one offers anything


def seconds(tokens):
    return FIXED + TOKEN * tokens


def widest(drafter, gamma, batch):
    """The expected tokens per sequence of a call: a moody batch is spared only where no sequence offers anything."""
    return 1 + gamma * (1 if drafter == "steady" else 1 - (1 - OFFERS) ** batch)


def cells(**levels):
    return pd.MultiIndex.from_product(map(list, levels.values()), names=[*levels]).to_frame(index=False)


def tables(repeats=4, noise=0.0, model=True):
    generator, lines, offers = np.random.default_rng(0), [], []
    for repeat, drafter, gamma, batch in product(range(repeats), GAIN, GAMMAS, BATCHES):
        factor, width = 1 + noise * generator.normal(), widest(drafter, gamma, batch)
        verify, draft = factor * seconds(batch * width) * STEPS, STEP * gamma * batch * STEPS
        lines.append(
            {"repeat": repeat, "drafter": drafter, "gamma": gamma, "batch": batch, "steps": STEPS}
            | {"tokens": round(GAIN[drafter][gamma] * STEPS * batch), "rounds": STEPS * batch}
            | {"places": STEPS * batch * width, "seconds": verify + draft, "draft_s": draft, "verify_s": verify}
            | {"baseline_tokens": STEPS * batch, "baseline_steps": STEPS, "baseline_seconds": seconds(batch) * STEPS}
            | {"same": batch, "near_tie": 0, "differs": 0}
        )
    for drafter, gamma in product(GAIN, GAMMAS):
        shares = {gamma: 1.0} if drafter == "steady" else {gamma: OFFERS, 0: 1 - OFFERS}
        offers += [{"drafter": drafter, "gamma": gamma, "offered": k, "rounds": 1000 * s} for k, s in shares.items()]
    drafts = cells(drafter=GAIN, gamma=GAMMAS, batch=BATCHES, call=range(3))
    calls = cells(batch=BATCHES, tokens=(1, 3, 5), context=[300], call=range(3))
    calls = calls.assign(seconds=seconds(calls["batch"] * calls["tokens"]))
    return {
        "batching": pd.DataFrame(lines),
        "offers": pd.DataFrame(offers),
        "drafts": drafts.assign(seconds=STEP * drafts["gamma"] * drafts["batch"]),
        "calls": calls.assign(model_s=(1.1 if model else float("nan")) * calls["seconds"]),
        "cost": pd.DataFrame([{"context": 300, "rows": 64, "error": 0.02, "prompts": 100, "largest": 20}]),
        "skipped": pd.DataFrame(columns=["reason", "category", "count"]),
    }


@pytest.fixture(scope="module")
def exact():
    return BatchNumbers(tables(), 200, 1)


def expected(drafter, gamma, batch):
    step = seconds(batch * widest(drafter, gamma, batch)) + STEP * gamma * batch
    return GAIN[drafter][gamma] * seconds(batch) / step


@pytest.mark.parametrize(("drafter", "gamma"), list(product(GAIN, GAMMAS)))
def test_the_speedup_is_at_equal_batch_and_the_formula_agrees(exact, drafter, gamma):
    found = exact.of(drafter, gamma)
    assert found["speedup"].tolist() == pytest.approx([expected(drafter, gamma, batch) for batch in BATCHES])
    # The longest of a batch of drafts, of which the moody one's are all or nothing.
    assert found["formula"].tolist() == pytest.approx(found["speedup"].tolist())
    # The cost model says 10% more for each call, which its ratio does not have but its drafts are cheaper by.
    assert (found["model"] > found["speedup"]).all()
    whole = found["draft"] + found["verify"] + found["rest"]
    assert (found["tokens"] / whole).tolist() == pytest.approx(found["speedup"].tolist())
    assert found["rest"].to_numpy() == pytest.approx(np.zeros(len(BATCHES)), abs=1e-12)
    assert found["width"].tolist() == pytest.approx([widest(drafter, gamma, batch) for batch in BATCHES])


def test_the_break_even_batch_is_that_of_the_closed_form(exact):
    """Interpolated between powers of two, so that it is near the closed form and not on it. The draft of all sequences
    grows with the batch: in t(B) of the plain step c is not constant, so that it is written as part of the call.
    """
    tokens, gamma = GAIN["steady"][2], 2
    # E (f + t B) = f + t B (gamma + 1) + s gamma B, solved for B.
    closed = FIXED * (tokens - 1) / (TOKEN * (gamma + 1 - tokens) + STEP * gamma)
    found = interval(exact.end("steady", 2), "break_even")
    assert found.estimate == pytest.approx(closed, rel=0.05) and closed < break_even_batch(tokens, 2, 0, FIXED / TOKEN)
    assert exact.end("steady", 2)["formula"] == pytest.approx(found.estimate)


def test_the_best_gamma_is_the_fastest_and_not_chosen_by_the_repeat_that_it_is_judged_on(exact):
    best = exact.of("steady")
    both = np.array([[expected("steady", gamma, batch) for batch in BATCHES] for gamma in GAMMAS])
    assert best["speedup"].tolist() == pytest.approx(both.max(axis=0).tolist())
    assert best["gammas"].tolist() == [str(GAMMAS[int(at)]) for at in both.argmax(axis=0)]
    # Gammas that do not differ: taking the best of each repeat's own numbers would find a gain in the noise.
    lucky = tables(repeats=12, noise=0.3)
    lines = lucky["batching"].query("drafter == 'steady' and batch == 1 and gamma == 2")
    same = pd.concat(
        lines.assign(gamma=gamma, seconds=np.random.default_rng(gamma).uniform(0.5, 1.5, len(lines)))
        for gamma in GAMMAS
    )
    found = BatchNumbers(lucky | {"batching": same}, 50, 1)
    own, judged = same.groupby("repeat")["seconds"].min().sum(), same.groupby("gamma")["seconds"].sum().min()
    chosen = lines["tokens"].sum() / found.of("steady")["rate"].iloc[0]  # seconds of all repeats
    assert chosen > own and chosen >= judged - 1e-9


@pytest.mark.slow
def test_findings_say_what_was_found():
    found = findings("batching", tables(repeats=6, noise=0.02), ABOUT)
    first, eaten, _, calls = (section.text for section in found.sections)
    assert first[0].startswith("Speculation pays up to this batch, with the best gamma at each: steady ")
    assert "; moody " in first[0] and "fitted to calls on a single sequence predicted steady " in first[0]
    text = " ".join(first)
    assert "There are 100 prompts, and a repeat takes 20 at the largest batch" in text  # 6 x 20
    assert "too few" not in text and "To serve it" not in text  # vLLM knows neither of the drafters
    assert "verify +" in eaten[0] and "verify eats most of the speedup" in eaten[0]
    assert "10% off in seconds" in calls[1] and "0% in t(B" in calls[1]
    names = {name for section in found.sections for name, _ in section.figures}
    assert names == {"batching_speedup", "batching_costs", "batching_throughput", "batching_calls"}
    metrics = found.metrics
    assert metrics["batching/steady.break_even.ci_low"] <= metrics["batching/steady.break_even"]
    assert metrics["batching/repeats"] == 6 and metrics["batching/steady.speedup.1"] > 1
    assert set(found.curves["curve/batching/speedup.moody.best"]) == set(BATCHES)
    assert found.curves["curve/batching/tokens_per_s.steady.plain"][4] == pytest.approx(4 / seconds(4))
    found = findings("batching", tables(repeats=1, model=False), ABOUT)
    text = " ".join(found.sections[0].text)
    assert "There is no cost model of single calls" in text and "A single repeat: no intervals" in text
    assert "stand in several repeats" not in text and not any(name.endswith("ci_low") for name in found.metrics)
    assert "curve/batching/speedup.steady.best.model" not in found.curves


@pytest.mark.slow
def test_the_gamma_of_each_batch_is_told_as_vllm_takes_it():
    """Of the drafter whose name vLLM knows, and of gammas that are shown to pay at a batch: none beyond the largest."""
    made = tables(repeats=6, noise=0.02)
    named = {name: table.replace({"steady": "ngram"}) for name, table in made.items()}
    (said,) = (text for text in findings("batching", named, ABOUT).sections[0].text if "To serve it" in text)
    assert "moody" not in said and "format of vLLM 0.33.0" in said
    (told,) = re.findall(r'`"num_speculative_tokens_per_batch_size": (.*?)`', said)
    numbers = BatchNumbers(made, ABOUT.replicates, ABOUT.seed)
    for place, batch in enumerate(BATCHES):
        paying = {}
        for gamma in GAMMAS:
            value = interval(numbers.of("steady", gamma).iloc[place], "speedup")
            if value.low > 1:
                paying[value.estimate] = gamma
        (tokens,) = (tokens for first, last, tokens in json.loads(told) if first <= batch <= last)
        assert tokens == (paying[max(paying)] if paying else 0)
    assert json.loads(told)[-1][1:] == [65536, 0]


@pytest.mark.slow
def test_a_committed_study_says_what_the_study_said(tmp_path):
    made, path = tables(repeats=4, noise=0.02), tmp_path / "batching.json"
    made["batching"] = made["batching"].query("drafter != 'moody' or gamma == 2")
    numbers = BatchNumbers(made, 50, 1)
    assert numbers.gammas_of("moody") == [2] and numbers.gammas_of("steady") == [2, 4]
    assert numbers.of("moody")["speedup"].tolist() == numbers.of("moody", 2)["speedup"].tolist()
    machine = {"command": "a", "date": "b", "clock": "c", "cpu": {"model": "d"}}
    machine["load_average"] = {"start": [1.5], "end": [2]}
    about = {"study": {"study": "batching", **vars(ABOUT)}}
    write_lines(path, machine | about | {"tables": {name: table.to_dict("list") for name, table in made.items()}})
    again, first = committed_study(path).findings(), findings("batching", made, ABOUT)
    assert again.metrics == pytest.approx(first.metrics, rel=1e-4)
    assert "4 repeats are too few for intervals" in " ".join(first.sections[0].text)
    assert "`a` on b, d, c, load average 1.5 before and 2 after" in committed_in_words(path)

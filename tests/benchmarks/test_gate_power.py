"""False alarms and power of the gate: rounds of recorded runs are drawn again, with drops planted.

Seeds are fixed; a share p of n simulations has the standard error sqrt(p (1 - p) / n).
"""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from fixtures.commands import run_in

from specdec.analysis.findings.drops import SPEEDUP, TOKENS_PER_ROUND, Drop, chance_at
from specdec.analysis.read.runs import open_folder
from specdec.analysis.rounds import Arms

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
NULLS, RUNS, CHANCE, DROPS = 2000, 500, 0.01, (0.02, 0.05, 0.1)
CHANGED = 0.05  # of the rounds of a greedy text, after a near-tie went the other way
GREEDY, SAMPLED = "n-grams, greedy", "small model, temperature 1"
TRACES = {
    GREEDY: ("+drafter=ngram",),
    SAMPLED: ("+drafter=small_model", "sampling=temperature", "sampling.temperature=1.0"),
}
SHORT = (
    *("measurement.gammas=[]", "measurement.budget_seconds=null", "measurement.cost_contexts=[]"),
    *("measurement.null=false", "tracking.enabled=false"),
)
ANEW, ALIKE = "drawn anew", "the same but for 5% of the rounds"
CASES = {  # greedy, looks, third, figure
    f"{ALIKE}, one candidate": (True, 1, False, TOKENS_PER_ROUND),
    f"{ALIKE}, losses in a third of the prompts": (True, 1, True, TOKENS_PER_ROUND),
    f"{ALIKE}, speedup": (True, 1, False, SPEEDUP),
    f"{ANEW}, one candidate": (False, 1, False, TOKENS_PER_ROUND),
    f"{ANEW}, up to 5 candidates": (False, 5, False, TOKENS_PER_ROUND),
}
SIZES = {"third": (20, 50), "5 cand": (20, 50), "speedup": (20,)}


class Trace:
    """The rounds of a run at its own gamma: accepted tokens and seconds of prompt p in round r, [P, R], padded."""

    def __init__(self, arms: Arms) -> None:
        (rounds,) = arms.by_gamma().values()
        prompts = [part for _, part in rounds.groupby("prompt", observed=True)]
        plain = dict(list(arms.plain().groupby("prompt", observed=True)["round_s"]))
        self.sizes = np.array([len(part) for part in prompts])
        self.accepted, self.seconds, self.plain = (
            np.stack([np.resize(values, self.sizes.max()) for values in columns])
            for columns in (
                [part["committed"] - 1 for part in prompts],
                [part["round_s"] for part in prompts],
                [plain[part["prompt"].iloc[0]] for part in prompts],
            )
        )

    def places(self, texts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draw as many rounds of each text as it has, with replacement, as places [T, R]."""
        shape = (len(texts), self.accepted.shape[1])
        return (generator.random(shape) * self.sizes[texts, None]).astype(int)

    def sums(
        self, texts: np.ndarray, places: np.ndarray, worse: np.ndarray, slower: float, generator: np.random.Generator
    ) -> pd.DataFrame:
        """Add up the rounds at these places by text, after a share `worse` [T] of the tokens of each text is lost: some
        drafts are rejected at an earlier depth, any with the same chance. Seconds are drawn anew.
        """
        mine = np.arange(places.shape[1]) < self.sizes[texts, None]
        accepted = self.accepted[texts[:, None], places]
        lost = np.where(accepted > 0, (accepted + 1) / 2, 0.0)  # in the mean, where a draft is cut short
        chance = worse * ((accepted + 1) * mine).sum() / (lost * mine).sum()
        cut = generator.random(places.shape) < chance[:, None]
        shorter = np.floor(generator.random(places.shape) * accepted)
        tokens = np.where(cut, shorter, accepted) + 1
        seconds, plain = (table[texts[:, None], self.places(texts, generator)] for table in (self.seconds, self.plain))
        totals = {"tokens": tokens, "rounds": 1.0, "round_s": seconds / (1 - slower), "baseline_round_s": plain}
        sums = {name: (values * mine).sum(axis=1) for name, values in totals.items()}
        return pd.DataFrame({**sums, "baseline_tokens": sums["rounds"], "texts": 1.0})


@pytest.fixture(scope="module")
def trace(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    run_in(folder, *TRACES[request.param], *SHORT, f"hydra.run.dir={folder}")
    return request.param, Trace(open_folder(folder).arms().shared())


def looked(trace, greedy, looks, third, figure, prompts, drop, seed) -> tuple[int, float]:
    """Return the look that finds a loss, 0 for none, and the smallest drop that the last one would have found."""
    generator = np.random.default_rng([seed, prompts])
    texts = generator.integers(len(trace.sizes), size=prompts)
    places = trace.places(texts, generator)
    none, slower = np.zeros(prompts), drop if figure is SPEEDUP else 0.0
    worse = np.full(prompts, drop)
    if third:
        worse = np.where(np.arange(prompts) % 3 == 0, drop * prompts / len(range(0, prompts, 3)), 0.0)
    worse = none if figure is SPEEDUP else worse
    earlier, pooled = trace.sums(texts, places, none, 0.0, generator), 0.0
    for look in range(1, looks + 1):
        own = trace.places(texts, generator)
        if greedy:
            own = np.where(generator.random(own.shape) < CHANGED, own, places)
        pooled = pooled + trace.sums(texts, own, worse, slower, generator)
        found = Drop.of(figure, earlier, pooled, chance_at(look, CHANCE))
        if found.loss:
            return look, found.detectable
    return 0, found.detectable


@pytest.mark.parametrize(
    ("trace", "case", "prompts"),
    [
        (GREEDY if case.startswith(ALIKE) else SAMPLED, case, prompts)
        for case in CASES
        for prompts in next((sizes for words, sizes in SIZES.items() if words in case), (10, 20, 50))
    ],
    indirect=["trace"],
)
def test_false_alarms_and_power(trace, case, prompts, log_figure):
    """No more false alarms than promised, give or take three standard errors; the drop that is said is found, unless
    what is lost is lost in a few prompts.
    """
    name, rounds = trace
    trial = partial(looked, rounds, *CASES[case], prompts)
    nulls = [trial(0.0, seed) for seed in range(NULLS)]
    alarms = np.mean([look > 0 for look, _ in nulls])
    said = float(np.nanmedian([reach for _, reach in nulls]))
    power = {f"{drop:.0%}": np.mean([trial(drop, seed)[0] > 0 for seed in range(RUNS)]) for drop in DROPS}
    at_said = float(np.mean([trial(said, seed)[0] > 0 for seed in range(RUNS)]))
    log_figure(
        what=f"gate: {case}",
        trace=name,
        prompts=prompts,
        simulations={"false alarms": NULLS, "power": RUNS},
        promised=CHANCE / 2,
        false_alarms=float(alarms),
        power={drop: float(share) for drop, share in power.items()},
        said=said,
        power_at_said=at_said,
    )
    assert alarms <= CHANCE / 2 + 3 * np.sqrt(CHANCE / 2 / NULLS)
    assert at_said > 0.65 or "third" in case

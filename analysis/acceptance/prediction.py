"""Prediction on prompts that no model has seen: fit on half of them, predict tokens per round on the other half, then
the halves swap (theory.md 5.6).

Every model is fitted at the largest gamma, where rounds reach all depths, and predicts every gamma; of four gammas or
more, one model reads how many rounds the smallest took, too. Texts of the held-out lengths are written round by round,
so that their ends are in the prediction as in the measurement; a model knows nothing else of the held-out prompts. The
error is the mean over several splits; the least and greatest say what the luck of a split is worth. Replay reads the
held-out texts themselves: it stands beside the models and is not ranked. The recommended model is not chosen by these
errors: it is the first of `CHOICE` that half of the prompts can determine; how many kinds of stretches it has is
decided by AIC on the half that is fitted.

What is offered is taken as independent of acceptance, which is an approximation for drafters that stay silent when they
do not know, such as n-gram tables, and which the model `stretches` does without. Only counts by prompt are kept, not
rounds: a million tokens at 15 gammas are millions of rounds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from scipy import sparse

from specdec.config import PLAIN

from ..intervals import FEWEST, LEVEL, RELATIVE, Interval, interval_of, per_round
from ..rounds import Arms, distinct_generations, drafted
from .estimates import exceeding
from .laws import LAWS, grouped_counts, offer_chances, rounds_by_law
from .stretches import StretchesFit, Taken, at_both_ends, fit_stretches, make_trace

LABELS = {
    "capped_geometric.text": "capped geometric, alpha of the text",
    "capped_geometric.mle": "capped geometric, alpha MLE at the largest gamma",
    "capped_geometric.short": "capped geometric, alpha MLE at the smallest gamma",
    "position": "by position",
    "beta_geometric": "rounds differ (beta-geometric)",
    "prompt_beta": "prompts differ (prompt beta)",
    "markov": "Markov along the text",
    "stretches": "stretches of the text",
    "stretches.ends": "stretches of the text, both ends",
    "replay": "replay of the held-out texts",
}
# The model that is recommended: the first that was tried.
CHOICE = ("stretches.ends", "stretches", "markov", "capped_geometric.mle")
SPLITS, SEED = 5, 0  # of the prompts into halves; what draws them
ROUNDING = 1e-9  # errors below are equality: an exact replay misses by rounding alone
FEW_GAMMAS = 4  # of a run; fewer leave one at most between the ends
FEW_ROUNDS = 60  # in a half; fewer say nothing of how texts differ

RoundsOf = Callable[[int, np.ndarray], np.ndarray]  # gamma, lengths [U] -> expected rounds of such texts [B, U]


class Undetermined(ValueError):
    """Raised where the prompts are too few or too alike for any model to be fitted."""


@dataclass(frozen=True)
class HeldOutPrediction:
    """Predicted and measured tokens per round, and the errors of every model on prompts that it was not fitted on."""

    # model, gamma, predicted, measured, ci_low, ci_high (of the measured, prompt bootstrap), error (predicted over
    # measured, less 1; mean over the splits), and the bounds of both predicted and error (prompts resampled in both
    # halves and every model refitted), split_low, split_high (least and greatest error of a split)
    table: pd.DataFrame
    # one row per model that has not seen what it predicts, the recommended first, then by mean_error (of absolute
    # values, over gammas): bias (with signs), worst_error, worst_gamma, significant (number of gammas whose interval of
    # the error leaves out 0)
    models: pd.DataFrame
    read_off: pd.DataFrame  # the row of the replay, which reads the held-out texts; empty where the run has none
    left_out: dict[str, str]  # model -> why it was not tried
    fit_gamma: int
    prompts: int
    refits: int
    splits: int  # number of splits into halves
    # by how much at most the measured tokens per round of the two halves of a split differ at `fit_gamma`, as a share
    # of the lower
    luck: float
    level: float = LEVEL  # of all intervals

    @property
    def chosen(self) -> str:
        """The model that is recommended."""
        return str(self.models["model"].iloc[0])


def predict(
    arms: Arms,
    alpha_sums: pd.DataFrame | None = None,
    replay: pd.DataFrame | None = None,
    replicates: int = 2000,
    refits: int = 200,
) -> HeldOutPrediction:
    """Return the errors of every model on prompts that it was not fitted on. Undetermined if no model can be fitted on
    both halves; the message is a clause.

    arms: of one drafter at one or more gammas; the baseline only restricts the prompts. alpha_sums: prompt, numerator,
    denominator of `alpha.text`; replay: gamma, prompt, tokens, expected rounds along the baseline's texts; None or
    empty where the run has none. replicates: of the measured intervals' bootstrap; refits: of every model, for the
    intervals of the errors.
    """
    shared = _shared(arms)
    by_gamma = shared.by_gamma()
    largest, smallest = max(by_gamma), min(by_gamma)
    alpha_sums = None if alpha_sums is None or alpha_sums.empty else alpha_sums
    replay = None if replay is None or replay.empty else replay
    prompts = sorted(shared.texts["prompt"].unique())
    written: dict[int, Taken] = {}
    for gamma, texts in drafted(shared.texts).groupby("gamma", sort=True):
        owner = pd.Index(prompts).get_indexer(texts["prompt"])
        rounds = np.bincount(owner, texts["rounds"], len(prompts))
        written[int(gamma)] = Taken(int(gamma), owner, texts["tokens"].to_numpy(dtype=np.int64), rounds)
    sides = _sides(written[largest].tokens, SEED)
    refits = refits if len(prompts) >= FEWEST else 0
    weights = _weights(sides[0], refits)  # [1 + B, P]; the first row is the data
    halves = _Halves(by_gamma, alpha_sums, prompts)
    fitted, left_out = halves.models(smallest < largest, replay, set(written), sides[0] == 1)
    expected = [halves.expected(fitted, weights if not number else weights[:1], side, written)
                for number, side in enumerate(sides)]  # fmt: skip
    counted = len(prompts) if refits else 0  # without replicates there are no bounds
    lines = []
    for gamma, of_gamma in written.items():
        counts = pd.DataFrame({"tokens": of_gamma.tokens, "rounds": of_gamma.rounds})
        possible = per_round(gamma)
        measured = interval_of(counts, lambda s: s["tokens"] / s["rounds"], possible, replicates)
        tokens = weights @ of_gamma.tokens
        with np.errstate(divide="ignore", invalid="ignore"):
            tau = tokens / (weights @ of_gamma.rounds)
            rates = {name: [tokens[: len(one[name, gamma])] / one[name, gamma] for one in expected] for name in fitted}
            if replay is not None and "replay" not in left_out:
                sums = replay[replay["gamma"] == gamma].groupby("prompt")[["tokens", "rounds"]].sum().reindex(prompts)
                if sums.isna().to_numpy().any():
                    raise ValueError(f"the replay at gamma {gamma} lacks prompts that the rounds table has")
                totals = weights @ sums.to_numpy(dtype=float)
                rates["replay"] = [totals[:, 0] / totals[:, 1]]
            for name, by_split in rates.items():
                predicted = by_split[0] + np.mean([one[0] for one in by_split]) - by_split[0][0]
                predicted = np.clip(predicted, possible.low, possible.high)  # replicates beyond, moved by the mean
                errors = [float(one[0] / tau[0] - 1) for one in by_split]
                line = {"model": name, "gamma": gamma}
                line |= Interval.of_replicates(predicted, counted, possible).as_columns("predicted")
                line |= {"measured": measured.estimate, "ci_low": measured.low, "ci_high": measured.high}
                line |= Interval.of_replicates(predicted / tau - 1, counted, RELATIVE).as_columns("error")
                lines.append(line | {"split_low": min(errors), "split_high": max(errors)})
    table = pd.DataFrame(lines)
    # Few prompts may hold no round of the kind that a parameter is estimated from, in one half or both.
    for name in table.loc[table["error"].isna(), "model"].unique():
        left_out[str(name)] = "a half of the prompts does not determine it"
    table = table[~table["model"].isin(list(left_out))].reset_index(drop=True)
    read = table["model"] == "replay"
    if table[~read].empty:
        raise Undetermined("no model is determined by half of the prompts; decode more of them")
    models, read_off = _summary(table[~read]), _summary(table[read])
    split = np.stack([sides == 0, sides == 1])  # [2, splits, P]
    own = split @ written[largest].tokens / (split @ written[largest].rounds)  # tokens per round of each half
    luck = float((own.max(axis=0) / own.min(axis=0) - 1).max())
    return HeldOutPrediction(table, models, read_off, left_out, largest, len(prompts), refits, len(sides), luck)


def _sides(tokens: np.ndarray, seed: int) -> np.ndarray:
    """Return the half, 0 or 1, of every prompt in each split, [splits, P], from their tokens: a coin parts each pair in
    the order of tokens, so that both halves have texts of all lengths. Fewer than `FEWEST` prompts are split once.
    """
    generator, count = np.random.default_rng(seed), len(tokens)
    splits = SPLITS if count >= FEWEST else 1
    coins = generator.integers(0, 2, size=(splits, -(-count // 2)))
    in_order = np.stack([coins, 1 - coins], axis=2).reshape(splits, -1)[:, :count]
    if count == 3:  # the third stands alone: it joins the first, so that no half is empty
        in_order[:, 2] = in_order[:, 0]
    sides = np.empty((splits, count), dtype=int)
    sides[:, np.argsort(tokens, kind="stable")] = in_order
    return sides


def _shared(arms: Arms) -> Arms:
    """Return the arms over the work that all of them have done. Undetermined if `predict` cannot work on them."""
    methods = {method for method, _ in arms} - {*PLAIN}
    if not methods:
        raise Undetermined("there is no round of a drafter")
    if len(methods) > 1 or arms.texts["cell"].nunique() > 1:
        raise Undetermined("the rounds are of several drafters or cells, and one is expected")
    shared = arms.shared()
    if shared.texts["prompt"].nunique() < 2:
        raise Undetermined("one prompt cannot be split into two halves")
    return shared


def _weights(side: np.ndarray, refits: int) -> np.ndarray:
    """Return how often each prompt counts, [1 + B, P]: once in the data, as drawn in its half in a replicate."""
    generator = np.random.default_rng([SEED, 1])
    weights = np.ones((1 + refits, len(side)))
    for half in (0, 1):
        members = np.flatnonzero(side == half)
        weights[1:, members] = generator.multinomial(len(members), np.full(len(members), 1 / len(members)), refits)
    return weights


class _Halves:
    """Counts that models are fitted to, and the fits to either half of the prompts."""

    def __init__(self, arms: Mapping[int, pd.DataFrame], alpha_sums: pd.DataFrame | None, prompts: list[str]) -> None:
        """Count the rounds of the largest gamma and those of the smallest. Undetermined if no model can be fitted."""
        gamma = max(arms)
        if not (arms[gamma]["accepted"] + arms[gamma]["rejected"]).any():
            raise Undetermined("no draft token was tested at the largest gamma, so no model can be fitted")
        ordered = distinct_generations(arms[gamma])  # by generation, then by round
        prompt, repeat = pd.Index(prompts).get_indexer(ordered["prompt"]), ordered["repeat"].to_numpy()
        text = np.cumsum((np.diff(prompt, prepend=-1) != 0) | (np.diff(repeat, prepend=repeat[:1]) != 0)) - 1
        # A draft is shortened to the tokens that may still follow: how many a round would have offered is censored.
        room = np.clip(ordered["tokens_left"].to_numpy(dtype=np.int64) - 1, 0, gamma)
        names = ("offered", "accepted", "rejected", "committed")
        columns = {name: ordered[name].to_numpy(dtype=np.int64) for name in names}
        offered, s, d = columns["offered"], columns["accepted"], columns["rejected"]
        # The rounds as `make_trace` takes them.
        self._table: dict[str, np.ndarray] = {"text": text, "prompt": prompt, "room": room, **columns}
        self._gamma, self._offers = gamma, bool((offered < room).any())
        self._near: dict[int, StretchesFit] = {}  # by half: the fit of the first split, from which the others start
        # Models are fitted to these counts by prompt, tables [P, ...]; a replicate has their weighted sums.
        per_prompt = partial(np.bincount, prompt, minlength=len(prompts))
        at_least = partial(exceeding, group=prompt, groups=len(prompts))  # rounds whose value is at least 1, 2, ...
        refused = at_least((s + 1) * d, gamma + 1)  # rejections at depth 1 or more, 2 or more, ...
        after_rejection = np.append(False, (d[:-1] == 1) & (text[1:] == text[:-1]))
        first = after_rejection & (s + d > 0)
        accepted, rejected = per_prompt(s), per_prompt(d)
        units = np.stack([accepted, rejected, accepted + rejected], axis=1).astype(np.int64)
        edges, _ = grouped_counts(min(int(units.max()), 512))  # of the prompt beta: so many groups hold any count
        short = arms[min(arms)].groupby("prompt")[["accepted", "rejected"]].sum().reindex(prompts)
        self.data = {
            "at_risk": at_least(s + d, gamma),
            "rejected": refused[:, :-1] - refused[:, 1:],
            "could_offer": at_least(np.minimum(room, offered + 1), gamma),
            "offered": at_least(np.minimum(room, offered), gamma),
            "first": np.stack([per_prompt(first & (s > 0)), per_prompt(first)], axis=1),
            # [P, 3 J] of the prompt beta: 1 for each count below the prompt's own, added up by group
            "units": np.diff(np.minimum(units[:, :, None], edges), axis=2).reshape(len(prompts), -1).astype(float),
            "mle": np.stack([accepted, accepted + rejected], axis=1),
            "short": np.stack([short["accepted"], short["accepted"] + short["rejected"]], axis=1).astype(float),
        }
        if alpha_sums is not None:
            sums = alpha_sums.groupby("prompt")[["numerator", "denominator"]].sum().reindex(prompts).fillna(0.0)
            self.data["text"] = sums.to_numpy(dtype=float)

    def models(
        self, has_short: bool, replay: pd.DataFrame | None, gammas: set[int], half: np.ndarray
    ) -> tuple[list[str], dict[str, str]]:
        """Return the models to fit, and why the others or a replay are left out; half: [P] True for one half."""
        left_out, inside = {}, half[self._table["prompt"]]
        if "text" not in self.data or not self.data["text"][:, 1].any():
            left_out["capped_geometric.text"] = "the run has no sums of alpha.text per prompt"
        if not has_short:
            left_out["capped_geometric.short"] = "the run has one gamma"
        if not self.data["first"][:, 1].any() or self._gamma < 2:
            left_out["markov"] = "no round that follows a rejection was tested at two depths"
        if min(inside.sum(), (~inside).sum()) < FEW_ROUNDS:
            why = f"a half of the prompts has fewer than {FEW_ROUNDS} rounds"
            left_out["stretches"] = left_out["stretches.ends"] = why
        elif len(gammas) < FEW_GAMMAS:
            left_out["stretches.ends"] = f"the run has fewer than {FEW_GAMMAS} gammas"
        if replay is None or not gammas <= set(replay["gamma"]):
            left_out["replay"] = "the run has no replay of the baseline's texts"
        return [name for name in LABELS if name not in (*left_out, "replay")], left_out

    def expected(
        self, fitted: list[str], weights: np.ndarray, side: np.ndarray, written: dict[int, Taken]
    ) -> dict[tuple[str, int], np.ndarray]:
        """Return by model and gamma the rounds [1 + B] that all texts are expected to take, each half of the prompts by
        the fit to the other; weights: [1 + B, P] how often each prompt counts; side: [P] its half.
        """
        expected = {(name, gamma): np.zeros(len(weights)) for name in fitted for gamma in written}
        for half in (0, 1):
            shortest = written[min(written)].of(side != half)
            for name, rounds_of in self._laws(fitted, weights * (side != half), half, shortest):
                for gamma, of_gamma in written.items():
                    held_out = of_gamma.of(side == half)
                    lengths, place = np.unique(held_out.lengths, return_inverse=True)
                    if len(lengths):
                        cells = (np.ones(len(place)), (held_out.prompt, place))
                        counted = weights @ sparse.csr_matrix(cells, shape=(len(side), len(lengths)))
                        expected[name, gamma] += (rounds_of(gamma, lengths) * counted).sum(axis=1)
        return expected

    def _laws(
        self, fitted: list[str], weights: np.ndarray, half: int, shortest: Taken
    ) -> Iterator[tuple[str, RoundsOf]]:
        """Fit the models to the prompts that weigh something in the data, the first row of `weights` [1 + B, P], whose
        rounds of the smallest gamma are `shortest`, and yield the name of each with what gives its expected rounds.
        """
        sums = {name: weights @ table for name, table in self.data.items()}
        offers = offer_chances(sums)
        for name in fitted:
            if name in LAWS:
                yield name, partial(rounds_by_law, LAWS[name](sums), offers)
        if "stretches" in fitted:
            inside = weights[0, self._table["prompt"]] > 0
            table = {name: column[inside] for name, column in self._table.items()}
            fit = fit_stretches(self._gamma, self._offers, make_trace(table, weights.shape[1]), self._near.get(half))
            self._near.setdefault(half, fit)
            yield "stretches", partial(fit.rounds_of, steps=fit.steps(weights))
            if "stretches.ends" in fitted:
                ends = at_both_ends(fit, shortest)
                yield "stretches.ends", partial(ends.rounds_of, steps=ends.steps(weights))


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per model, the recommended first (see `HeldOutPrediction.models`)."""
    lines = []
    for name, part in table.groupby("model", sort=False):
        worst = part.loc[part["error"].abs().idxmax()]
        outside = (part["error_low"] > ROUNDING) | (part["error_high"] < -ROUNDING)
        mean, bias = part["error"].abs().mean(), part["error"].mean()
        lines.append((name, mean, bias, worst["error"], int(worst["gamma"]), int(outside.sum())))
    columns = ["model", "mean_error", "bias", "worst_error", "worst_gamma", "significant"]
    chosen = next((name for name in CHOICE if name in set(table["model"])), None)
    lines.sort(key=lambda line: (line[0] != chosen, line[1]))
    return pd.DataFrame(lines, columns=columns)

"""The headline metrics of a run, one set per gamma, named as they are logged; and curves over gamma, as measured and by
each model (`MODELS`).

Repeats are pooled. A metric that the data cannot give (few prompts have no interval, gamma 1 no depth test) is absent;
`ArmSummary.iid` and the intervals say why. Speed is also given as papers define it, from the same sums:

acceleration_rate: tokens over decoding steps (Medusa, 2401.10774, Table 1; Hydra's average acceptance length).
step_overhead: seconds of a step over seconds of a step of plain decoding (Medusa), which is one token. speedup: their
quotient (Medusa); ours, prefill apart, is that number. compression_ratio: tokens over calls of the target (Lookahead,
2402.02057; Spec-Bench's mean accepted tokens).

A round is one call of the target, and the call on the prompt gives no token, so rate and ratio are one number here, and
both are 1 for plain decoding. Tokens are those committed: Spec-Bench's logs count the last step before it is cut at the
end token. Plain decoding is that of the target, or, in names that end in `.original`, of the model that it was before
it was trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import pandas as pd

from specdec.config import BASELINE

from ..acceptance.iid import IidTest, iid_tests
from ..acceptance.prediction import HeldOutPrediction, Undetermined
from ..account.gap_account import Account
from ..account.run_account import SharedWork
from ..arms import WORK, Arms
from ..busy_machine import undisturbed_prefills
from ..intervals import ENDS, SHARE, Columns, Interval, bootstrap, interval_of, per_round
from ..read.facts import RunFacts
from ..rounds import check_rounds, distinct_generations, prompt_categories, prompt_sums

RATES = {  # metric: what a table calls it
    "acceleration_rate": "acceleration rate",
    "step_overhead": "overhead",
    "speedup": "speedup",
    "compression_ratio": "compression ratio",
    "throughput/tokens_per_s": "tokens/s",
    "throughput/baseline_tokens_per_s": "baseline tokens/s",
}
AGAINST_ORIGINAL = {
    "step_overhead.original": "overhead (original)",
    "speedup.original": "speedup (original)",
    "throughput/original_tokens_per_s": "original tokens/s",
}
PAPERS = (*RATES, *AGAINST_ORIGINAL)
MULTI_TURN = "mt_bench"  # what Spec-Bench calls MT-Bench's eight categories together, one of its six subtasks
MT_BENCH = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})
SPEC_BENCH = frozenset({"translation", "summarization", "qa", "math_reasoning", "rag"})  # its other subtasks
OURS = ("speedup", "tokens_per_round", "alpha.mle", "accepted_per_offered")
SHARES = ("alpha.mle", "accepted_per_offered", "cost/prefill_share", "proposals.share")
PER_ROUND = ("tokens_per_round", "acceleration_rate", "compression_ratio")
WITH_INTERVAL = ("tokens_per_round", "alpha.mle", *PAPERS)
BY_CATEGORY = tuple(dict.fromkeys((*OURS, *PAPERS)))
TIMED = ("speedup", "step_overhead", "throughput/")  # words in the names of figures that seconds are in
Curves = dict[str, dict[int, float]]
MODELS = ("measured", "capped_geometric", "priced", "position", "replay", "predicted")
"""The lines of the curves over gamma; `tokens_per_round.<model>` is the point of `curve/<model>` at the primary gamma.

- capped_geometric: Omega(alpha, gamma) at `account/alpha`.
- priced: a speedup only, the same Omega over the measured time of its round: verification t(n) / t(1) = v and drafts
  gamma c = g. From the first to it is cost; from it to the measurement, acceptance and the loop's own time.
- position: acceptance by depth, fitted at the largest gamma to half of the prompts, predicts the other half; both
  halves in turn, so that no prompt is predicted by a model that has seen it (`acceptance.prediction`).
- replay: tokens over expected rounds of the drafter along the baseline's texts. The account's dependence and drift
  replay the drafter's own texts instead, because they explain one measurement factor by factor (theory.md 8.1).
- predicted: the speedup that `specdec.advise` foretold."""


@dataclass(frozen=True)
class ArmSummary:
    """The drafter at one gamma against the baseline: metrics by name, and the objects behind them."""

    sums: pd.DataFrame  # by prompt, as `rounds.prompt_sums` has them
    metrics: dict[str, float]
    account: Account
    iid: dict[str, IidTest]


@dataclass(frozen=True)
class Summary:
    """The arms of a run by gamma, and the work that all of them have done."""

    work: SharedWork
    arms: dict[int, ArmSummary]

    @property
    def primary(self) -> ArmSummary:
        return self.arms[self.work.primary_gamma]

    @property
    def alpha_source(self) -> str:
        """The source of the one alpha behind the capped geometric: "text" or "mle"."""
        return "text" if self.work.alpha_of_text else "mle"


def summarise(
    work: SharedWork, generations: pd.DataFrame, replicates: int = 10_000, permutations: int = 1999
) -> Summary:
    """Summarise one cell: a baseline, one drafter at one or more gammas, maybe the original model, from a line per
    generation. Only work that every arm has done counts. ValueError for tables that contradict themselves.
    """
    generations = undisturbed_prefills(generations)
    summaries = {}
    for gamma, arm in work.arms.items():
        check_rounds(arm)
        distinct, by_prompt = distinct_generations(arm), prompt_sums(arm)
        account = work.sums(gamma, replicates).account()
        tests = iid_tests(distinct, permutations)
        method = str(arm["method"].iloc[0])
        ours = (generations["method"] == method) & (generations["gamma"] == gamma)
        written = generations[ours | (generations["method"] == BASELINE)]
        texts = pd.MultiIndex.from_frame(Arms.of(arm).texts[WORK])
        done = written[pd.MultiIndex.from_frame(written[WORK]).isin(texts)]
        prefills = done.pivot_table("prefill_s", "prompt", "method", aggfunc="sum").reindex(columns=[method, BASELINE])
        table = by_prompt.join(prompt_sums(distinct)[["accepted", "tested"]].add_prefix("distinct_"))
        for name, of_method in work.plain.items():
            if len(of_method):
                table = table.join(of_method[["tokens", "round_s"]].add_prefix(f"{name}_"))
        table = table.join(prefills.set_axis(["prefill_s", "baseline_prefill_s"], axis=1)).fillna(0.0)
        # Prompts whose output fell into repetition, with the baseline or in this arm.
        flagged = table.index.isin(written.loc[written["flagged"].astype(bool), "prompt"])
        headline = _headline(table, gamma, replicates)
        unflagged: dict[str, float] = {}
        if not flagged.all():
            others = _headline(table[~flagged], gamma, replicates) if flagged.any() else headline
            for name in ("speedup", "tokens_per_round"):
                unflagged |= Interval.from_metrics(others, name).as_metrics(f"{name}.unflagged")
        by_categories: dict[str, float] = {}
        for name, members in category_members(prompt_categories(arm).reindex(table.index)).items():
            of_category = _headline(table[members], gamma, replicates)
            wanted = [metric + end for metric in BY_CATEGORY for end in ENDS]
            by_categories |= {f"category/{name}/{key}": of_category[key] for key in wanted if key in of_category}
        metrics = {
            **headline,
            "repetition/share": float(flagged.mean()),
            **unflagged,
            **by_categories,
            "tokens_per_round.capped_geometric": account.value("omega"),
            "speedup.capped_geometric": account.value("formula"),
            "cost/t1_ms": 1e3 * account.t1_s,
            "cost/t_ar_ms": 1e3 * account.value("t_ar_s"),
            "cost/c": account.value("g") / gamma,
            **{f"cost/{name}": value for name, value in account.time.items()},
            **{f"account/{name}": value for name, value in account.factors.items()},
            **{f"iid/{name}_p": test.p_value for name, test in tests.items()},
            "account/alpha": work.alpha,
            **(account.intervals["alpha"].as_metrics("alpha.text") if work.alpha_of_text else {}),
        }
        if "machine" in account.intervals:
            metrics["account/machine"] = account.value("machine")
        if work.machine.doubt:  # tokens have an interval, times have none
            bounds = {name for name in metrics if name.endswith(ENDS[1:]) and any(word in name for word in TIMED)}
            metrics = {name: value for name, value in metrics.items() if name not in bounds}
        defined = {name: float(value) for name, value in metrics.items() if not isnan(value)}
        summaries[gamma] = ArmSummary(by_prompt, defined, account, tests)
    return Summary(work, summaries)


def printed_metric(metrics: Mapping[str, Any], name: str, form: str = ",.3f") -> str:
    """Return a metric in print, with "–" for bounds that too few prompts do not give."""
    value = Interval.from_metrics(metrics, name)
    return f"{replace(value, prompts=1) if name in WITH_INTERVAL else value:{form}}"


def by_category(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the metrics of BY_CATEGORY with their intervals, by category."""
    suffixes = sorted((f"/{metric}" for metric in BY_CATEGORY), key=len, reverse=True)
    categories: dict[str, dict[str, float]] = {}
    for key in metrics:
        suffix = next((end for end in suffixes if key.startswith("category/") and key.endswith(end)), None)
        if suffix is not None:
            values = {f"{suffix[1:]}{end}": metrics[key + end] for end in ENDS if key + end in metrics}
            categories.setdefault(key.removeprefix("category/").removesuffix(suffix), {}).update(values)
    return categories


def headline_values(sums: Columns) -> dict[str, np.ndarray]:
    """Return the headline figures from sums of the whole run, of each prompt [P], or of the replicates [B]."""
    baseline_s, baseline_tokens = sums["baseline_round_s"], sums["baseline_tokens"]
    baseline_total_s, total_s = baseline_s + sums["baseline_prefill_s"], sums["round_s"] + sums["prefill_s"]
    per_token, rate = baseline_s / baseline_tokens, sums["tokens"] / sums["rounds"]
    step_s = sums["round_s"] / sums["rounds"]
    values = {
        "speedup": per_token * sums["tokens"] / sums["round_s"],
        "speedup.end_to_end": baseline_total_s / baseline_tokens * sums["tokens"] / total_s,
        "cost/prefill_share": sums["baseline_prefill_s"] / baseline_total_s,
        "tokens_per_round": rate,
        "alpha.mle": sums["distinct_accepted"] / sums["distinct_tested"],
        "accepted_per_offered": sums["accepted"] / sums["offered"],
        "nodes_per_round": sums["nodes"] / sums["rounds"],
        "proposals.share": sums["proposals"] / sums["rounds"],
        "acceleration_rate": rate,
        "step_overhead": step_s / per_token,
        "compression_ratio": rate,
        "throughput/tokens_per_s": sums["tokens"] / sums["round_s"],
        "throughput/baseline_tokens_per_s": 1 / per_token,
    }
    if "original_round_s" in sums:
        original_s = sums["original_round_s"] / sums["original_tokens"]
        values |= {
            "step_overhead.original": step_s / original_s,
            "speedup.original": original_s * sums["tokens"] / sums["round_s"],
            "throughput/original_tokens_per_s": 1 / original_s,
        }
    return values


def _headline(table: pd.DataFrame, gamma: int, replicates: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    ranges = dict.fromkeys(SHARES, SHARE) | dict.fromkeys(PER_ROUND, per_round(gamma))
    for name, interval in bootstrap(table, headline_values, replicates, ranges=ranges).items():
        metrics |= interval.as_metrics(name) if name in WITH_INTERVAL else {name: interval.estimate}
    with np.errstate(divide="ignore", invalid="ignore"):  # a prompt without a proposal has no alpha
        per_prompt = headline_values({name: table[name].to_numpy() for name in table})["speedup"]
    metrics["speedup.prompt_mean"] = float(per_prompt.mean())
    metrics["speedup.prompt_median"] = float(np.median(per_prompt))
    return metrics


def category_members(names: pd.Series) -> dict[str, pd.Series]:
    """Return which prompts are in each category, Booleans by name, from the category of each ("" becomes "none"); none
    for a single category. On Spec-Bench, MT-Bench's categories are also there together, as MULTI_TURN.
    """
    known = sorted(set(names))
    if len(known) < 2:
        return {}
    members = {name or "none": names == name for name in known}
    of_mt_bench = MT_BENCH.intersection(known)
    # Spec-Bench's: several of MT-Bench's categories, and some that are not.
    if len(of_mt_bench) > 1 and of_mt_bench < set(known) <= MT_BENCH | SPEC_BENCH:
        members[MULTI_TURN] = names.isin(MT_BENCH)
    return members


def model_curves(
    summary: Summary,
    held_out: HeldOutPrediction | Undetermined,
    replay: pd.DataFrame,
    facts: RunFacts,
    replicates: int,
) -> Curves:
    """Return the curves by name: `curve/<model>` in tokens per round, `curve/speedup/<model>`, and the 95% interval of
    each as `.ci_low` and `.ci_high`, where the data give one. A model that the data cannot determine has none.

    A model's speedup is its tokens per round over 1 + gamma c. The interval of the capped geometric's resamples c with
    the prompts, as the account does; those of position and replay hold c as measured.

    held_out: the prediction of prompts that no model was fitted to, or why there is none; replay: of `Run.replay`.
    """
    curves: Curves = {f"curve/{kind}{name}{end}": {} for name in MODELS for kind in ("", "speedup/") for end in ENDS}
    for gamma, arm in summary.arms.items():
        intervals = arm.account.intervals
        tokens, speedups = (
            {"measured": Interval.from_metrics(arm.metrics, quantity), "capped_geometric": intervals[formula]}
            for quantity, formula in (("tokens_per_round", "omega"), ("speedup", "formula"))
        )
        speedups["priced"] = intervals["priced"]
        modelled: dict[str, Interval] = {}
        if isinstance(held_out, HeldOutPrediction):
            lines = held_out.table[(held_out.table["model"] == "position") & (held_out.table["gamma"] == gamma)]
            for line in lines.itertuples():
                bounds = (line.predicted_low, line.predicted_high)
                modelled["position"] = Interval(line.predicted, *bounds, held_out.level, held_out.prompts)
        along = replay[(replay["kind"] == "baseline") & (replay["gamma"] == gamma)]
        if len(along) and not facts.simulated:  # recorded text is measured by its replay: no second opinion
            sums = along.groupby("prompt")[["tokens", "rounds"]].sum()
            modelled["replay"] = interval_of(sums, lambda s: s["tokens"] / s["rounds"], per_round(gamma), replicates)
        step = 1 + gamma * arm.metrics["cost/c"]
        for name, interval in modelled.items():
            tokens[name] = interval
            speedups[name] = Interval(interval.estimate / step, interval.low / step, interval.high / step)
        if gamma in facts.predicted:
            speedups["predicted"] = Interval(facts.predicted[gamma])
        for kind, models in (("", tokens), ("speedup/", speedups)):
            for name, interval in models.items():
                for key, value in interval.as_metrics(f"curve/{kind}{name}").items():
                    if not isnan(value):
                        curves[key][gamma] = value
    return {key: curve for key, curve in curves.items() if curve}


def model_metrics(curves: Mapping[str, Mapping[int, float]], gamma: int) -> dict[str, float]:
    """Return `tokens_per_round.<model>` at one gamma, as the curves have it."""
    points = {name: curves.get(f"curve/{name}", {}).get(gamma) for name in MODELS if name != "measured"}
    return {f"tokens_per_round.{name}": value for name, value in points.items() if value is not None}

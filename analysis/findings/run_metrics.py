"""The metrics of a run, named as they are logged: a headline set per gamma; curves over gamma, as measured and by each
model (`MODELS`); and one set of the run: arithmetic, losslessness, the machine's noise, the limit without overhead, the
quality of texts, texts that were sampled, and other engines.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import pandas as pd

from specdec.config import BASELINE, NULL, ORIGINAL
from specdec.theory.capped_geometric import operations

from ..acceptance.iid import IidTest, iid_tests
from ..acceptance.prediction import HeldOutPrediction, Undetermined
from ..account.gap_account import Account
from ..account.run_account import SharedWork
from ..busy_machine import undisturbed_prefills
from ..comparisons import finite
from ..intervals import ANY, ENDS, SHARE, Columns, Interval, Range, Statistic, bootstrap, interval_of, per_round
from ..read.facts import RunFacts
from ..rounds import WORK, Arms, distinct_generations, drafted, prompt_categories, prompt_sums

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
OUTPUTS = ("cell", "method", "gamma", "repeat", "prompt", "category", "tokens", "log_likelihood", "correct")
"""Columns of `quality.parquet`, a line for each output (see `specdec.session.rescoring`); correct is missing where
no reference answer is known."""
_SAMPLED_SUMS = ["tokens", "rounds", "accepted", "rejected", "prefill_s", "decode_s"]
SAMPLED = ("temperature", "method", "gamma", "repeat", "prompt", "category", *_SAMPLED_SUMS, "flagged")
"""Columns of `sampled.parquet`, a line for each text that was drawn at a temperature beside a greedy run: counts and
seconds are sums over its rounds."""


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
    generation. Only work that every arm has done counts.
    """
    generations = undisturbed_prefills(generations)
    summaries = {}
    for gamma, arm in work.arms.items():
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
    summary: Summary, held_out: HeldOutPrediction | Undetermined, replay: pd.DataFrame, facts: RunFacts, replicates: int
) -> Curves:
    """Return the curves by name: `curve/<model>` in tokens per round, `curve/speedup/<model>`, and the 95% interval of
    each as `.ci_low` and `.ci_high`, where the data give one. A model that the data cannot determine has none.

    A model's speedup is its tokens per round over 1 + gamma c. The interval of the capped geometric's resamples c with
    the prompts, as the account does; those of position and replay hold c as measured. `held_out` is the prediction of
    prompts that no model was fitted to, or why there is none; `replay` is that of `Run.replay`.
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
                modelled["position"] = Interval(line.predicted, *bounds, held_out.prompts)
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


def _known(
    family: str, table: pd.DataFrame, statistic: Statistic, replicates: int, ranges: Mapping[str, Range]
) -> dict[str, float]:
    """Return the values of a statistic with their bounds as metrics of a family, those that the data can give."""
    intervals = bootstrap(table, statistic, replicates, ranges=ranges)
    values = {key: value for name, its in intervals.items() for key, value in its.as_metrics(family + name).items()}
    return finite(values)


def operation_metrics(summary: Summary, facts: RunFacts) -> dict[str, float]:
    """Return arithmetic per token over the baseline's, if there is any (theory.md 2.2), by formula and evaluated."""
    if facts.target_flops == 0:
        return {}
    c_ops = facts.drafter_flops / facts.target_flops
    sums = summary.primary.sums.sum()
    evaluated = (sums["nodes"] * (1 + c_ops) + sums["rounds"]) / sums["tokens"]
    return {
        "cost/c_ops": c_ops,
        "operations/capped_geometric": float(operations(summary.work.alpha, summary.work.primary_gamma, c_ops)),
        "operations/measured": float(evaluated),
    }


def total_variation(read: Callable[[], pd.DataFrame], facts: RunFacts, replicates: int) -> dict[str, float]:
    """Return a lossy law's mean distance from that without a draft, over tested positions; `read` reads the rounds."""
    if facts.lossless or facts.forced:
        return {}
    rounds = read()
    arm = drafted(rounds[rounds["gamma"] == facts.primary_gamma])
    sums = pd.DataFrame({"prompt": arm["prompt"], "tv": arm["tv"].map(sum), "tested": arm["tv"].map(len)})
    table = sums.groupby("prompt").sum().astype(float)
    return _known("lossless/", table, lambda s: {"tv": s["tv"] / s["tested"]}, replicates, {"tv": SHARE})


def null_metrics(arms: Arms, replicates: int) -> dict[str, float]:
    """Return `null/speedup`, the time per token of plain decoding over that of plain decoding measured once more, with
    its interval, and `null/floor`, how far the interval reaches from 1: what differs from 1 by less is noise. Both are
    of the `null/prompts` prompts that the control has decoded. Empty without a control; no floor for too few prompts.
    """
    if not any(method == NULL for method, _ in arms):
        return {}
    try:
        shared = arms.of_methods([BASELINE, NULL]).shared()
    except ValueError:  # it was interrupted before the baseline was done
        return {}
    table = prompt_sums(shared.plain(NULL)).join(prompt_sums(shared.plain()).add_suffix("_over"))
    interval = interval_of(
        table, lambda s: s["round_s_over"] / s["tokens_over"] / (s["round_s"] / s["tokens"]), replicates=replicates
    )
    metrics = finite(interval.as_metrics("null/speedup")) | {"null/prompts": float(len(table))}
    if interval.known:
        metrics["null/floor"] = max(interval.high, 1 / interval.low) - 1
    return metrics


def limit_metrics(summary: Summary) -> dict[str, float]:
    """Return what an engine without overhead would reach at the measured v and g = gamma c (theory.md 2.1 and 8.3):
    `speedup.limit` is Omega / (v + g); `speedup.limit.realised` has the tokens per round that came out instead of
    Omega, so that chance and the ends of texts are in both sides of speedup over limit; `cost/overhead_share` is o / (v
    + g + o).
    """
    account = summary.primary.account
    bare = account.time["v"] + account.time["g"]
    return {
        "speedup.limit": account.value("priced"),
        "speedup.limit.realised": account.value("tokens_per_round") / bare,
        "cost/overhead_share": account.time["o"] / (bare + account.time["o"]),
    }


def quality_metrics(rounds: pd.DataFrame, outputs: pd.DataFrame, gamma: int, replicates: int) -> dict[str, float]:
    """Return `quality/*`, what a lossy rule or a trained backbone does to the text of a run: of the drafter at one
    gamma, `quality/baseline_*` of its baseline and, where the target was trained, `quality/original_*` of plain
    decoding with the model that it was; each with the `.ci_low` and `.ci_high` of a prompt bootstrap.

    log_likelihood: mean per token, in nats; log_likelihood.over_baseline: the drafter's less the baseline's, on the
    same prompts. tv: mean over the tokens of the text. decided_otherwise: mean over rounds with a proposal.
    gsm8k_exact_match: share of outputs. What the data cannot give is absent.
    """
    rounds = pd.concat(Arms.of(rounds).shared().values()).sort_index()  # on the prompts that every method has done
    done = pd.MultiIndex.from_frame(rounds[["prompt", "repeat"]].drop_duplicates())
    outputs = outputs[pd.MultiIndex.from_frame(outputs[["prompt", "repeat"]]).isin(done)]
    arms = {"": [lines[lines["gamma"] == gamma] for lines in (drafted(rounds), drafted(outputs))]}
    for method in (BASELINE, ORIGINAL):
        arms[f"{method}_"] = [lines[lines["method"] == method] for lines in (rounds, outputs)]
    sums = {prefix: _quality_sums(*arm) for prefix, arm in arms.items() if len(arm[0])}
    table = pd.concat([part.add_prefix(prefix) for prefix, part in sums.items()], axis=1)
    possible = np.isfinite(table.filter(like="log_likelihood").to_numpy()).all()  # ln 0: what the model cannot write
    ranges = {"decided_otherwise": SHARE, "log_likelihood.over_baseline": ANY}
    for prefix in sums:
        ranges |= {f"{prefix}tv": SHARE, f"{prefix}gsm8k_exact_match": SHARE}
        ranges[f"{prefix}log_likelihood"] = Range(high=0.0)

    def values(s: Columns) -> dict[str, np.ndarray]:
        found = {"decided_otherwise": s["otherwise"] / s["decided"]}
        for prefix in sums:
            found[f"{prefix}log_likelihood"] = s[f"{prefix}log_likelihood"] / s[f"{prefix}tokens"]
            found[f"{prefix}tv"] = s[f"{prefix}tv"] / s[f"{prefix}tv_tokens"]
            found[f"{prefix}gsm8k_exact_match"] = s[f"{prefix}correct"] / s[f"{prefix}judged"]
        found["log_likelihood.over_baseline"] = found["log_likelihood"] - found["baseline_log_likelihood"]
        return found

    metrics = _known("quality/", table.replace(-np.inf, 0.0), values, replicates, ranges)
    return {name: value for name, value in metrics.items() if possible or "log_likelihood" not in name}


def _quality_sums(rounds: pd.DataFrame, outputs: pd.DataFrame) -> pd.DataFrame:
    """Return sums per prompt (index) of one method; zeros for what is not known of all of its rounds."""
    known = rounds["departure"].map(len)
    decided = rounds["otherwise"].notna()
    of_rounds = pd.DataFrame(
        {
            "prompt": rounds["prompt"],
            "tv": rounds["departure"].map(sum),
            "tv_tokens": known * (known == rounds["committed"]).all(),
            "otherwise": rounds["otherwise"].fillna(0.0),
            "decided": decided * (decided == (rounds["offered"] > 0)).all(),
        }
    )
    of_outputs = outputs[["prompt", "tokens", "log_likelihood"]].assign(
        correct=outputs["correct"].eq(True), judged=outputs["correct"].notna()
    )
    return of_rounds.groupby("prompt").sum().join(of_outputs.groupby("prompt").sum()).astype(float)


def sampled_metrics(texts: pd.DataFrame, replicates: int, timed: bool = True) -> dict[str, float]:
    """Return `sampled/*`: temperature, prompts, speedup, speedup.end_to_end, tokens_per_round and alpha.mle of the
    primary structure, with the `.ci_low` and `.ci_high` of a prompt bootstrap, and repetition.share, of prompts with a
    text that falls into a loop. Repeats are pooled; empty without texts.

    Its baseline decoded the same prompts at the same temperature, in turn with the drafter. Both texts are drawn from
    one law and differ, so speedup compares the time of a token. timed: False if the machine was too busy for intervals.
    """
    if texts.empty:
        return {}
    plain = texts["method"] == BASELINE
    parts = [texts[which].groupby("prompt")[_SAMPLED_SUMS].sum() for which in (~plain, plain)]
    sums = parts[0].join(parts[1].add_prefix("plain_"), how="inner").astype(float)
    metrics = {"temperature": float(texts["temperature"].iloc[0]), "prompts": float(len(sums))}

    def values(s: Columns) -> dict[str, np.ndarray]:
        ours, theirs, more = s["decode_s"], s["plain_decode_s"], s["tokens"] / s["plain_tokens"]
        return {
            "speedup": more * theirs / ours,
            "speedup.end_to_end": more * (theirs + s["plain_prefill_s"]) / (ours + s["prefill_s"]),
            "tokens_per_round": s["tokens"] / s["rounds"],
            "alpha.mle": s["accepted"] / (s["accepted"] + s["rejected"]),
        }

    metrics["repetition.share"] = float(texts.groupby("prompt")["flagged"].any().mean())
    ranges = {"tokens_per_round": per_round(int(texts.loc[~plain, "gamma"].max())), "alpha.mle": SHARE}
    measured = _known("sampled/", sums, values, replicates, ranges)
    if not timed:
        measured = {name: value for name, value in measured.items() if "speedup" not in name or ".ci_" not in name}
    return {f"sampled/{name}": value for name, value in metrics.items()} | measured


def peer_metrics(
    lines: Sequence[Mapping[str, Any]], read: Callable[[], pd.DataFrame], greedy: bool, replicates: int
) -> dict[str, float]:
    """Return each peer's time per token over that of our arm which does the same, prefill included on both sides, with
    its prompt bootstrap; under greedy also the share of the peer's outputs that are our baseline's, token for token.
    `lines` are the `generations` of `peers.json`, `read` reads ours, with their tokens.
    """
    if not lines:
        return {}
    generations = read().assign(seconds=lambda t: t["prefill_s"] + t["decode_s"])
    baseline = generations[generations["method"] == BASELINE].set_index(["prompt", "repeat"])["generated_token_ids"]
    metrics: dict[str, float] = {}
    for (name, method, gamma), peer in pd.DataFrame(list(lines)).groupby(["peer", "ours_method", "ours_gamma"]):
        ours = generations[(generations["method"] == method) & (generations["gamma"] == gamma)]
        sums, our_sums = (table.groupby("prompt")[["tokens", "seconds"]].sum() for table in (peer, ours))
        if greedy:
            texts = peer.set_index(["prompt", "repeat"])["generated_token_ids"]
            same = [text == baseline[work] for work, text in texts.items()]
            metrics[f"peer/{name}.identical"] = sum(same) / len(same)
        table = sums.join(our_sums.add_suffix("_ours"))
        ratio = interval_of(
            table, lambda s: s["seconds"] / s["tokens"] / (s["seconds_ours"] / s["tokens_ours"]), replicates=replicates
        )
        metrics |= ratio.as_metrics(f"peer/{name}.ratio")
    return metrics

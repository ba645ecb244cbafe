"""Sets what the founding papers claim beside what this project measures: claim, published, ours, verdict, why.

Ours comes from committed results (`committed`) and the ablations of heads. Published figures come from
`published.csv`, by source and table, or are quoted where a paper gives a direction and no figure. Models, text and
hardware differ, so a verdict is about the claim, not about equal figures: the direction, and where a paper prints a
size, whether our interval reaches it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from specdec.theory.capped_geometric import oracle_gain
from specdec.theory.capped_geometric import speedup as formula_speedup

from ..intervals import Interval
from ..papers.paper_tables import COST, load_published, printed_figures
from ..sections import Section
from . import committed as results
from . import grounded_gain, heads_ablation, heads_accuracy, heads_tree, real_model
from .committed import Measured

SAME, SMALLER, LARGER = "same", "same direction, smaller", "same direction, larger"
DIFFERENT, OPEN = "different", "cannot be told"
COLUMNS = (
    *("paper", "claim", "published", "ours, with 95% interval", "verdict", "why", "measured by"),
    *("on a real model", "verdict there"),
)
LEVIATHAN, CHEN, STERN = "Leviathan et al.", "Chen et al.", "Stern et al."
MEDUSA, GROUNDED, NGRAMMYS = "Medusa", "Grounded heads", "N-Grammys"
ABLATIONS = "notebook 04, from `analysis/results/heads_ablation.json`"
CHAT = "mt_bench"  # prompts of a session with both kinds of heads
BARS_COMMAND = "`pytest -m benchmark tests/benchmarks/test_grounded_bars.py`"
GAMMA = "4"
FLAT_TOKENS = 11  # of a call on one row of width 10, the root included
LENIENCES = ("1", "0.5", "0.3", "0.1")
SHARED = ("measurement.cost_contexts=[]", "tracking.enabled=false", "target.dtype=float32")


@dataclass(frozen=True)
class Claim:
    """A claim and its answer, all in words; `verdict` is one of this file's five."""

    paper: str
    claim: str
    published: str
    ours: str
    verdict: str
    why: str
    command: str


@dataclass(frozen=True)
class ClaimEvidence:
    """Everything that answers rest on."""

    runs: Mapping[str, Measured]  # what the benchmark measured, by name
    heads: list[Measured]  # the ablations of heads
    printed: pd.DataFrame  # `paper_tables.printed_figures` of the published figures, with its key as columns
    sessions: list[Measured]  # the sessions with both kinds of heads, see `grounded_gain.sessions`
    small: str = "small_model"  # the drafter of the runs `small_model`
    # the prompts of runs `small_model` and `small_model_docs`, in words
    domains: str = "the standard library's code over its documentation"
    code: str = "stdlib_code"  # the other prompts of `sessions`

    def values(self, source: str, table: str, metric: str, **wanted: object) -> pd.Series:
        """Return the printed figures of a metric, of the settings with these values. ValueError if there is none."""
        rows = self.printed[self.printed["source"].str.contains(source) & (self.printed["table"] == table)]
        for name, value in wanted.items():
            rows = rows[rows[name] == value]
        figures = rows[metric].dropna()
        if figures.empty:
            raise ValueError(f"no {metric} is printed in {source}, {table} for {wanted}")
        return figures

    def ablated(self, variant: str, structure: str) -> Measured:
        """Return the ablation of a variant with the most heads in use. ValueError if there is none."""
        entry = heads_ablation.deepest(self.heads, variant, structure)
        if entry is None:
            raise ValueError(f"the ablations have no {variant} in a {structure}")
        return entry


def evidence() -> ClaimEvidence:
    """Read the committed results and the published figures that come along. UsageError where a file is missing."""
    printed = printed_figures(load_published()).reset_index()
    return ClaimEvidence(results.load_results(), heads_ablation.load_ablation(), printed, grounded_gain.sessions())


def claims(basis: ClaimEvidence | None = None) -> list[Claim]:
    """Return all claims with their answers, paper by paper."""
    basis = basis or evidence()
    papers = (
        *(_leviathan, _formulas, _lenience, _chen, _stern, _medusa),
        *(_grounded, _grounded_sessions, _grounded_design, _ngrammys, _transition),
    )
    return [claim for answers in papers for claim in answers(basis)]


def claims_on_real_model(basis: ClaimEvidence | None = None, path: Path = real_model.RESULT) -> dict[str, Claim]:
    """Return the answers that a real model gives to the claims that were measured on it, by the words of each claim. No
    smaller model has its tokens: where papers draft with one, its own layers without some draft.
    """
    basis = replace(
        basis or evidence(),
        runs=real_model.claim_runs(path),
        sessions=real_model.heads_sessions(real_model.load_real(path, real_model.HEADS)),
        small="layer_skip",
        domains="HumanEval over MT-Bench",
        code="humaneval",
    )
    found: dict[str, Claim] = {}
    for answers in (_leviathan, _formulas, _lenience, _chen, _grounded_sessions, _ngrammys, _transition):
        with suppress(KeyError):  # a run that is not measured yet, for this claim and the paper's later ones
            for each in answers(basis):
                found[each.claim] = each
    return found


def claims_table(basis: ClaimEvidence | None = None) -> pd.DataFrame:
    """Return `claims` as a table with COLUMNS, the last two from `claims_on_real_model`."""
    there = claims_on_real_model(basis)
    real = {claim: (each.ours, each.verdict) for claim, each in there.items()}
    lines = [[*vars(each).values(), *real.get(each.claim, ("–", "–"))] for each in claims(basis)]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def claims_section(basis: ClaimEvidence | None = None) -> Section:
    """Return the table with how many verdicts of each kind there are."""
    table = claims_table(basis)
    text = "; ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())
    there = table[table["verdict there"] != "–"]
    alike = int((there["verdict"] == there["verdict there"]).sum())
    found = (
        f"Of {len(table)} claims: {text}. Figures are of the small pocket target on a CPU, the published ones of "
        "large models on accelerators: a verdict says whether the claim holds here too."
    )
    if len(there):
        found += f" {len(there)} were tested on {real_model.MODEL} too, with the same verdict for {alike}."
    title = "What the papers claim, and what is found here"
    return Section(title, (found, measured_in_words(basis)), (("", table),))


def measured_in_words(basis: ClaimEvidence | None = None) -> str:
    """Say where, when and under which load the runs of the benchmark were measured."""
    runs = list((basis or evidence()).runs.values())
    loads = [run["load_average"][end][0] for run in runs for end in ("start", "end")]
    days, threads = sorted({run["date"] for run in runs}), sorted({run["threads"] for run in runs})
    return (
        f"The {len(runs)} runs were measured on {' and '.join(days)} on {' or '.join(map(str, threads))} thread"
        f"{'' if threads == [1] else 's'} of an {runs[0]['cpu']}, while the load average of the machine was "
        f"{min(loads):.1f} to {max(loads):.1f}."
    )


def claims_markdown(basis: ClaimEvidence | None = None) -> str:
    """Return the table as Markdown, as `notebooks/guide/papers.md` has it."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in claims_table(basis).itertuples(index=False)]
    return "\n".join(lines)


# Verdicts -------------------------------------------------------------------------------------------


def direction(value: Interval, threshold: float = 0.0) -> str:
    """Return SAME for an interval above the threshold, DIFFERENT for one below it, OPEN for one that contains it."""
    return SAME if value.low > threshold else DIFFERENT if value.high < threshold else OPEN


def size(value: Interval, low: float, high: float, threshold: float = 0.0) -> str:
    """Return `direction`, and where it is the same whether the interval reaches the published range."""
    verdict = direction(value, threshold)
    if verdict != SAME:
        return verdict
    return SMALLER if value.high < low else LARGER if value.low > high else SAME


def nothing(value: Interval, within: float) -> str:
    """Return SAME for an interval inside +-`within`, DIFFERENT for one outside, OPEN for one that reaches both."""
    if -within < value.low and value.high < within:
        return SAME
    return DIFFERENT if value.low > within or value.high < -within else OPEN


def _range(values: pd.Series, form: str = ".2f") -> str:
    low, high = values.min(), values.max()
    return f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"


def _command(run: Measured) -> str:
    """Return what distinguishes the command of a run from the others'; the whole one stands in the results."""
    words = str(run["command"]).removeprefix("python -m specdec.run ").split()
    own = (word for word in words if word not in SHARED and not word.startswith("study.leave_out="))
    return f"`{' '.join(own)}`"


# Answers, paper by paper ---------------------------------------------------------------------------


def _leviathan(basis: ClaimEvidence) -> Iterator[Claim]:
    """Answer for speed, outputs and alpha of Leviathan et al.; `_formulas` and `_lenience` have the rest."""
    greedy, sampled = basis.runs["small_model"], basis.runs["small_model_sampled"]
    claim = partial(Claim, LEVIATHAN, command=_command(greedy))
    fast, warm = results.speedup(greedy, GAMMA), results.speedup(sampled, GAMMA)
    alpha, cost = results.alpha(greedy), results.metric(greedy, "cost/c").estimate
    printed = basis.values("2211.17192", "Table 2", "speedup_measured", drafter="T5-small (77M)")
    their_cost = basis.values("2211.17192", "Table 2", COST, drafter="T5-small (77M)").max()
    yield claim(
        "A small model drafts, and decoding is 2 to 3 times faster",
        f"{_range(printed, '.1f')} (T5-XXL with T5-small)",
        f"{fast:.2f} greedy, {warm:.2f} at temperature 1",
        size(fast, printed.min(), printed.max(), 1.0),
        f"A draft step costs {cost:.2f} of a target call here, {their_cost:g} there: small models spend their time "
        f"outside the arithmetic. A call on 5 tokens takes {results.verify_ratio(greedy, GAMMA):.2f} of one on a "
        "single token: a CPU core computes where a TPU waits for memory",
    )

    share, unexplained = (results.metric(greedy, f"lossless/{name}").estimate for name in ("identical", "unexplained"))
    outputs = len(greedy["arms"]) * len(greedy["prompts"])
    yield claim(
        "The output distribution is unchanged",
        "proven (appendix A.1)",
        f"{share:.0%} of {outputs} greedy outputs identical, {unexplained:.0f} differences unexplained; exact to 1e-12 "
        "by enumeration when sampling",
        SAME if share == 1 and unexplained == 0 else DIFFERENT,
        "The same rule, tested on every drafter, structure and lossless verifier",
        command="`pytest tests/contracts/test_losslessness.py`",
    )

    alphas = (alpha, results.alpha(sampled))
    inside = all(0.5 <= value.low and value.high <= 0.9 for value in alphas)
    outside = any(value.high < 0.5 or value.low > 0.9 for value in alphas)
    yield claim(
        "Drafters two orders of magnitude smaller have α between 0.5 and 0.9",
        "0.5 to 0.9 (Table 3)",
        f"{alphas[0]:.3f} at temperature 0, {alphas[1]:.3f} at 1",
        SAME if inside else DIFFERENT if outside else OPEN,
        "Target and drafter learned from the same text with one tokenizer, as the paper's pairs did; a step of ours "
        f"does {results.metric(greedy, 'cost/c_ops').estimate:.2f} of the target's arithmetic",
    )

    kinds = {basis.small.replace("_", " "): "small_model", "bigram": "bigram", "unigram": "unigram"}
    runs = {words: (basis.runs[name], basis.runs[f"{name}_sampled"]) for words, name in kinds.items()}
    gains = {words: results.alpha_difference(*pair) for words, pair in runs.items()}
    verdicts = {words: direction(value) for words, value in gains.items()}
    higher = [words for words, verdict in verdicts.items() if verdict == SAME]
    rows = basis.printed[basis.printed["source"].str.contains("2211.17192") & (basis.printed["table"] == "Table 3")]
    pairs = rows.pivot(index=["target", "drafter"], columns="temperature", values="alpha")
    falls = (pairs[0.0] - pairs[1.0]).round(6)
    yield claim(
        "α is higher at temperature 0 than at 1, for all models",
        f"{int((falls > 0).sum())} of {len(falls)} pairs of Table 3 higher, {int((falls == 0).sum())} equal, "
        f"{int((falls < 0).sum())} lower",
        "; ".join(f"{words} {value:+.3f}" for words, value in gains.items()),
        SAME if set(verdicts.values()) == {SAME} else DIFFERENT if DIFFERENT in verdicts.values() else OPEN,
        f"Higher beyond chance for {' and '.join(higher) or 'none'}. At temperature 0 a table proposes one token only, "
        "which greedy text, here often a loop, may not hold; flat laws always share something",
        command=_command(sampled),
    )

    uni, bi = results.alpha(basis.runs["unigram_sampled"]), results.alpha(basis.runs["bigram_sampled"])
    table_3 = partial(basis.values, "2211.17192", "Table 3", "alpha", temperature=1.0)
    yield claim(
        "Even unigrams and bigrams have an α that is not negligible",
        f"unigram {_range(table_3(drafter='unigram'))}, bigram {_range(table_3(drafter='bigram'))} at temperature 1",
        f"unigram {uni:.3f}, bigram {bi:.3f} at temperature 1",
        SAME if min(uni.low, bi.low) > 0.01 else DIFFERENT if max(uni.high, bi.high) < 0.01 else OPEN,
        "The tables are counted on text like the target's",
        command=_command(basis.runs["bigram_sampled"]),
    )


def _formulas(basis: ClaimEvidence) -> Iterator[Claim]:
    """Answer for what Leviathan et al. compute from alpha, gamma and c."""
    claim, greedy, bigram = partial(Claim, LEVIATHAN), basis.runs["small_model"], basis.runs["bigram"]
    fast, alpha, cost = results.speedup(greedy, GAMMA), results.alpha(greedy), results.metric(greedy, "cost/c").estimate
    value, table_alpha, free = results.speedup(bigram, "3"), results.alpha(bigram), results.metric(bigram, "cost/c")
    expected = float(formula_speedup(table_alpha.estimate, 3, free.estimate))
    ideal = basis.values("2211.17192", "text 4.2", "speedup_ideal").iloc[0]
    yield claim(
        "A bigram costs nothing, so its α of 0.2 makes decoding 1.25 times faster at γ 3",
        f"{ideal:g} (computed, c = 0)",
        f"{value:.2f} measured; α {table_alpha:.3f} and our c give {expected:.2f}",
        size(value, ideal, ideal, 1.0),
        f"The look-up is free (c {free.estimate:.3f}), the verification is not: a call on 4 tokens takes "
        f"{results.verify_ratio(bigram, '3'):.2f} of a call on one",
        _command(bigram),
    )

    expected = float(formula_speedup(alpha.estimate, int(GAMMA), cost))
    ratio = Interval(fast.estimate / expected, fast.low / expected, fast.high / expected, prompts=fast.prompts)
    rows = basis.printed[basis.printed["table"] == "Table 2"].dropna(subset=["speedup_measured", "alpha", COST])
    settings = rows["alpha"].to_numpy(), rows["gamma"].to_numpy(), rows[COST].to_numpy()
    theirs = rows["speedup_measured"] / formula_speedup(*settings)
    yield claim(
        "Measured speedups mostly match Theorem 3.8",
        f"measured over formula {_range(theirs)} in {len(theirs)} rows (Table 4)",
        f"{ratio:.2f}",
        SAME if ratio.low <= theirs.max() and ratio.high >= theirs.min() else DIFFERENT,
        "The formula lets a call on a whole draft cost as much as one on a token; here it costs more. Every run's gap "
        "account says how much each assumption takes away",
        _command(greedy),
    )

    most_printed = basis.values("2211.17192", "text 3.5", "oracle_gain_over_fixed_gamma").iloc[0]
    most = max(oracle_gain(value, 0.005) for value in np.linspace(0.9, 0.999, 100)) - 1
    gains = [oracle_gain(value, cost) - 1 for value in (alpha.estimate, *np.linspace(alpha.low, alpha.high, 20))]
    ours = Interval(gains[0], min(gains), max(gains), prompts=alpha.prompts)
    yield claim(
        "An oracle for γ would gain up to about 60% over the best fixed γ",
        f"{most_printed:.0f}%",
        f"theory: {most:.0%} at c 0.005, never above 1/(e-1) = 58%; at our α and c {ours:.0%}",
        SAME if abs(most - most_printed / 100) < 0.05 else DIFFERENT,
        "Exact, from the formulas of section 3.5; typical α and c gain less",
        "notebook 01, *Which gamma, and at what price*",
    )


def _lenience(basis: ClaimEvidence) -> Iterator[Claim]:
    """Answer for the lenient rule of Leviathan et al."""
    run = basis.runs["lenience"]
    claim = partial(Claim, LEVIATHAN, command=_command(run))

    def printed(metric: str, temperature: float, drafter: str = "T5-small (77M)") -> pd.Series:
        """Return the printed figures of the strict rule and of each more lenient one, from Table 5 and A.5."""
        values = basis.values("2211.17192", "Appendix A.5", metric, temperature=temperature, drafter=drafter)
        return values.iloc[::-1]  # printed figures are sorted by their variant: "lenience l=0.1" comes first

    small, verdicts, shown, theirs = basis.small, [], [], []
    for name, published in ((small, "T5-small (77M)"), ("unigram", "unigram"), ("bigram", "bigram")):
        rises = [results.metric(run, f"lenience/rise.{name}.sampled.{lenience}") for lenience in LENIENCES[1:]]
        verdicts += [direction(value) for value in rises]
        ends = [results.metric(run, f"lenience/alpha.{name}.sampled.{lenience}") for lenience in LENIENCES]
        values = ", ".join(f"{value.estimate:.3f}" for value in ends)
        shown.append(f"{name.replace('_', ' ')} {values}, in all {rises[-1]:+.3f}")
        theirs.append(", ".join(f"{value:.2f}" for value in printed("alpha", 1.0, published)))
    yield claim(
        "The more lenient the rule, the higher α: l = 1, 0.5, 0.3, 0.1",
        f"T5-small {theirs[0]}; unigram {theirs[1]}; bigram {theirs[2]} (Table 5, sampled)",
        "; ".join(shown),
        SAME if set(verdicts) == {SAME} else DIFFERENT if DIFFERENT in verdicts else OPEN,
        "A token passes with min(1, p/(l q)), which grows as l falls; how far depends on how much of q lies above p",
    )

    cold, warm = (results.metric(run, f"lenience/rise.{small}.{form}.0.1") for form in ("greedy", "sampled"))
    gains = [values.iloc[-1] - values.iloc[0] for values in (printed("alpha", 0.0), printed("alpha", 1.0))]
    yield claim(
        "At temperature 0 lenience raises α similarly",
        f"T5-small from l = 1 to 0.1: {gains[0]:+.2f} greedy (A.5), {gains[1]:+.2f} sampled (Table 5)",
        f"{cold:+.3f} greedy, {warm:+.3f} sampled",
        size(cold, gains[0], gains[0]),
        "Greedy α starts higher and has less to gain; in the paper too the gain is about half of that of sampled text",
    )

    gain = results.metric(run, f"lenience/rise.{small}.greedy.0.5")
    none = 0.01  # two alphas that are printed alike with two decimals differ by less
    yield claim(
        "A lenience of 0.5 gains nothing for greedy text",
        "α 0.75 at l = 1 and at 0.5 (A.5, T5-small)",
        f"{gain:+.3f}",
        nothing(gain, none),
        "It changes only positions at which the target's second choice has more than half of the first's probability",
    )

    more = results.metric(run, "lenience/sampled.over_strict.0.1")
    rates = [results.metric(run, f"lenience/sampled.tokens_per_round.{lenience}") for lenience in ("1", "0.1")]
    ratio = results.arm_ratio(run, "sampled 0.1", "sampled 1")
    fast = [results.metric(run, f"lenience/sampled.speedup.{lenience}") for lenience in ("1", "0.1")]
    speeds = printed("speedup_predicted", 1.0)
    times = speeds.iloc[-1] / speeds.iloc[0]
    yield claim(
        "Lenience makes sampled decoding faster",
        f"{', '.join(f'{value:g}' for value in speeds)} at l = 1, 0.5, 0.3, 0.1 (A.5, computed for c = 0.015): times "
        f"{times:.1f}",
        f"tokens per round {rates[0]:.2f} at l = 1, {rates[1]:.2f} at 0.1, {more:+.2f}; speedup {fast[0]:.2f} and "
        f"{fast[1]:.2f}, times {ratio:.2f}",
        size(ratio, times, times, 1.0),
        "Chains of 8 at both leniences, so that only acceptance changes; the paper takes the best γ for each, and its "
        "printed speedups exceed what Theorem 3.8 gives at the printed α",
    )


def _chen(basis: ClaimEvidence) -> Iterator[Claim]:
    claim = partial(Claim, CHEN)
    sampled, code, prose = (basis.runs[name] for name in ("small_model_sampled", "small_model", "small_model_docs"))
    printed = basis.values("2302.01318", "Table 1", "speedup_measured")
    value = results.speedup(sampled, GAMMA)
    draft = basis.values("2302.01318", "text", "draft_time_per_token").iloc[0]
    theirs = draft / basis.values("2302.01318", "Table 1", "time_per_token_baseline").iloc[0]
    yield claim(
        "Sampling is 2 to 2.5 times faster without altering the samples",
        f"{_range(printed)} (Chinchilla 70B, K = 4)",
        f"{value:.2f} at temperature 1",
        size(value, printed.min(), printed.max(), 1.0),
        f"c is {results.metric(sampled, 'cost/c').estimate:.2f} here and {theirs:.2f} there, and 5 tokens in a call "
        f"cost {results.verify_ratio(sampled, GAMMA):.2f} of one",
        _command(sampled),
    )

    gain = results.tokens_per_round_elsewhere(code, GAMMA, prose, GAMMA)
    yield claim(
        "Acceptance depends on the domain: higher on code than on prose",
        "speedup 2.46 on HumanEval, 1.92 to 2.01 on XSum",
        f"{gain:+.2f} tokens per round on {basis.domains}",
        direction(gain),
        "Other models, other prose; prompts of the two sets are not paired",
        _command(prose),
    )

    more = results.more_tokens_per_round(code, "8", code, GAMMA)
    ratio = results.arm_ratio(code, "8", GAMMA)
    yield claim(
        "Longer drafts accept more, and beyond some length decoding gets slower",
        "Figure 1, no figures printed",
        f"from γ 4 to 8: {more:+.2f} tokens per round, speedup times {ratio:.2f}",
        direction(more) if ratio.high < 1 else DIFFERENT if ratio.low > 1 else OPEN,
        "Each further draft token costs a step of the drafter and is reached less often",
        _command(code),
    )


def _stern(basis: ClaimEvidence) -> Iterator[Claim]:
    run = basis.runs["blockwise"]
    claim = partial(Claim, STERN, command=_command(run))
    sizes = {gamma: results.tokens_per_round(run, str(gamma)) for gamma in (1, 3, 4)}
    gain = results.more_tokens_per_round(run, "4", run, "1")
    table_1 = partial(basis.values, "1811.03115", "Table 1", "tokens_per_round")
    printed = [table_1(drafter=f"blockwise heads, k={k}, regular").iloc[0] for k in (2, 4, 10)]
    yield claim(
        "With a frozen model the mean accepted block size grows with k and soon stops growing",
        "k = 2: {:.2f}, 4: {:.2f}, 10: {:.2f} (translation)".format(*printed),
        "; ".join(f"k = {gamma + 1}: {value:.2f}" for gamma, value in sizes.items())
        + f"; k = 5 over k = 2 {gain:+.2f}",
        direction(gain),
        "Heads on one frozen state know less of each further token; ours were trained on little text",
    )

    block = results.tokens_per_round(run, GAMMA)
    fast, ratio = results.speedup(run, GAMMA), results.arm_ratio(run, GAMMA, "1")
    behind = Interval(block.estimate - fast.estimate, block.low - fast.high, block.high - fast.low)
    yield claim(
        "Wall clock gains less than iterations, and larger blocks end by losing time",
        "block 4.7 gives 3.3 (k = 8), then 4.95 gives 3.04 (k = 10)",
        f"k = 5: block {block:.2f}, speedup {fast:.2f}; speedup of k = 5 over k = 2 {ratio:.2f}",
        direction(behind) if ratio.high < 1 else DIFFERENT if ratio.low > 1 else OPEN,
        "Verifying a block costs more than a token, and all the more where the processor and not memory is busy",
    )

    loose, strict = basis.runs["blockwise_top_2"], basis.runs["blockwise_top_1"]
    longer = results.more_tokens_per_round(loose, GAMMA, strict, GAMMA)
    trained = "blockwise heads, k=6, fine tuning and distillation"
    exact = table_1(drafter=trained).iloc[0]
    gained = basis.values("1811.03115", "text 7.1", "tokens_per_round", drafter=f"{trained}, top-2").iloc[0] - exact
    yield claim(
        "Accepting the two likeliest tokens instead of the likeliest lengthens blocks",
        f"{gained:+.2f} at k = 6 (top-2)",
        f"{longer:+.2f} at k = 5",
        direction(longer),
        "The looser rule accepts whatever the stricter one does; what its text loses is in the run's `quality` metrics",
        command=_command(loose),
    )


def _medusa(basis: ClaimEvidence) -> Iterator[Claim]:
    session, run = basis.runs["all_drafters"], basis.runs["typical_acceptance"]
    claim = partial(Claim, MEDUSA, command=_command(run))

    tree, chain = (basis.ablated(heads_ablation.INDEPENDENT, shape) for shape in ("tree", "chain"))
    gain = heads_ablation.difference(tree, chain)
    ratio = results.arm_ratio(session, "medusa, tree", "medusa, chain")
    table_3 = partial(basis.values, "2401.10774", "Table 3", "speedup_measured")
    names = ("Medusa-1 heads without tree attention", "plus tree attention")
    printed = [table_3(drafter=name).iloc[0] for name in names]
    yield claim(
        "Verifying a tree of candidates is faster than a chain",
        f"{printed[1]:g} against {printed[0]:g} (Table 3, approximate): times {printed[1] / printed[0]:.2f}",
        f"{gain:+.2f} tokens per step with a tree of {tree['nodes']} nodes; speed times {ratio:.2f} at 4 nodes each",
        direction(ratio, 1.0),
        "The tree accepts more here too; what it adds has to pay for siblings, which a call on one core feels",
        command=f"{_command(session)}; {ABLATIONS}",
    )

    trees = heads_tree.load_trees()[heads_ablation.INDEPENDENT]
    sparse, dense = trees[f"{heads_tree.CHANCES} 64"], trees["product 4x4x4x4"]
    beyond = heads_ablation.difference(sparse, dense)
    yield claim(
        "A tree of 64 nodes found by search accepts more than a dense one several times its size",
        "Figure 4: 64 nodes against 256, no figures printed",
        f"{sparse['nodes']} nodes over {dense['nodes']}: {beyond:+.2f} tokens per step",
        direction(beyond),
        "A product spends its nodes on choices that are rarely right",
        command="notebook 04, from `analysis/results/heads_tree.json`",
    )

    lead = results.metric(run, "typical_acceptance/typical.over_rejection.1")
    rules = ("greedy", 0), ("rejection", 1), ("typical", 1)  # with temperatures
    cold, exact, loose = (results.metric(run, f"typical_acceptance/{rule}.tokens_per_call.{t}") for rule, t in rules)
    yield claim(
        "Rejection sampling accepts less as the temperature rises; typical acceptance does not",
        "no figures printed; Figure 5 has typical above random sampling at 0.7",
        f"tokens per step {cold:.2f} at temperature 0; at 1 rejection {exact:.2f}, typical "
        f"{loose:.2f}; typical over rejection {lead:+.2f}",
        direction(lead),
        "Typical acceptance takes whatever the target finds likely enough, so that its text is not the target's",
    )

    rates, quality = (
        [results.metric(run, f"typical_acceptance/epsilon.{name}.{point}") for point in ("0.01", "0.5")]
        for name in ("tokens_per_call", "log_likelihood")
    )
    yield claim(
        "A higher threshold ε buys quality with rate",
        "Figure 5, ε from 0.01 to 0.25",
        f"ε 0.01 against 0.5: {rates[0]:.2f} and {rates[1]:.2f} tokens per step; log-likelihood per token "
        f"{quality[0]:.2f} and {quality[1]:.2f}",
        SAME if rates[0].low > rates[1].high and quality[1].low > quality[0].high else OPEN,
        "Quality is the target's own log-likelihood, not a judge's score; intervals that overlap tell nothing apart",
    )

    law = np.array([0.5, 0.3, 0.15, 0.05])  # that of the test
    yield claim(
        "Rejection sampling may reject a draft of the very same model, since the two are sampled independently",
        "section 2.3.1, no figures printed",
        "exact, by enumeration: min(1, p/q) rejects nothing of a draft drawn from q = p, in chains and among siblings; "
        f"exact match with an independent draw rejects {1 - (law**2).sum():.1%} of the law (0.5, 0.3, 0.15, 0.05), "
        "Medusa's typical acceptance 5%",
        DIFFERENT,
        "What the paper says is so of exact match, where draft and target are two draws; rejection sampling compares "
        "their laws",
        command="`pytest tests/contracts/test_identical_draft.py`",
    )


def _grounded(basis: ClaimEvidence) -> Iterator[Claim]:
    claim, printed = partial(Claim, GROUNDED, command=ABLATIONS), heads_ablation.PUBLISHED_GAIN
    kinds = (heads_ablation.GROUNDED, heads_ablation.INDEPENDENT)
    grounded, independent = (basis.ablated(kind, "tree") for kind in kinds)
    gain = heads_ablation.difference(grounded, independent)
    yield claim(
        "Heads that read what was drafted yield more tokens per step than independent ones",
        f"{printed:+.2f} (Vicuna-7B, four heads)",
        f"{gain:+.2f}",
        size(gain, printed, printed),
        "A target some hundred times smaller, heads of few steps of training",
    )

    table = heads_accuracy.accuracies(heads_accuracy.load_accuracy()).set_index("head")
    last, leads = table.loc[4], table["lead"]
    not_so = [f"{head} ({lead:+.3f})" for head, lead in leads.items() if direction(lead) == DIFFERENT]
    earlier = f". It does not hold for head {' and head '.join(not_so)}" if not_so else ""
    yield claim(
        "The first choice of grounded head 4 is right more often than five choices of independent head 4",
        "direction only (Vicuna-7B)",
        f"{last['grounded_top1']:.3f} against {last['independent_top5']:.3f}: {last['lead']:+.3f}",
        direction(last["lead"]),
        f"The shipped heads on held-out texts, at the same positions{earlier}",
        command="notebook 04, from `analysis/results/heads_accuracy.json`",
    )

    falls = heads_ablation.steepness(grounded, independent)
    yield claim(
        "Accuracy falls less from head to head if heads are grounded",
        "direction only",
        f"last head over first: grounded {falls.first:.2f}, independent {falls.second:.2f}; difference "
        f"{falls.difference:+.2f}",
        direction(falls.difference),
        "A later head that knows the tokens before it has less to guess",
    )


def _grounded_sessions(basis: ClaimEvidence) -> Iterator[Claim]:
    claim, printed = partial(Claim, GROUNDED, command=BARS_COMMAND), heads_ablation.PUBLISHED_GAIN
    figure = partial(grounded_gain.figure_of, basis.sessions)
    gain, elsewhere = (figure(prompts, "tokens_per_round.difference") for prompts in (CHAT, basis.code))
    near = min(abs(end - printed) for end in (gain.low, gain.high))
    rounding = "; the nearer end of our interval is the published figure to its two decimals" if near < 0.005 else ""
    yield claim(
        "On MT-Bench they yield 0.43 tokens per step more than independent heads",
        f"{printed:+.2f} (Vicuna-7B, MT-Bench, four heads)",
        f"{gain:+.3f} on MT-Bench, {elsewhere:+.3f} on {elsewhere.prompts} prompts of code",
        size(gain, printed, printed),
        "The shipped heads in one session and on one tree, trained five times as long as those of the ablation above"
        f"{rounding}",
    )

    ratio, code = (figure(prompts, "speedup.ratio") for prompts in (CHAT, basis.code))
    tokens = figure(CHAT, "tokens_per_round.ratio")
    faster = basis.values("preprint of Hydra", "text", "speedup_over_medusa").iloc[0]
    yield claim(
        "Grounded heads decode faster than independent ones",
        f"times {faster:g} (Vicuna-7B, MT-Bench)",
        f"times {ratio:.2f} on MT-Bench, {code:.2f} on {code.prompts} prompts of code; interleaved in one session each",
        size(ratio, faster, faster, 1.0),
        f"Tokens per round are {tokens:.2f} times as many on MT-Bench, and a round with a grounded draft takes longer",
    )

    fast = figure(CHAT, "speedup", heads_ablation.GROUNDED)
    most = basis.values("preprint of Hydra", "text", "speedup_measured").iloc[0]
    yield claim(
        "Grounded heads decode more than twice as fast as plain decoding",
        f"times {most:g} (Vicuna-7B, MT-Bench)",
        f"times {fast:.2f} on MT-Bench",
        size(fast, most, most, 1.0),
        "A call of this small target takes little time, so that heads and the verification of their tree cost more "
        "than they save",
    )


def _grounded_design(basis: ClaimEvidence) -> Iterator[Claim]:
    """Answer for the ablations of the paper's section 5.3, which it shows by the accuracy of each head."""
    plain = basis.ablated(heads_ablation.GROUNDED, "tree")
    little = heads_ablation.PUBLISHED_GAIN / 10
    changes = (  # variant, claim, figure; whether the paper finds it worse, or no different
        ("layers_4", "More hidden layers in a head gain next to nothing", "Figure 5, one to four layers", False),
        ("offset_2", "States from a quarter of the depth below the last serve as well", "Figure 6, 8 of 32", False),
        ("offset_4", "States from half of the depth make heads worse", "Figure 6, 16 of 32", True),
        ("embeddings", "Input embeddings in place of the last state make heads far worse", "Figure 7", True),
        ("gru", "A GRU in place of an MLP changes little", "Figure 8", False),
    )
    for variant, words, figure, worse in changes:
        change = heads_ablation.difference(basis.ablated(variant, "tree"), plain)
        fallen = Interval(-change.estimate, -change.high, -change.low, prompts=change.prompts)
        yield Claim(
            GROUNDED,
            words,
            f"direction only ({figure}, accuracy by head)",
            f"{change:+.3f} tokens per step, with {heads_ablation.WORDS[variant]}",
            direction(fallen) if worse else nothing(change, little),
            "Decoded with a tree"
            + ("" if worse else f"; little is a tenth of the {heads_ablation.PUBLISHED_GAIN} that grounding gains"),
            ABLATIONS,
        )


def _ngrammys(basis: ClaimEvidence) -> Iterator[Claim]:
    ablation, grid, transition = (basis.runs[f] for f in ("ngrammys_ablation", "ngrammys_grid", "phase_transition"))
    claim = partial(Claim, NGRAMMYS, command=_command(ablation))
    names = ("ngram.of_wins", "model_bigram.of_wins", "tokens_per_call")
    context, bigram, calls = (results.metric(ablation, f"ablation/{name}").estimate for name in names)
    yield claim(
        "Context n-grams and the model's bigram complement each other in one draft",
        "direction only (allotment and acceptance by strategy)",
        f"of accepted rows, context {context:.0%}, bigram {bigram:.0%}; {calls:.2f} tokens per call together",
        SAME if min(context, bigram) > 0 else DIFFERENT,
        "Rows that both propose count for the context, which is asked first",
    )

    far, near = (results.metric(ablation, f"ablation/{name}.length").estimate for name in ("ngram", "model_bigram"))
    yield claim(
        "Context n-grams speculate further ahead than the model's bigram",
        "direction only (accepted lengths by strategy; the bigram weak at larger w, the context often at 10)",
        f"{far:.2f} against {near:.2f} accepted tokens of a row that wins",
        SAME if far > near else DIFFERENT,
        "The bigram sees one token, whatever the width; a repeated passage goes on",
    )

    def whole(name: str) -> tuple[Interval, float]:
        """Return the speedup of whole runs in one shape, and its tokens per call."""
        fast, calls = (results.metric(grid, f"grid/whole.{name}.{what}") for what in ("speedup", "tokens_per_call"))
        return fast, calls.estimate

    fast, calls = whole("best")
    shape = tuple(int(results.metric(grid, f"grid/best_{side}").estimate) for side in "kw")
    yield claim(
        "Drafts from n-grams alone, with the best shape (k\\*, w\\*), decode faster than plain decoding",
        "direction only (table, model by data set; no value could be recovered)",
        f"{fast:.2f} at {shape}, {calls:.2f} tokens per call",
        direction(fast, 1.0),
        "Whole runs of all prompts, in a batch of rows as in the paper; the shape was chosen on the same texts, which "
        "favours it a little",
        command=_command(grid),
    )

    fast, calls = whole("10x10")
    lead = results.metric(grid, "grid/whole.lead")
    yield claim(
        "The fixed shape (10, 10) decodes faster than plain decoding too",
        "direction only (table, model by data set; no value could be recovered)",
        f"{fast:.2f}, {calls:.2f} tokens per call; the best shape leads by {lead:.2f}",
        direction(fast, 1.0),
        f"A call on its 110 tokens takes {_slowdown(transition, '500')} of one on two tokens "
        "behind 500 in the cache, which more tokens per call have to pay for",
        command=_command(grid),
    )


def _transition(basis: ClaimEvidence) -> Iterator[Claim]:
    """Answer for the phase transition of N-Grammys."""
    transition = basis.runs["phase_transition"]
    claim = partial(Claim, NGRAMMYS, command=_command(transition))
    contexts = sorted(transition["slowdowns"], key=int)
    flat = [int(results.metric(transition, f"transition/tokens_within_10pct.{at}").estimate) for at in contexts]
    yield claim(
        "A call on several rows costs nearly as much as one on a token, up to a phase transition",
        "direction only (slow-down over k, w and context)",
        f"at most 10% more than (1, 1), a call on two tokens, up to {flat[0]} tokens behind {contexts[0]} in the "
        f"cache, {flat[-1]} behind {contexts[-1]}",
        SAME if min(flat) >= FLAT_TOKENS else DIFFERENT if max(flat) < FLAT_TOKENS else OPEN,
        f"Same from {FLAT_TOKENS} tokens on, a row of the paper's width 10; where a core computes as long as it reads "
        "there is no flat part",
    )

    first, last = (transition["slowdowns"][context] for context in (contexts[0], contexts[-1]))
    yield claim(
        "Behind a longer context a wide call costs more",
        "direction only (slow-down over k, w and context)",
        "(10, 10) over (1, 1), mean (and range) of the passes: "
        + ", ".join(f"{_slowdown(transition, context)} behind {context}" for context in contexts),
        SAME if min(last) > max(first) else DIFFERENT if max(last) < min(first) else OPEN,
        "Each row attends to a cache of its own; told apart only where the ranges do not overlap",
    )


def _slowdown(transition: Measured, context: str) -> str:
    """Return the slow-down of (10, 10) in words: its mean and range over passes."""
    values = transition["slowdowns"][context]
    return f"{np.mean(values):.1f} times ({min(values):.1f} to {max(values):.1f})"

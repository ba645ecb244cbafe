"""Says what a run tells about models of acceptance: tests of the i.i.d. model, which model fits, prediction, and the
gamma that each would have chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specdec.errors import UsageError

from ..comparisons import best_in_words
from ..figures import pictures, run_figures, style
from ..intervals import SHARE, Columns, Interval, bootstrap, too_few
from ..read.runs import Run
from ..rounds import distinct_generations, drafted, prompt_sums
from ..sections import Section, counted
from . import iid
from .estimates import beta_geometric, compare_models, depth_sums, estimate_alpha, followers, hazards
from .prediction import LABELS, HeldOutPrediction, Undetermined
from .prediction_section import held_out, section_of

INDEPENDENT, FITTED = "Is acceptance independent and the same everywhere?", "Which model describes the rounds?"
AIC_NAMES = LABELS | {"capped_geometric": "capped geometric (one alpha)", "markov": "previous round full or not"}
RECORDED = (
    "The text was recorded and the run is its replay, so a replay neither predicts this run nor tests it: it would "
    "agree by construction."
)
ONE_GAMMA = "It has lengths at one gamma only: nothing predicts another one, and no alpha of the text is known."
REPLICATES, REFITS = 1000, 100  # of tests and fits, the same on every page that shows them
SIGNIFICANT = 0.05
PERMUTATIONS, FEWER = 1999, 199  # of the memory test; fewer with very many rounds, where any memory shows
MANY = 200_000  # rounds
QUESTIONS = {  # test: question, reading of a rejection, reading of none
    "depth": ("Does acceptance vary with depth?", "it varies with depth", "no sign that it does"),
    "trend": ("Does it rise or fall with depth?", "it {direction} with depth", "no trend seen"),
    "mixing": ("Do rounds differ?", "some rounds are easier than others, or depth matters", "no sign that they do"),
    "prompts": ("Do prompts differ (chi-squared)?", "some prompts are easier than others", "no sign that they do"),
    "prompts_beta": ("Do prompts differ (prompt beta)?", "some prompts are easier than others", "no sign that they do"),
    "memory": ("Do neighbouring rounds resemble each other?", "they {likeness}", "no sign that they do"),
    "previous_round": (
        "Does it matter whether the round before was full?",
        "alpha is {after} after a full round",
        "no sign that it does",
    ),
    "same_alpha": ("Is alpha the same at every gamma?", "alpha differs between gammas", "no sign that it differs"),
    "implementation": (
        "Does the run take the rounds that its replay expects?",
        "it takes {pace} rounds than expected",
        "it does, as far as can be seen",
    ),
}
MEANING = {  # test: the size of its effect
    "depth": "acceptance at depth 2 and beyond, less that at depth 1",
    "trend": "change of acceptance per depth",
    "mixing": "correlation rho within a round (beta-geometric)",
    "prompts": "design effect: variance of alpha over that of independent tests",
    "prompts_beta": "correlation rho within a prompt (prompt beta)",
    "memory": "correlation of neighbouring rounds of a prompt",
    "previous_round": "alpha after a full round, less alpha after another",
    "same_alpha": "alpha at the largest gamma, less that at the smallest",
    "implementation": "tokens per round over the replay's",
}
FORETOLD = {  # line of a curve: its name; no replay among them: it reads the very texts that were measured
    "capped_geometric": "capped geometric",
    "position": "by position, fitted to the other prompts",
    "predicted": "advice, before the run",
}


def model_sections(run: Run) -> list[Section]:
    """Return three sections: tests, fits with acceptance by depth, prediction (the stored one, if there is). UsageError
    without a rounds table; a part that the run's data cannot give is a sentence that says what would give it.
    """
    arms, imported = run.arms(), run.imported()
    by_gamma = arms.by_gamma()
    untested_at = [depth for depth, rounds in by_gamma.items() if not (rounds["accepted"] + rounds["rejected"]).any()]
    if untested_at or not by_gamma:
        where = ", ".join(map(str, untested_at))
        offered = any(rounds["offered"].any() for rounds in by_gamma.values())
        reason = "." if offered else ": the drafter never made a proposal."
        why = f"No draft token was tested at gamma {where}{reason}"
        return [Section("Models of acceptance", (f"{why} There is no acceptance to model, test or predict.",))]
    replay, lacking_replay = _optional(run.replay)
    alpha_sums, lacking_alpha = _optional(run.alpha_sums)
    shared = arms.shared().by_gamma()
    gamma = run.primary_gamma
    if gamma is None or gamma not in shared:
        gamma = max(shared)
    no_replay = "the run has no replay of its own texts"
    # A recorded text is replayed to measure, so that a replay of its rounds says nothing more.
    if imported:
        replay, lacking_replay, no_replay = None, "", "the source has no replay besides itself"
    elif run.simulated:
        replay, lacking_replay, no_replay = None, RECORDED, "the run is itself a replay of recorded text"
    done, own, along_baseline = shared[gamma], None, None
    if replay is not None:
        along_baseline = replay[replay["kind"] == "baseline"]
        own = replay[(replay["kind"] == "own") & (replay["gamma"] == gamma)]
        own = None if own.empty else own[own["prompt"].isin(done["prompt"])]
    distinct, ordered = distinct_generations(done), imported is None or imported.ordered
    largest = distinct if max(shared) == gamma else distinct_generations(shared[max(shared)])
    sums = {depth: prompt_sums(distinct_generations(rounds)) for depth, rounds in shared.items()}
    untested = {} if ordered else dict.fromkeys(("memory", "previous_round"), "the source has no order of rounds")
    if own is None:
        untested["implementation"] = no_replay
    prediction = stored_prediction(run)
    if prediction is None:
        drawn = int(run.params.get("measurement.bootstrap", REPLICATES))  # as the run's other intervals
        prediction = held_out(arms, alpha_sums, along_baseline, drawn)
    predicted = section_of(prediction, run.title)
    lacking = tuple(text for text in (lacking_alpha, lacking_replay) if text and predicted.tables)
    predicted = replace(predicted, text=(*predicted.text, *lacking))
    if imported and imported.longest is None:
        predicted = Section(predicted.title, (ONE_GAMMA,))
    made: list[Section] = []
    for title, make in (
        (INDEPENDENT, lambda: tests_section(distinct, sums, done, own, untested)),
        (FITTED, lambda: fit_section(distinct, largest, run.title, ordered)),
    ):
        try:
            made.append(make())
        except ValueError as error:
            made.append(Section(title, (f"Not available: {error}.",)))
    return [*made, predicted]


def tests_section(
    rounds: pd.DataFrame,
    sums: Mapping[int, pd.DataFrame],
    done: pd.DataFrame,
    replay: pd.DataFrame | None,
    untested: Mapping[str, str],
) -> Section:
    """Say what the tests of the i.i.d. model find at one gamma: what each asks, how large its effect is, what to beware
    of. rounds: distinct generations at that gamma; done: all of them; sums: accepted and tested positions by prompt
    (index), by gamma; replay: expected rounds along the same texts; untested: test -> why it is not made.
    """
    gamma = int(rounds["gamma"].iloc[0])
    tests = iid.iid_tests(rounds, FEWER if len(rounds) > MANY else PERMUTATIONS)
    tests["prompts_beta"], tests["previous_round"] = iid.prompts_beta(rounds), iid.previous_round(rounds)
    sizes = iid.ratio_effects(rounds, REPLICATES) | iid.correlations(rounds, REFITS)
    tests["same_alpha"], sizes["same_alpha"] = iid.same_alpha(sums, REPLICATES)
    if replay is not None:
        tests["implementation"], sizes["implementation"] = iid.implementation(done, replay, REPLICATES)
    for name, reason in untested.items():
        tests[name], sizes[name] = iid.IidTest(nan, nan, 0, reason), Interval(nan)

    lines = []
    for name, (question, yes, no) in QUESTIONS.items():
        test, size = tests[name], sizes[name]
        up = size.estimate > 0
        reading = f"not tested: {test.reason}" if isnan(test.p_value) else no
        if test.p_value < SIGNIFICANT:
            reading = yes.format(
                direction="rises" if test.statistic > 0 else "falls",
                likeness="do" if up else "alternate: a long round follows a short one",
                after="higher" if up else "lower",
                pace="fewer" if test.statistic > 1 else "more",
            )
        p_value = "< 0.001" if test.p_value < 0.001 else f"{Interval(test.p_value):.3f}"
        statistic = f"{Interval(test.statistic):.3f}"
        lines.append((question, statistic, p_value, reading, MEANING[name], f"{size:.3f}"))
    caption = (
        f"Tests of the i.i.d. capped-geometric model at gamma {gamma}: {counted(len(rounds), 'round')} of "
        f"{counted(rounds['prompt'].nunique(), 'prompt')}. Size of the effect with its 95% prompt-bootstrap interval. "
        "The last line tests the run's own rounds, not the model."
    )
    caution = (
        "All tests but those of memory, the same alpha and the implementation take rounds as independent; the "
        "intervals beside them resample prompts and do not."
    )
    if any(tests[name].p_value < SIGNIFICANT for name in ("prompts", "prompts_beta")):
        caution = (
            "Prompts differ. That alone can make the tests of depth, trend, mixing, the previous round and the same "
            "alpha reject; the memory test compares rounds within their prompt and is not deceived. The intervals "
            "resample prompts, so they say how sure a size is, but not what it comes from."
        )
    applied = {name: test for name, test in tests.items() if not isnan(test.p_value) and name != "implementation"}
    rejecting = [name.replace("_", " ") for name, test in applied.items() if test.p_value < SIGNIFICANT]
    of_all = f"{len(rejecting)} of {len(applied)} tests reject"
    if not applied:
        verdict = "No test of the i.i.d. model applies to this run."
    elif few := too_few(rounds["prompt"].nunique()):
        verdict = f"Of these rounds alone {of_all} it, which says nothing of the i.i.d. model: {few}."
    elif not rejecting:
        verdict = (
            f"None of {len(applied)} tests rejects the i.i.d. model at {SIGNIFICANT:.0%}: acceptance may be independent"
            " and the same at every depth, round and prompt, as far as these rounds can tell."
        )
    else:
        chance = 1 - (1 - SIGNIFICANT) ** len(applied)
        doubt = f" (one of so many does so by chance in up to {chance:.0%} of runs where the model is true)"
        doubt = doubt if len(rejecting) == 1 else ""
        verdict = f"{of_all} the i.i.d. model at {SIGNIFICANT:.0%}{doubt}: {', '.join(rejecting)}."
    columns = ["question", "statistic", "p", "reading", "size of the effect", "estimate"]
    return Section(INDEPENDENT, (verdict, caution), ((caption, pd.DataFrame(lines, columns=columns)),))


def fit_section(rounds: pd.DataFrame, largest: pd.DataFrame, title: str, ordered: bool) -> Section:
    """Compare the models by AIC at the primary gamma, and draw acceptance by depth at the largest.
    ordered: False where nobody recorded which round follows which; then there is no model of the round before.
    """
    tables = []
    text = "No round follows another in its generation, so models cannot be compared on the same rounds."
    later = len(followers(rounds)) if ordered else len(rounds)
    if later:
        shown = compare_models(rounds, ordered).reset_index()
        shown.insert(4, "behind", shown["aic"] - shown["aic"].min())
        behind = shown.set_index("model").at["capped_geometric", "behind"]
        shown["model"] = shown["model"].map(AIC_NAMES)
        best, second = shown["model"][:2]
        text = f"By AIC the model “{best}” describes the rounds best, {shown['behind'][1]:.1f} ahead of “{second}”"
        text += f"; the capped geometric is {behind:.1f} behind." if best != AIC_NAMES["capped_geometric"] else "."
        text += " A lead below about 2 decides nothing. AIC counts rounds as independent and is about this gamma alone."
        which = " that follow another" if ordered else ""
        gamma, used = rounds["gamma"].iloc[0], counted(later, "round")
        caption = f"Models of the accepted counts at gamma {gamma}, on {used}{which}; log-likelihood in nats."
        tables.append((caption, shown.round({"log_likelihood": 2, "aic": 2, "behind": 2})))
    figures = (("acceptance_by_depth", acceptance_by_depth(largest, title=title)),)
    return Section(FITTED, (text,), tuple(tables), figures)


@style.in_style
def acceptance_by_depth(rounds: pd.DataFrame, *, title: str) -> Figure:
    """Draw acceptance by depth at one gamma with its intervals, beside one alpha and the fitted beta-geometric law."""
    table = hazards(rounds)
    table = table[table["at_risk"] > 0]
    sums = depth_sums(rounds, list(table.index))

    def shares(columns: Columns) -> Mapping[str, np.ndarray]:
        return {str(k): 1 - columns[f"r_{k}"] / columns[f"n_{k}"] for k in table.index}

    acceptance = [*bootstrap(sums, shares, REPLICATES, ranges={str(k): SHARE for k in table.index}).values()]
    value = table["acceptance"].to_numpy()
    drawn = any(share.known for share in acceptance)
    gamma = int(rounds["gamma"].iloc[0])
    caption = (
        f"γ = {gamma}: {counted(len(rounds), 'round')} of {counted(len(sums), 'prompt')}, "
        f"{int(table['at_risk'].sum()):,} tests of a draft token; "
        + ("points with 95% prompt-bootstrap intervals." if drawn else "no intervals.")
        + " Bars: share of rounds that test the depth."
    )
    ends = f"{value[0]:.0%} at depth {table.index[0]}, {value[-1]:.0%} at depth {table.index[-1]}"
    figure, axes = style.new_figure(f"Accepted of the tokens tested: {ends}\n{title}", caption)
    axes.bar(table.index, table["at_risk"] / len(rounds), width=0.75, color=style.LIGHT, label="rounds that get there")
    alpha = estimate_alpha(rounds).alpha
    axes.plot(table.index, np.full(len(table), alpha), color=style.BLUE, label=f"one α (MLE {alpha:.3f})", zorder=3)
    fit = beta_geometric(rounds).parameters
    if fit["rho"] > 0:
        j = table.index.to_numpy() - 1
        law = (fit["m"] * (1 - fit["rho"]) + j * fit["rho"]) / (1 - fit["rho"] + j * fit["rho"])
        label = "rounds differ (beta-geometric)"
        axes.plot(table.index, law, color=style.PURPLE, linestyle="--", label=label, zorder=3)
    bars = pictures.whiskers(acceptance) if drawn else None
    axes.errorbar(table.index, value, yerr=bars, fmt="D", color=style.ORANGE, label="measured", zorder=4)
    for depth, share in zip(table.index, acceptance, strict=True):
        style.point_tip(axes, depth, share.estimate, f"depth {depth}: {share:.1%}")
    axes.set(xlabel="depth of the draft token", ylabel="accepted, of those tested", ylim=(0, 1.03), xticks=table.index)
    pictures.percent_axis(axes)
    axes.grid(axis="x", visible=False)
    style.legend_above(axes, 2)
    return figure


def as_stored(prediction: HeldOutPrediction | Undetermined) -> dict[str, Any]:
    """Return a prediction as `summary.json` holds it; `stored_prediction` reads it back."""
    if isinstance(prediction, Undetermined):
        return {"undetermined": str(prediction)}
    return {
        name: value.to_dict("records") if isinstance(value, pd.DataFrame) else value
        for name, value in vars(prediction).items()
    }


def stored_prediction(run: Run) -> HeldOutPrediction | Undetermined | None:
    """Return the prediction of a run's drafter that its analysis has stored; None where it has stored none."""
    try:
        values = run.summary()["predictions"][run.method or run.facts().drafter]
    except (UsageError, KeyError):
        return None
    if "undetermined" in values:
        return Undetermined(values["undetermined"])
    fields = {name: pd.DataFrame(value) if isinstance(value, list) else value for name, value in values.items()}
    return HeldOutPrediction(**fields)


def _optional(read: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame | None, str]:
    """Return a table that not every run has, or None and the sentence that says what writes it."""
    try:
        return read(), ""
    except UsageError as error:
        return None, str(error)


def gamma_choice(run: Run) -> Section:
    """Set measured speedup by gamma beside what was foretold: by the capped geometric with the alpha of the target's
    own text, by acceptance at each position on prompts that it was not fitted to, and by advice.
    """
    measured, texts = run.points("speedup"), drafted(run.arms().texts)
    lines = {name: values for name, values in run.lines("speedup").items() if name in FORETOLD}
    columns = {"value": "measured", "value_low": "ci_low", "value_high": "ci_high"}
    table = measured.set_index("gamma")[list(columns)].rename(columns=columns)
    for name, values in lines.items():
        table[FORETOLD[name]] = pd.Series(values, dtype=float)
    caption = "Speedup by gamma: measured with 95% prompt-bootstrap intervals, and foretold"
    seen = f"γ {table['measured'].idxmax()} is fastest as measured"
    if formula := lines.get("capped_geometric"):
        seen += f"; the formula would have chosen γ {max(formula, key=formula.__getitem__)}"
    basis = run_figures.Basis(texts["prompt"].nunique(), int(texts["rounds"].sum()), run.metrics.get("account/alpha"))
    figure = run_figures.curve(
        measured,
        lines,
        title=f"{seen}\n{run.title}",
        ylabel="speedup over the baseline",
        basis=basis,
        primary_gamma=run.primary_gamma,
    )
    tables = ((caption, table.reset_index().round(3)),)
    words, unclear = choice_in_words(table), best_in_words(run.summary()["arms"])
    words += f" As measured {unclear}." if unclear else ""
    return Section(run.title, (words,), tables, (("gamma_choice", figure),)).beginning(run.refuted)


def choice_in_words(table: pd.DataFrame) -> str:
    """Name the best gamma as measured and by each other column, with the measured speedup that its choice gives.
    table: index gamma; measured, ci_low, ci_high, a column per model.
    """
    best = int(table["measured"].idxmax())
    speedup = float(table.at[best, "measured"])
    measured = f"gamma {best} is fastest as measured (speedup {speedup:.3f})"
    if speedup < 1:
        measured += ", and slower than no drafter at all"
    choices = []
    for name in table.columns.drop(["measured", "ci_low", "ci_high"]):
        foretold = table[name].dropna()
        if foretold.empty:
            continue
        chosen = int(foretold.idxmax())
        promise, got = f"promises {foretold[chosen]:.3f}", float(table.at[chosen, "measured"])
        said = f"gamma {chosen} ({promise}, gives {got:.3f}, {1 - got / speedup:.1%} less)"
        choices.append(f"{name} chooses {f'it too ({promise})' if chosen == best else said}")
    advice = FORETOLD["predicted"]
    lacking = "" if advice in table and table[advice].notna().any() else " No advice was asked for before this run."
    return f"{'; '.join([measured, *choices])}.{lacking}"

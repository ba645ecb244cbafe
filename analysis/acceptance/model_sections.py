"""What a run says about models of acceptance: the tests of THEORY 6 in words, models by AIC, acceptance by depth, and
prediction on prompts that no model was fitted on. Sections for reports and notebooks.
"""

from collections.abc import Callable, Mapping
from math import isfinite, isnan, nan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specdec.errors import UsageError

from ..figures import style
from ..findings import Section, counted
from ..intervals import Columns, Interval, bootstrap
from ..read.runs import Run
from ..rounds import distinct_generations, drafted, shared_work
from . import effects
from .estimates import estimate_alpha, hazards
from .iid import IidTest, iid_tests, implementation, previous_round, prompts_beta, same_alpha
from .models import beta_geometric, compare_models, followers
from .prediction import LABELS, Prediction, Undetermined, predict, prediction_in_words, unpredictable

SIGNIFICANT = 0.05
QUESTIONS = {  # test: question, what a rejection says, what none says
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
AIC_NAMES = {
    "capped_geometric": "capped geometric (one alpha)",
    "position": "by position",
    "beta_geometric": "rounds differ (beta-geometric)",
    "prompt_beta": "prompts differ (prompt beta)",
    "markov": "previous round full or not",
}
_LINES = {  # model: name in the legend, colour, dash, marker
    "capped_geometric.text": ("capped geometric, α of text", style.BLUE, "-", "o"),
    "capped_geometric.mle": ("same, MLE at largest γ", style.BLUE, "--", "s"),
    "capped_geometric.short": ("same, MLE at smallest γ", style.SKY, ":", "v"),
    "position": ("by position", style.ORANGE, "-", "D"),
    "beta_geometric": ("rounds differ", style.PURPLE, "--", "^"),
    "prompt_beta": ("prompts differ", style.YELLOW, "-.", "<"),
    "markov": ("Markov along the text", style.GREY, ":", "P"),
    "replay": ("replay", style.GREEN, "-", "X"),
}


def model_sections(run: Run, replicates: int = 2000, refits: int = 200, seed: int = 0) -> list[Section]:
    """Tests, models by AIC with acceptance by depth, prediction. UsageError if the run has no rounds table.

    A part that the run's data cannot give is a sentence that says why and what would give it.
    """
    rounds = run.rounds()
    speculative = drafted(rounds)
    tested = (speculative["accepted"] + speculative["rejected"]).groupby(speculative["gamma"]).sum()
    if not tested.all() or tested.empty:
        where = ", ".join(str(gamma) for gamma in tested.index[tested == 0])
        why = f"No draft token was tested at gamma {where}" + (
            ": the drafter never made a proposal." if not (speculative["offered"] > 0).any() else "."
        )
        return [Section("Models of acceptance", (f"{why} There is no acceptance to model, test or predict.",))]
    replay, lacking_replay = _optional(run.replay)
    alpha_sums, lacking_alpha = _optional(run.alpha_sums)
    shared = shared_work(rounds)
    arms = distinct_generations(drafted(shared))
    primary = run.primary_gamma
    gamma = primary if primary is not None and (arms["gamma"] == primary).any() else int(arms["gamma"].max())
    own = None if replay is None else replay[(replay["kind"] == "own") & (replay["gamma"] == gamma)]
    return [
        tests_section(arms, shared, gamma, own, replicates, refits, seed),
        models_section(arms, gamma, run.title, replicates, seed),
        prediction_section(
            rounds,
            alpha_sums,
            None if replay is None else replay[replay["kind"] == "baseline"],
            [text for text in (lacking_alpha, lacking_replay) if text],
            run.title,
            replicates,
            refits,
            seed,
        ),
    ]


def _optional(read: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame | None, str]:
    """A table that not every run has, or the sentence that says what writes it."""
    try:
        return read(), ""
    except UsageError as error:
        return None, str(error)


# Tests --------------------------------------------------------------------------------------------


def tests_section(
    arms: pd.DataFrame,
    all_rounds: pd.DataFrame,
    gamma: int,
    own_replay: pd.DataFrame | None,
    replicates: int,
    refits: int,
    seed: int,
) -> Section:
    """The tests at one gamma. arms: distinct generations; all_rounds: repeats included, as the replay has them."""
    rounds = arms[arms["gamma"] == gamma]
    tests = iid_tests(rounds, seed=seed)
    tests["prompts_beta"], tests["previous_round"] = prompts_beta(rounds), previous_round(rounds)
    tests["same_alpha"] = same_alpha(arms, replicates, seed)
    sizes: dict[str, Interval] = {
        **effects.ratio_effects(rounds, replicates, seed),
        **effects.correlations(rounds, refits, seed),
    }
    if tests["same_alpha"].p_value >= 0:
        sizes["same_alpha"] = effects.alpha_difference(arms, replicates, seed)
    if own_replay is not None and len(own_replay):
        done = drafted(all_rounds[all_rounds["gamma"] == gamma])
        here = own_replay[own_replay["prompt"].isin(done["prompt"])]
        tests["implementation"] = implementation(done, here, replicates, seed)
        sizes["implementation"] = effects.replay_ratio(done, here, replicates, seed)
    else:
        tests["implementation"] = IidTest(nan, nan, 0, "the run has no replay of its own texts")
    table = pd.DataFrame([_test_row(name, tests[name], sizes.get(name)) for name in QUESTIONS])
    caption = (
        f"Tests of the i.i.d. capped-geometric model at gamma {gamma}: {counted(len(rounds), 'round')} of "
        f"{counted(rounds['prompt'].nunique(), 'prompt')}. Size of the effect with its 95% prompt-bootstrap interval."
    )
    return Section(
        "Is acceptance independent and the same everywhere?", (_verdict(tests), _caution(tests)), ((caption, table),)
    )


def _test_row(name: str, test: IidTest, size: Interval | None) -> dict[str, object]:
    question, yes, no = QUESTIONS[name]
    if isnan(test.p_value):
        reading = f"not tested: {test.reason}"
    else:
        reading = _worded(yes, test, size) if test.p_value < SIGNIFICANT else no
    return {
        "question": question,
        "statistic": "-" if isnan(test.statistic) else f"{test.statistic:.3f}",
        "p": "-" if isnan(test.p_value) else _p(test.p_value),
        "reading": reading,
        "size of the effect": effects.MEANING[name],
        "estimate": "-" if size is None or not isfinite(size.estimate) else _interval(size),
    }


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _interval(size: Interval) -> str:
    bounds = f" ({size.low:.3f} to {size.high:.3f})" if isfinite(size.low) else " (no interval)"
    return f"{size.estimate:.3f}{bounds}"


def _worded(text: str, test: IidTest, size: Interval | None) -> str:
    up = (size.estimate if size is not None else test.statistic) > 0
    return text.format(
        direction="rises" if test.statistic > 0 else "falls",
        likeness="do" if up else "alternate: a long round follows a short one",
        after="higher" if up else "lower",
        pace="fewer" if test.statistic > 1 else "more",
    )


def _verdict(tests: Mapping[str, IidTest]) -> str:
    applied = {name: test for name, test in tests.items() if not isnan(test.p_value) and name != "implementation"}
    rejecting = [name for name, test in applied.items() if test.p_value < SIGNIFICANT]
    if not applied:
        return "No test of the i.i.d. model applies to this run."
    if not rejecting:
        return (
            f"None of {len(applied)} tests rejects the i.i.d. model at {SIGNIFICANT:.0%}: acceptance may be independent"
            " and the same at every depth, round and prompt, as far as these rounds can tell."
        )
    chance = 1 - (1 - SIGNIFICANT) ** len(applied)
    doubt = (
        f" (one of so many does so by chance in up to {chance:.0%} of runs where the model is true)"
        if len(rejecting) == 1
        else ""
    )
    return (
        f"{len(rejecting)} of {len(applied)} tests reject the i.i.d. model at {SIGNIFICANT:.0%}{doubt}: "
        f"{', '.join(name.replace('_', ' ') for name in rejecting)}."
    )


def _caution(tests: Mapping[str, IidTest]) -> str:
    def rejects(name: str) -> bool:
        return tests[name].p_value < SIGNIFICANT

    if rejects("prompts") or rejects("prompts_beta"):
        return (
            "Prompts differ. That alone can make the tests of depth, trend, mixing, the previous round and the same "
            "alpha reject; the memory test compares rounds within their prompt and is not deceived. The intervals "
            "resample prompts, so they say how sure a size is, but not what it comes from."
        )
    return (
        "All tests but those of memory, the same alpha and the implementation take rounds as independent; the "
        "intervals beside them resample prompts and do not."
    )


# Models -------------------------------------------------------------------------------------------


def models_section(arms: pd.DataFrame, gamma: int, title: str, replicates: int, seed: int) -> Section:
    """AIC at the primary gamma; acceptance by depth at the largest."""
    rounds = arms[arms["gamma"] == gamma]
    largest = arms[arms["gamma"] == arms["gamma"].max()]
    tables = []
    text = "No round follows another in its generation, so models cannot be compared on the same rounds."
    if len(followers(rounds)):
        comparison = compare_models(rounds)
        best, second = comparison.index[0], comparison.index[1]
        lead = comparison["aic"].iloc[1] - comparison["aic"].iloc[0]
        behind = comparison.loc["capped_geometric", "aic"] - comparison["aic"].iloc[0]
        text = (
            f"By AIC the model “{AIC_NAMES[best]}” describes the rounds best, {lead:.1f} ahead of “{AIC_NAMES[second]}”"
        )
        text += "." if best == "capped_geometric" else f"; the capped geometric is {behind:.1f} behind."
        text += " A lead below about 2 decides nothing. AIC counts rounds as independent and is about this gamma alone."
        shown = comparison.reset_index()
        shown["model"] = shown["model"].map(AIC_NAMES)
        shown.insert(4, "behind", shown["aic"] - shown["aic"].min())
        caption = (
            f"Models of the accepted counts at gamma {gamma}, on {counted(len(followers(rounds)), 'round')} that follow"
            " another; log-likelihood in nats."
        )
        tables.append((caption, shown.round({"log_likelihood": 2, "aic": 2, "behind": 2})))
    figure = acceptance_by_depth(largest, title=title, replicates=replicates, seed=seed)
    return Section("Which model describes the rounds?", (text,), tuple(tables), (("acceptance_by_depth", figure),))


@style.in_style
def acceptance_by_depth(
    rounds: pd.DataFrame, *, title: str, replicates: int = 2000, seed: int = 0, level: float = 0.95
) -> Figure:
    """Hazards of one gamma with prompt-bootstrap intervals, beside one alpha and the fitted beta-geometric law."""
    table = hazards(rounds)
    table = table[table["at_risk"] > 0]
    s, d = rounds["accepted"], rounds["rejected"].astype(int)
    counts = {f"n_{k}": s + d >= k for k in table.index} | {f"r_{k}": (s == k - 1) & (d == 1) for k in table.index}
    sums = pd.DataFrame(counts).groupby(rounds["prompt"]).sum().astype(float)

    def shares(columns: Columns) -> Mapping[str, np.ndarray]:
        return {str(k): 1 - columns[f"r_{k}"] / columns[f"n_{k}"] for k in table.index}

    intervals = bootstrap(sums, shares, replicates, seed, level)
    low = np.array([intervals[str(k)].low for k in table.index])
    high = np.array([intervals[str(k)].high for k in table.index])
    value = table["acceptance"].to_numpy()
    drawn = bool(np.isfinite(low).any())
    gamma = int(rounds["gamma"].iloc[0])
    caption = (
        f"γ = {gamma}: {counted(len(rounds), 'round')} of {counted(len(sums), 'prompt')}, "
        f"{int(table['at_risk'].sum()):,} tests of a draft token; "
        + (f"points with {level:.0%} prompt-bootstrap intervals." if drawn else "no intervals.")
        + " Bars: share of rounds that test the depth."
    )
    figure, axes = style.new_figure(title, caption)
    axes.bar(table.index, table["at_risk"] / len(rounds), width=0.75, color=style.LIGHT, label="rounds that get there")
    alpha = estimate_alpha(rounds).alpha
    axes.plot(table.index, np.full(len(table), alpha), color=style.BLUE, label=f"one α (MLE {alpha:.3f})", zorder=3)
    fit = beta_geometric(rounds).parameters
    if fit["rho"] > 0:
        j = table.index.to_numpy() - 1
        law = (fit["m"] * (1 - fit["rho"]) + j * fit["rho"]) / (1 - fit["rho"] + j * fit["rho"])
        axes.plot(
            table.index, law, color=style.PURPLE, linestyle="--", label="rounds differ (beta-geometric)", zorder=3
        )
    bars = [np.nan_to_num(value - low).clip(min=0), np.nan_to_num(high - value).clip(min=0)] if drawn else None
    axes.errorbar(table.index, value, yerr=bars, fmt="D", color=style.ORANGE, label="measured", zorder=4)
    axes.set(xlabel="depth of the draft token", ylabel="accepted, of those tested", ylim=(0, 1.03))
    axes.set_xticks(list(table.index))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="x", visible=False)
    style.legend_above(axes, 2)
    return figure


# Prediction ---------------------------------------------------------------------------------------


def prediction_section(
    rounds: pd.DataFrame,
    alpha_sums: pd.DataFrame | None,
    replay: pd.DataFrame | None,
    lacking: list[str],
    title: str,
    replicates: int = 2000,
    refits: int = 200,
    seed: int = 0,
) -> Section:
    """Prediction on held-out prompts; `lacking`: sentences about artifacts that would have allowed more."""
    heading = "What would each model have predicted?"
    reason = unpredictable(rounds)
    if reason:
        return Section(heading, (f"No prediction: {reason}.",))
    try:
        prediction = predict(rounds, alpha_sums, replay, seed, replicates, refits)
    except Undetermined as undetermined:
        return Section(heading, (f"No prediction: {undetermined}.",))
    method = (
        f"Half of {counted(prediction.prompts, 'prompt')}, drawn by seed {seed}, and then the other: every model is "
        f"fitted to the rounds of one half at gamma {prediction.fit_gamma}, the largest, where all depths are seen, "
        "and predicts every gamma on the other half from the lengths of its texts, ends of texts included. Replay, "
        "where there is one, has nothing to fit: it reads the held-out prompts' own baseline texts."
    )
    omitted = [f"{LABELS[name]}: {why}" for name, why in prediction.left_out.items()]
    texts = [prediction_in_words(prediction), method]
    if omitted:
        texts.append("Not tried: " + "; ".join(omitted) + ".")
    texts += lacking
    return Section(
        heading,
        tuple(texts),
        (
            ("Models, best first: error over gammas, predicted over measured less 1.", summary_table(prediction)),
            ("Tokens per round, predicted and measured. " + _intervals_in_words(prediction), errors_table(prediction)),
        ),
        (("prediction_error", prediction_figure(prediction, title=title)),),
    )


def _intervals_in_words(prediction: Prediction) -> str:
    if not prediction.table["error_low"].notna().any():
        return "Too few prompts for intervals of the error."
    return (
        f"{prediction.level:.0%} prompt-bootstrap intervals; that of the error resamples both halves and refits every "
        f"model ({prediction.refits} times)."
    )


def summary_table(prediction: Prediction) -> pd.DataFrame:
    """One row per model in words."""
    models = prediction.models
    return pd.DataFrame(
        {
            "model": models["model"].map(LABELS),
            "mean absolute error": models["mean_error"].map("{:.1%}".format),
            "worst": models["worst_error"].map("{:+.1%}".format),
            "at gamma": models["worst_gamma"],
            "gammas missed significantly": models["significant"],
        }
    )


def errors_table(prediction: Prediction) -> pd.DataFrame:
    """One row per gamma and model in words."""
    table = prediction.table

    def between(row: pd.Series, value: str, low: str, high: str, style_: str) -> str:
        shown = format(row[value], style_)
        if not isfinite(row[low]):
            return shown
        return f"{shown} ({format(row[low], style_)} to {format(row[high], style_)})"

    return pd.DataFrame(
        {
            "gamma": table["gamma"],
            "model": table["model"].map(LABELS),
            "predicted": table["predicted"].map("{:.3f}".format),
            "measured": [between(row, "measured", "ci_low", "ci_high", ".3f") for _, row in table.iterrows()],
            "error": [between(row, "error", "error_low", "error_high", "+.1%") for _, row in table.iterrows()],
        }
    )


@style.in_style
def prediction_figure(prediction: Prediction, *, title: str) -> Figure:
    """Relative error over gamma, a line per model; the best model and the capped geometric with intervals."""
    gammas = sorted(prediction.table["gamma"].unique())
    best = str(prediction.models["model"].iloc[0])
    tried = list(dict.fromkeys(prediction.table["model"]))
    capped = tried[0]
    with_intervals = prediction.table["error_low"].notna().any()
    caption = (
        f"{counted(prediction.prompts, 'prompt')}, fitted on half of them at γ = {prediction.fit_gamma} and tried on "
        "the other, and the reverse. "
        + (
            f"{prediction.level:.0%} prompt-bootstrap intervals of the capped geometric and of the best model."
            if with_intervals
            else "No intervals."
        )
    )
    figure, axes = style.new_figure(title, caption, height=style.HEIGHT + 0.9)
    axes.axhline(0, color=style.BLACK, linewidth=1.6, linestyle=(0, (1, 1.5)))
    for name in tried:
        part = prediction.table[prediction.table["model"] == name].sort_values("gamma")
        label, colour, dash, marker = _LINES[name]
        strong = name in (best, capped)
        bars = None
        if strong and with_intervals:
            below = np.nan_to_num(part["error"] - part["error_low"]).clip(min=0)
            bars = [below, np.nan_to_num(part["error_high"] - part["error"]).clip(min=0)]
        axes.errorbar(
            part["gamma"],
            part["error"],
            yerr=bars,
            color=colour,
            linestyle=dash,
            marker=marker,
            linewidth=2.4 if strong else 1.3,
            markersize=7 if strong else 5,
            label=label.replace("same", "capped geometric") if name == capped else label,
            elinewidth=1.5,
            zorder=4 if strong else 3,
        )
    axes.set(xlabel="γ, depth of a draft in tokens", ylabel="predicted over measured, less 1")
    axes.set_xticks(gammas if len(gammas) <= 12 else gammas[:: len(gammas) // 12 + 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, fontsize=10.5, columnspacing=1.2, handlelength=2.6
    )
    return figure

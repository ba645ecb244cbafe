"""Says what a run tells about models of acceptance: tests of the i.i.d. model, which model fits, and prediction."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specdec.errors import UsageError

from ..figures import pictures, style
from ..intervals import SHARE, Columns, bootstrap
from ..read.runs import Run
from ..rounds import distinct_generations, prompt_sums
from ..sections import Section, counted
from .estimates import depth_sums, estimate_alpha, hazards
from .iid_section import TITLE as INDEPENDENT
from .iid_section import Evidence, tests_section
from .models import beta_geometric, compare_models, followers
from .prediction import LABELS, HeldOutPrediction, Undetermined
from .prediction_section import held_out, section_of

FITTED = "Which model describes the rounds?"
AIC_NAMES = LABELS | {"capped_geometric": "capped geometric (one alpha)", "markov": "previous round full or not"}
RECORDED = (
    "The text was recorded and the run is its replay, so a replay neither predicts this run nor tests it: it would "
    "agree by construction."
)
ONE_GAMMA = "It has lengths at one gamma only: nothing predicts another one, and no alpha of the text is known."
REPLICATES, REFITS = 1000, 100  # of tests and fits, the same on every page that shows them


def model_sections(run: Run, replicates: int | None = None, refits: int | None = None) -> list[Section]:
    """Return three sections: tests, fits with acceptance by depth, prediction. UsageError without a rounds table.

    A part that the run's data cannot give is a sentence that says why and what would give it. The prediction is the one
    that the run has stored, if it has. Without `replicates` and `refits` they are those of every page.
    """
    replicates, refits = replicates or REPLICATES, refits or REFITS
    arms, imported = run.arms(), run.imported()
    tested, offered = {}, 0
    for depth, rounds in arms.by_gamma().items():
        tested[depth] = int(rounds["accepted"].sum() + rounds["rejected"].sum())
        offered += int(rounds["offered"].sum())
    if not tested or not all(tested.values()):
        where = ", ".join(str(depth) for depth, positions in tested.items() if not positions)
        why = f"No draft token was tested at gamma {where}" + (
            "." if offered else ": the drafter never made a proposal."
        )
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
    own = None if replay is None else replay[(replay["kind"] == "own") & (replay["gamma"] == gamma)]
    done = shared[gamma]
    own = None if own is None or own.empty else own[own["prompt"].isin(done["prompt"])]
    evidence = Evidence(
        rounds=distinct_generations(done),
        sums={depth: prompt_sums(distinct_generations(rounds)) for depth, rounds in shared.items()},
        done=done,
        replay=own,
        no_replay=no_replay,
        ordered=imported is None or imported.ordered,
    )
    largest = evidence.rounds if max(shared) == gamma else distinct_generations(shared[max(shared)])
    along_baseline = None if replay is None else replay[replay["kind"] == "baseline"]
    prediction = stored_prediction(run)
    if prediction is None:
        drawn = int(run.params.get("measurement.bootstrap", replicates))  # as the run's other intervals
        prediction = held_out(arms, alpha_sums, along_baseline, drawn)
    predicted = section_of(prediction, run.title)
    lacking = tuple(text for text in (lacking_alpha, lacking_replay) if text and predicted.tables)
    predicted = replace(predicted, text=(*predicted.text, *lacking))
    if imported and imported.longest is None:
        predicted = Section(predicted.title, (ONE_GAMMA,))
    made: list[Section] = []
    for title, make in (
        (INDEPENDENT, lambda: tests_section(evidence, replicates, refits)),
        (FITTED, lambda: fit_section(evidence.rounds, largest, run.title, replicates, evidence.ordered)),
    ):
        try:
            made.append(make())
        except ValueError as error:
            made.append(Section(title, (f"Not available: {error}.",)))
    return [*made, predicted]


def fit_section(rounds: pd.DataFrame, largest: pd.DataFrame, title: str, replicates: int, ordered: bool) -> Section:
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
    figure = acceptance_by_depth(largest, title=title, replicates=replicates)
    return Section(FITTED, (text,), tuple(tables), (("acceptance_by_depth", figure),))


@style.in_style
def acceptance_by_depth(rounds: pd.DataFrame, *, title: str, replicates: int) -> Figure:
    """Draw acceptance by depth at one gamma with its intervals, beside one alpha and the fitted beta-geometric law."""
    table = hazards(rounds)
    table = table[table["at_risk"] > 0]
    sums = depth_sums(rounds, list(table.index))

    def shares(columns: Columns) -> Mapping[str, np.ndarray]:
        return {str(k): 1 - columns[f"r_{k}"] / columns[f"n_{k}"] for k in table.index}

    acceptance = [*bootstrap(sums, shares, replicates, ranges={str(k): SHARE for k in table.index}).values()]
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
        axes.plot(
            table.index, law, color=style.PURPLE, linestyle="--", label="rounds differ (beta-geometric)", zorder=3
        )
    bars = pictures.whiskers(acceptance) if drawn else None
    axes.errorbar(table.index, value, yerr=bars, fmt="D", color=style.ORANGE, label="measured", zorder=4)
    for depth, share in zip(table.index, acceptance, strict=True):
        style.point_tip(axes, depth, share.estimate, f"depth {depth}: {share:.1%}")
    axes.set(xlabel="depth of the draft token", ylabel="accepted, of those tested", ylim=(0, 1.03))
    axes.set_xticks(list(table.index))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
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
    return HeldOutPrediction(
        **{name: pd.DataFrame(value) if isinstance(value, list) else value for name, value in values.items()}
    )


def _optional(read: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame | None, str]:
    """Return a table that not every run has, or None and the sentence that says what writes it."""
    try:
        return read(), ""
    except UsageError as error:
        return None, str(error)

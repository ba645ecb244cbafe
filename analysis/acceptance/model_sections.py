"""Says what a run tells about models of acceptance: tests of the i.i.d. model, which model fits, and prediction."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd

from specdec.errors import UsageError

from ..read.runs import Run
from ..rounds import distinct_generations, prompt_sums
from ..sections import Section
from .fit_section import TITLE as FITTED
from .fit_section import fit_section
from .iid_section import TITLE as INDEPENDENT
from .iid_section import Evidence, tests_section
from .prediction import HeldOutPrediction, Undetermined
from .prediction_section import held_out, section_of

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

"""Says what a run tells about models of acceptance: tests of the i.i.d. model, which model fits, and prediction."""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from specdec.errors import UsageError

from ..arms import Arms
from ..read.runs import Run
from ..rounds import distinct_generations, drafted, prompt_sums, shared_work
from ..sections import Section
from .fit_section import fit_section
from .iid_section import Evidence, tests_section
from .prediction_section import prediction_section

RECORDED = (
    "The text was recorded and the run is its replay, so a replay neither predicts this run nor tests it: it would "
    "agree by construction."
)


def model_sections(run: Run, replicates: int = 2000, refits: int = 200, seed: int = 0) -> list[Section]:
    """Return three sections: tests, fits with acceptance by depth, prediction. UsageError without a rounds table.

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
    if run.simulated:  # what was recorded is replayed to measure: a replay of it says nothing more
        replay, lacking_replay = None, RECORDED
    own = None if replay is None else replay[(replay["kind"] == "own") & (replay["gamma"] == gamma)]
    done = drafted(shared[shared["gamma"] == gamma])
    own = None if own is None or own.empty else own[own["prompt"].isin(done["prompt"])]
    evidence = Evidence(
        rounds=arms[arms["gamma"] == gamma],
        sums={int(depth): prompt_sums(arm) for depth, arm in arms.groupby("gamma", sort=True)},
        done=done,
        replay=own,
        no_replay="the run is itself a replay of recorded text" if run.simulated else Evidence.no_replay,
    )
    along_baseline = None if replay is None else replay[replay["kind"] == "baseline"]
    predicted = prediction_section(Arms.of(rounds), alpha_sums, along_baseline, run.title, replicates, seed)
    lacking = tuple(text for text in (lacking_alpha, lacking_replay) if text and predicted.tables)
    return [
        tests_section(evidence, replicates, refits, seed),
        fit_section(arms, gamma, run.title, replicates, seed),
        replace(predicted, text=(*predicted.text, *lacking)),
    ]


def _optional(read: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame | None, str]:
    """Return a table that not every run has, or None and the sentence that says what writes it."""
    try:
        return read(), ""
    except UsageError as error:
        return None, str(error)

"""Answers by how much grounded heads are faster than independent ones, from one session that decoded with both."""

from dataclasses import replace

from specdec.errors import UsageError

from ..findings import Section
from ..intervals import Interval
from ..read.runs import Run
from ..runs.drafters_section import drafters_section

PUBLISHED_SPEEDUP = 1.07  # "Not So Speculative Decoding": grounded over independent heads, Vicuna-7B, MT-Bench, greedy
TITLE = "Grounded heads against independent ones, in one session"


def gain_section(run: Run) -> Section:
    """Return the drafters of the session side by side, behind a sentence that sets the paper's ratio beside ours.

    Raises:
        UsageError: the run is not one with drafter grounded and medusa beside it.
    """
    ratio = run.interval("drafter.medusa.speedup.ratio")
    if run.params.get("drafter.name") != "grounded" or "medusa" not in run.beside:
        raise UsageError(
            f"{run.source} did not decode with grounded and independent heads in one session: "
            "`python -m specdec.run +experiment=grounded_bars` does."
        )
    tokens = run.interval("drafter.medusa.tokens_per_round.difference")
    side = drafters_section(run, run.whole_number("measurement.bootstrap"), run.whole_number("seed"))
    answer = (
        f"Grounded heads are {ratio:.2f} times as fast as independent ones on {run.setting}, and commit {tokens:+.2f} "
        f"tokens per round; the paper has {PUBLISHED_SPEEDUP} for Vicuna-7B on MT-Bench, {_told(ratio)}."
    )
    return replace(side, title=TITLE, text=(answer, *side.text))


def _told(ratio: Interval) -> str:
    inside = ratio.contains(PUBLISHED_SPEEDUP)
    if inside is None:
        return "and one prompt gives no interval to compare it with"
    if inside:
        return "which our interval contains"
    return "less than our interval allows" if ratio.low > PUBLISHED_SPEEDUP else "more than our interval allows"

"""The files that a session leaves for the analysis beside rounds and generations, and one prompt's share of them; and a
whole of what is left of a session that was killed.

A share is plain data, so that a finished prompt's share goes to disk with its rounds, and a resumed run takes it back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdec.analysis.findings.run_metrics import OUTPUTS, SAMPLED
from specdec.analysis.read.facts import RunStatus, SessionFacts, unsettled
from specdec.analysis.read.runs import EXPERTS, open_folder
from specdec.folder.results import ROUNDS, ResultsFolder, drop_unreadable, finished_prompts
from specdec.text.writing import is_locked


@dataclass
class Collected:
    """Lines for the analysis, in the order of the prompts: those of the files of these names."""

    # Methods whose output was compared with the baseline's, once for each output.
    compared: list[str] = field(default_factory=list)
    divergences: list[dict[str, Any]] = field(default_factory=list)  # outputs that differ from the baseline's
    traces: list[dict[str, Any]] = field(default_factory=list)
    quality: list[dict[str, Any]] = field(default_factory=list)
    # The rounds of every arm along its own texts (kind "own", for the account) and along the baseline's (kind
    # "baseline", for the curves, which need no speculation): `replay.parquet`.
    replays: list[dict[str, Any]] = field(default_factory=list)
    alpha: list[dict[str, Any]] = field(default_factory=list)
    experts: list[dict[str, Any]] = field(default_factory=list)  # those that verification calls of a mixture chose
    sampled: list[dict[str, Any]] = field(default_factory=list)  # texts of a temperature
    peers: list[dict[str, Any]] = field(default_factory=list)  # generations of other engines
    cache_bytes: int = 0  # size of the target's largest key-value cache
    peak_mb: float = 0.0  # largest memory of a process

    def add(self, share: Mapping[str, Any]) -> None:
        """Append what another prompt left, by name; to be called in the order of the prompts, whoever decoded them."""
        for name, more in share.items():
            mine = getattr(self, name)
            if isinstance(mine, list):
                mine.extend(more)
            else:
                setattr(self, name, max(mine, more))

    def counts(self, method: str) -> dict[str, int]:
        """Return how the outputs of one drafter compare with the baseline's, as `SessionFacts` names it."""
        parted = [line for line in self.divergences if line["method"] == method]
        compared = self.compared.count(method)
        return {
            "compared": compared,
            "identical": compared - len(parted),
            "unexplained": sum(not line["explained"] for line in parted),
        }

    def write(self, results: ResultsFolder, methods: Sequence[str], left_out: Sequence[str] = ()) -> None:
        """Write what the analysis reads, by `methods`: the session's drafters, that of `+drafter=` first;
        `left_out` are the ids of prompts that there was no time for.
        """
        chosen, *others = methods
        own = self.counts(chosen)
        facts = SessionFacts(
            drafter=chosen,
            compared=own["compared"],
            identical=own["identical"],
            unexplained=own["unexplained"],
            cache_bytes=self.cache_bytes,
            peak_mb=self.peak_mb,
            left_out=tuple(left_out),
            beside={name: self.counts(name) for name in others},
        )
        results.write_json("session.json", asdict(facts))
        results.write_json("traces.json", self.traces)
        lines = sorted(self.replays, key=lambda line: (line["kind"] == "baseline", line["gamma"]))
        results.write_table("replay", lines, ("method", "gamma", "kind", "prompt", "repeat", "tokens", "rounds"))
        results.write_table("alpha", self.alpha, ("method", "prompt", "repeat", "numerator", "denominator"))
        for name, columns in (("experts", EXPERTS), ("sampled", SAMPLED), ("quality", OUTPUTS)):
            if lines := getattr(self, name):
                results.write_table(name, lines, columns)
        if self.divergences:
            results.write_json("divergences.json", self.divergences)


def settle(folder: Path) -> None:
    """Make a whole of what a process left that was killed by force, where nobody did so yet: tables of the prompts that
    are done, a status, and their analysis. Afterwards the run can be uploaded, and still be resumed. UsageError where
    what is left cannot be analysed.
    """
    from specdec.analysis.pages.run_page import write_run  # sessions and their workers start without it

    status = RunStatus.read(folder)
    if status is None or not unsettled(folder) or is_locked(folder):
        return
    if status.status == "running":
        drop_unreadable(folder)
        kept = finished_prompts(folder)
        results = ResultsFolder(folder)
        if kept:
            collected = Collected()
            for done in kept.values():
                collected.add(done.collected)
            results.compact()
            facts = open_folder(folder).facts()
            collected.write(results, [facts.drafter, *facts.beside])
            if peers := results.read_json("peers.json"):
                results.write_json("peers.json", {**peers, "generations": collected.peers})
        results.write_status("killed", "Its process was killed.", len(kept), status.prompts)
    if (folder / ROUNDS).is_file():
        write_run(folder)

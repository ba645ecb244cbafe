"""The files that a session leaves for the analysis beside rounds and generations, and one prompt's share of them.

It is plain data, so that a finished prompt's share goes to disk with its rounds, and a resumed run takes it back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specdec.analysis.findings.run_metrics import OUTPUTS, SAMPLED
from specdec.analysis.read.facts import SessionFacts
from specdec.analysis.read.runs import EXPERTS
from specdec.folder.results import ResultsFolder


@dataclass
class Collected:
    """Lines for the analysis, in the order of the prompts.

    Attributes:
        compared: methods whose output was compared with the baseline's, once for each output.
        divergences: lines of `divergences.json`: outputs that differ from the baseline's.
        traces, quality, replays, alpha: lines of `traces.json`, `quality.parquet`, `replay.parquet`, `alpha.parquet`.
        experts: the experts that verification calls of a mixture chose (`experts.parquet`).
        sampled: texts of a temperature (`sampled.parquet`).
        peers: generations of other engines (`peers.json`).
        cache_bytes: size of the target's largest key-value cache.
        peak_mb: largest memory of a process.
    """

    compared: list[str] = field(default_factory=list)
    divergences: list[dict[str, Any]] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)
    quality: list[dict[str, Any]] = field(default_factory=list)
    replays: list[dict[str, Any]] = field(default_factory=list)
    alpha: list[dict[str, Any]] = field(default_factory=list)
    experts: list[dict[str, Any]] = field(default_factory=list)
    sampled: list[dict[str, Any]] = field(default_factory=list)
    peers: list[dict[str, Any]] = field(default_factory=list)
    cache_bytes: int = 0
    peak_mb: float = 0.0

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
        """Write what the analysis reads.

        Args:
            methods: the session's drafters, that of `+drafter=` first.
            left_out: ids of the prompts that there was no time for.
        """
        chosen, *others = methods
        facts = SessionFacts(
            drafter=chosen,
            **self.counts(chosen),
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
        if self.experts:
            results.write_table("experts", self.experts, EXPERTS)
        if self.sampled:
            results.write_table("sampled", self.sampled, SAMPLED)
        if self.quality:
            results.write_table("quality", self.quality, OUTPUTS)
        if self.divergences:
            results.write_json("divergences.json", self.divergences)

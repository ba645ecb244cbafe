"""Earlier runs as a command tells of them; light, because sweeps read it before anything heavy is imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdec.text.writing import read_json

AUTO, NEVER = "auto", "never"


@dataclass(frozen=True)
class EarlierRuns:
    """Runs that the present one may go on with, beside the one in its own folder."""

    below: Path  # the folder that they stand in or below
    # They are cells of the sweep that is resumed: a finished one is kept, and one of the same configuration with other
    # code or data is refused. Else the newest unfinished one of the same identity goes on, all others are left alone.
    sweep: bool = False


class KeptRun(dict[str, float]):
    """The metrics of a finished run that is kept as it is, and stands for the one that was asked for."""

    def __init__(self, metrics: Mapping[str, float], folder: Path) -> None:
        super().__init__(metrics)
        self.folder = folder

    @property
    def metrics(self) -> "KeptRun":
        return self

    @property
    def refuted(self) -> str:
        """The sentence of its findings that refutes its outputs; "" where they are the target's own."""
        for name in ("summary.json", "study.json"):
            findings = read_json(self.folder / name)
            if findings is not None:
                return str(findings.get("refuted", ""))
        return ""

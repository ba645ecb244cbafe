"""Which strategy earns the tokens of a mixed draft: accepted lengths, ranks and rows by strategy (N-Grammys,
2411.03786).
"""

from collections.abc import Mapping

import pandas as pd

from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.replayed import Strategy, check_rows, replay


@studies.register("ablation")
class Ablation(Study):
    """Tables: `replay` and `histograms` of `replayed.replay`, of the run's drafter and rows, with keys k and w."""

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        structure = check_rows(bench)
        strategy = Strategy({"k": structure["k"], "w": structure["w"]}, bench.values.drafter, structure)
        table, histograms = replay(bench, [strategy], bench.texts())
        return {"replay": table, "histograms": histograms}

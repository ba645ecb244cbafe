"""Tokens per call against top-k for strategies that depend on the last token alone (N-Grammys, 2411.03786)."""

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, Named, typed
from specdec.errors import UsageError
from specdec.studies.base import Ascending, Bench, Study, studies
from specdec.studies.base.replayed import Strategy, built_lookups, replay


@studies.register("topk")
@typed
class TopK(Study, Named):
    """Tables: `topk`, as `replayed.replay` has it with keys drafter (the name under `study.drafters`), k and w. The
    run's own drafter and structure are not used.
    """

    k: Ascending[AtLeastOne]
    w: Ascending[AtLeastOne]
    drafters: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        strategies: list[Strategy] = []
        built_lookups(bench, self.drafters, fills=["rows"])
        for label, values in self.drafters.items():
            known, asked = values.get("k"), self.k[-1]
            if known is not None and asked > known:
                raise UsageError(
                    f"Bad value study.k={asked}: {label} ranks study.drafters.{label}.k={known} tokens only; raise "
                    "that."
                )
            for w, k in product(self.w, self.k):
                rows = {"name": "rows", "k": k, "w": w, "budget": k * (w + 1)}
                strategies.append(Strategy({"drafter": label, "k": k, "w": w}, values, rows))
        table, _ = replay(bench, strategies, bench.texts())
        return {"topk": table}

"""Tokens per call against top-k for strategies that depend on the last token alone (N-Grammys, 2411.03786)."""

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.errors import UsageError
from specdec.studies.base import Bench, Study, studies
from specdec.studies.base.replayed import Strategy, built_lookups, replay


@typed
class TopKConfig:
    name: Literal["topk"]
    k: Annotated[list[AtLeastOne], Field(min_length=1)]
    w: Annotated[list[AtLeastOne], Field(min_length=1)]
    drafters: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


@studies.register("topk")
class TopK(Study):
    """Tables: `topk`, as `replayed.replay` has it with keys drafter (the name under `study.drafters`), k and w. The
    run's own drafter and structure are not used.
    """

    def __init__(self, config: TopKConfig) -> None:
        self._config = config

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        config, strategies = self._config, list[Strategy]()
        built_lookups(bench, config.drafters, "topk", fills=["rows"])
        for label, values in config.drafters.items():
            known, asked = values.get("k"), max(config.k)
            if known is not None and asked > known:
                raise UsageError(
                    f"Bad value study.k={asked}: {label} ranks study.drafters.{label}.k={known} tokens only; raise "
                    "that."
                )
            for w, k in product(sorted(set(config.w)), sorted(set(config.k))):
                rows = {"name": "rows", "k": k, "w": w, "budget": k * (w + 1)}
                strategies.append(Strategy({"drafter": label, "k": k, "w": w}, values, rows))
        table, _ = replay(bench, strategies, bench.texts())
        return {"topk": table}

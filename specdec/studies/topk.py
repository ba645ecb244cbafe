"""Tokens per call against top-k for strategies that depend on the last token alone (N-Grammys, 2411.03786)."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.replay.walk import Cell
from specdec.studies.base import Bench, Study, studies
from specdec.studies.replayed import Strategy, check_lookup, replay, skipped
from specdec.targets import Target


@typed
class TopKConfig:
    name: Literal["topk"]
    k: Annotated[list[AtLeastOne], Field(min_length=1)]
    w: Annotated[list[AtLeastOne], Field(min_length=1)]
    drafters: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


@studies.register("topk")
class TopK(Study):
    """Tables: `topk`, as `replayed.replay` has it with keys drafter (the name under `study.drafters`), k and w; and
    `skipped`. The run's own drafter and structure are not used.
    """

    def __init__(self, config: TopKConfig) -> None:
        self._config = config

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        for label, values in self._config.drafters.items():
            self._check(label, values, bench.parts.target)
        strategies = [
            Strategy(
                {"drafter": label, "k": k, "w": w},
                Cell(values, {"name": "rows", "k": k, "w": w, "budget": k * (w + 1)}),
            )
            for label, values in self._config.drafters.items()
            for w in sorted(set(self._config.w))
            for k in sorted(set(self._config.k))
        ]
        table, _ = replay(bench, strategies, bench.texts())
        return {"topk": table, "skipped": skipped(bench.parts.prompts)}

    def _check(self, label: str, values: Mapping[str, Any], target: Target) -> None:
        """Before anything is decoded, which takes a while; builds the drafter too, since that reads models."""
        place = f"study.drafters.{label}"
        try:
            drafters.config(values)
            check_lookup(values["name"], "topk")
            drafter = drafters.build(values, target=target)
        except UsageError as error:
            raise UsageError(re.sub(r"(?<![\w./-])drafter(?=[.=])", place, str(error))) from None
        if "rows" not in drafter.capabilities.fills:
            raise UsageError(f"Bad value {place}.name={values['name']}: this drafter fills no rows; use another.")
        known, asked = values.get("k"), max(self._config.k)
        if known is not None and asked > known:
            raise UsageError(f"Bad value study.k={asked}: {label} ranks {place}.k={known} tokens only; raise that.")

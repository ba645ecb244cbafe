"""The parts that recipes of whole models and of heads share, without torch: the pace, and the hash of a recipe."""

import hashlib
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from specdec.config import AtLeastOne, TrackingConfig, typed

NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


@typed
class PaceConfig:
    """The pace of measuring, logging and saving on the way; changes no weight."""

    heldout_every_steps: AtLeastOne
    log_every_steps: AtLeastOne  # MLflow batches
    checkpoint_seconds: Positive


@typed
class TrainingConfig:
    """The keys of `conf/train.yaml`, which every recipe is added to."""

    output_dir: Annotated[str, Field(min_length=1)] | None
    corpus_dir: Annotated[str, Field(min_length=1)]
    tracking: TrackingConfig
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    device: Literal["auto", "cpu", "cuda"]
    threads: AtLeastOne | None


def fingerprint(*parts: Any) -> str:
    """Return the sha256 of the parts as JSON (dataclasses allowed): equal parts have equal fingerprints."""
    plain = [asdict(part) if hasattr(part, "__dataclass_fields__") else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

"""Writes down what a run is before it begins: configuration, machine, parts, and the hash that two runs of the same
measurement share.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import yaml

from specdec import __version__
from specdec.analysis.read.facts import RunFacts
from specdec.config import RunConfig, flattened
from specdec.experiment.advice import Advice
from specdec.experiment.environment import capture
from specdec.experiment.parts import DrafterArms, Parts
from specdec.experiment.results import ResultsFolder
from specdec.targets.replay import Replay


@dataclass(frozen=True)
class RunIdentity:
    """The record that a run makes of itself before it begins.

    Attributes:
        params: the resolved configuration, flat.
        environment: versions, hardware, weights, prompts (`environment.json`).
        cell: hash that two runs share if they are the same measurement.
        tags: of the MLflow run.
    """

    params: dict[str, Any]
    environment: dict[str, Any]
    cell: str
    tags: dict[str, str]


def identify(config: RunConfig, parts: Parts, results: ResultsFolder) -> RunIdentity:
    """Write `config.yaml` and `environment.json`, and return the record."""
    plain = asdict(config)
    (results.folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    model, drafter = parts.target.describe(), parts.primary.drafter.describe()
    environment = {
        **capture(parts.target.device),
        "model": model,
        "drafter": drafter,
        **({"drafters": {each.name: each.primary.drafter.describe() for each in parts.beside}} if parts.beside else {}),
        **({} if parts.original is None else {"original": parts.original.target.describe()}),
        "prompts": {
            "name": parts.prompts.name,
            "sha256": parts.prompts.content_hash,
            "count": len(parts.prompts.prompts),
            "skipped": {reason: dict(counts) for reason, counts in parts.prompts.skipped.items()},
            **parts.prompts.provenance,
        },
        "seed": config.seed,
    }
    results.write_json("environment.json", environment)
    weights = [model, drafter, environment.get("original", {}), *environment.get("drafters", {}).values()]
    cell = _fingerprint(plain, weights, parts.prompts.content_hash)
    tags = {
        "specdec.cell": cell,
        "specdec.version": __version__,
        "drafter": config.drafter["name"],
        **({"drafters": ", ".join(each.name for each in parts.drafters)} if parts.beside else {}),
        "model": str(config.target.get("model", config.target["name"])),
        "gamma": str(parts.primary.gamma),
        "dtype": str(model.get("dtype", "float64")),
        "time": "measured" if parts.target.clock() is None else "simulated",
    }
    return RunIdentity(flattened(plain), environment, cell, tags)


def _fingerprint(config: Mapping[str, Any], weights: Sequence[Mapping[str, Any]], prompts: str) -> str:
    """Hash what makes two runs the same measurement: the resolved config, the weights, the prompts, the version."""
    keep = {key: value for key, value in config.items() if key not in ("tracking", "experiment_name", "advice_dir")}
    text = json.dumps(
        [keep, *(each.get("sha256") for each in weights), prompts, __version__],
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_facts(parts: Parts, max_new_tokens: int, advice: Advice | None = None) -> RunFacts:
    """Collect what the analysis needs to know of the parts, and of the limit of an output."""
    others = {each.name: _facts_of(each, parts, max_new_tokens) for each in parts.beside}
    predicted = {} if advice is None else {item.gamma: item.speedup.estimate for item in advice.predictions}
    return replace(_facts_of(parts.chosen, parts, max_new_tokens), predicted=predicted, beside=others)


def _facts_of(drafting: DrafterArms, parts: Parts, max_new_tokens: int) -> RunFacts:
    primary, verifier = drafting.primary.structure, drafting.primary.verifier
    judge = None if parts.judge is None else "target" if parts.original is None else "original"
    return RunFacts(
        drafter=drafting.name,
        label=drafting.label,
        structure=primary.name,
        structure_label=primary.label,
        single=primary.single,
        depth_name=primary.depth_name,
        primary_gamma=drafting.primary.gamma,
        left_out=drafting.left_out,
        deepest=drafting.drafter.capabilities.deepest,
        lossless=verifier.capabilities.lossless,
        deterministic=verifier.capabilities.deterministic,
        greedy=parts.target.sampling.greedy,
        forced=parts.forced,
        simulated=parts.target.clock() is not None,
        judge=judge,
        target_flops=float(parts.target.flops_per_token),
        drafter_flops=float(drafting.primary.drafter.flops_per_token),
        predicted={},
        batch_size=parts.batch_size,
        notes=_notes(drafting, parts, max_new_tokens),
    )


def _notes(drafting: DrafterArms, parts: Parts, max_new_tokens: int) -> tuple[str, ...]:
    """Return what is said of recorded texts and of the drafter before anything is decoded."""
    target = parts.target
    used = isinstance(target, Replay) and target.notes((each.tokens for each in parts.prompts.prompts), max_new_tokens)
    batches: tuple[str, ...] = ()
    if parts.batch_size > 1:
        batches = (
            f"Decoded {parts.batch_size} sequences at a time, by eager calls: a round's times are its share of a step, "
            "which all active sequences share evenly.",
        )
    return (*(used or ()), *batches, *drafting.drafter.notes)

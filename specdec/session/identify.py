"""Finds out what a run is before it begins: configuration, machine, parts, and the hash that two runs of the same
measurement share; and what the analysis has to know of the parts.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from specdec import __version__
from specdec.analysis.read.facts import RunFacts
from specdec.code_version import code_hash
from specdec.config import RunConfig, flattened
from specdec.environment import capture
from specdec.folder.identity import MISSING, RunIdentity
from specdec.plan.budget import KEY as BUDGET
from specdec.plan.budget import budget_of
from specdec.plugins import is_foreign, source_hash
from specdec.session.dtypes import arithmetic_notes, with_used_dtypes
from specdec.session.parts import DrafterArms, Parts
from specdec.targets.replay import Replay

# Keys that change neither what is decoded nor what is said of it: where results go, and how the work is shared out.
_OPERATIONAL = ("tracking", "resume", "advice_dir", "experiment_name")
_OPERATIONAL_MEASUREMENT = ("workers", "trace", "record")
# Keys of `describe` that stand for content; a model is another one in another arithmetic.
_CONTENT = ("sha256", "file_sha256", "commit", "digest", "corpus", "dtype")


def identify(config: RunConfig, parts: Parts) -> RunIdentity:
    """Return the record of a run that has not begun."""
    plain = asdict(config)
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
    foreign = _foreign_code(parts)
    if foreign:
        environment["plugins"] = foreign
    identity = _identity(plain, environment)
    environment["identity"] = identity
    tags = {
        "specdec.cell": identity["cell"],
        "specdec.version": __version__,
        "drafter": config.drafter["name"],
        **({"drafters": ", ".join(each.name for each in parts.drafters)} if parts.beside else {}),
        "model": str(config.target.get("model", config.target["name"])),
        "gamma": str(parts.primary.gamma),
        "structure": str(config.structure["name"]),
        "verifier": str(config.verifier["name"]),
        "prompts": parts.prompts.name,
        "temperature": f"{_temperature(config):g}",
        "dtype": str(model.get("dtype", "float64")),
        "time": "measured" if parts.target.clock() is None else "simulated",
        **({"mlflow.source.git.commit": code["commit"]} if (code := environment.get("code")) else {}),
        **parts.target.tags,
    }
    params = with_used_dtypes(flattened(plain), {"target": model, "drafter": drafter})
    params |= {key: value for key, value in _chosen(parts, model, drafter).items() if params.get(key) == "auto"}
    params["measurement.null"] = config.study is None and parts.null is not None
    params[BUDGET] = budget_of(config) if params[BUDGET] == "auto" else params[BUDGET]
    return RunIdentity(params, environment, identity["cell"], tags, plain)


def _temperature(config: RunConfig) -> float:
    return float(config.sampling.get("temperature") or 0.0)


def _chosen(parts: Parts, model: Mapping[str, Any], drafter: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen for keys of the target and the drafter that can be `auto`."""
    compilation = {None: False, "inductor": True}.get(model.get("compilation"), model.get("compilation"))
    found = {
        "target.device": str(parts.target.device),
        "target.attention": _setting_of_attention(model),
        "target.compile": compilation,
        "drafter.attention": _setting_of_attention(drafter),
    }
    return {key: value for key, value in found.items() if value is not None}


def _setting_of_attention(described: Mapping[str, Any]) -> str | None:
    """Return the value of the key: an implementation of our own, such as sdpa_two_rows, is a form of transformers'."""
    name = described.get("attention")
    return None if name is None else str(name).partition("_")[0]


_USUAL_RULES = ("speculative_sampling", "greedy")  # of temperature above 0, and of 0: not told in a run's name


def run_name(config: RunConfig, parts: Parts, identity: RunIdentity) -> str:
    """Return the name of a run: what it decodes, with what, of which prompts; then the beginning of the hash of its
    identity, so that runs that differ anywhere have different names.
    """
    beside = f" beside {', '.join(each.name for each in parts.beside)}" if parts.beside else ""
    temperature = _temperature(config)
    told = [
        f"{parts.label} {parts.primary.structure.label}{beside}",
        parts.prompts.name,
        *([f"temperature {temperature:g}"] if temperature else []),
        *([identity.tags["verifier"]] if identity.tags["verifier"] not in _USUAL_RULES else []),
        identity.cell[:6],
    ]
    return ", ".join(told)


def _foreign_code(parts: Parts) -> dict[str, str]:
    """Return the sha256 of the code of every part that is of another package, by its module."""
    arms = [each.primary for each in parts.drafters]
    made = [parts.target, *(part for arm in arms for part in (arm.drafter, arm.verifier, arm.structure))]
    return {type(part).__module__: source_hash(type(part)) for part in made if is_foreign(type(part))}


def _identity(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a run's identity, flat, and `cell`, the hash of all but the machine.

    A finished run counts wherever it was measured; one that goes on has to do so on the same kind of machine.
    """
    flat = flattened({key: value for key, value in config.items() if key not in _OPERATIONAL})
    dropped = ("target.compile_cache", *(f"measurement.{key}" for key in _OPERATIONAL_MEASUREMENT))
    parts = ("model", "drafter", "drafters", "original")
    content = flattened({name: environment[name] for name in parts if environment.get(name)})
    found = {
        "config": {key: value for key, value in flat.items() if key not in dropped},
        "content": {key: value for key, value in content.items() if key.rpartition(".")[2] in _CONTENT and value}
        | {"prompts.sha256": environment["prompts"]["sha256"]},
        "code": {"version": __version__, "sha256": code_hash(), **environment.get("plugins", {})},
    }
    cell = hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:16]
    cpu, gpu, versions = environment["cpu"], environment.get("gpu") or {}, environment["versions"]
    machine = {
        "processor": cpu["model"],
        "gpu": gpu.get("name", MISSING),
        "threads": cpu["torch_threads"],
        **{name: versions.get(name, MISSING) for name in ("torch", "transformers")},
    }
    # As JSON gives it back, so that it compares with what another run has written.
    return json.loads(json.dumps({"cell": cell, **found, "machine": machine}, default=str))


def run_facts(parts: Parts, max_new_tokens: int, predicted: Mapping[int, float] | None = None) -> RunFacts:
    """Collect what the analysis needs to know of the parts, and of the limit of an output.

    Args:
        predicted: speedups that advice gave for this run, by gamma.
    """
    others = {each.name: _facts_of(each, parts, max_new_tokens) for each in parts.beside}
    return replace(_facts_of(parts.chosen, parts, max_new_tokens), predicted=dict(predicted or {}), beside=others)


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
    arithmetic = arithmetic_notes(parts) if drafting is parts.chosen else ()
    return (*(used or ()), *batches, *arithmetic, *target.remarks, *drafting.drafter.notes)

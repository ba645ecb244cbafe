"""Finds out what a run is before it begins: its identity, and what the analysis has to know of its parts."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specdec import __version__
from specdec.analysis.read.facts import RunFacts
from specdec.config import flattened
from specdec.environment import capture
from specdec.folder.identity import MISSING, RunIdentity
from specdec.plugins import code_hash, is_foreign, source_hash
from specdec.session.parts import DrafterArms, Parts
from specdec.targets.replay import Replay

# Keys that change neither what is decoded nor what is said of it: where results go, and how the work is shared out.
_OPERATIONAL = ("tracking", "resume", "advice_dir", "experiment_name")
_OPERATIONAL_MEASUREMENT = ("workers", "trace", "record", "quiet", "server_slots")
# Keys of `describe` that stand for content; a model is another one in another arithmetic.
_CONTENT = ("sha256", "file_sha256", "commit", "digest", "corpus", "dtype")
_USUAL_RULES = ("speculative_sampling", "greedy")  # of temperature above 0, and of 0: not told in a run's name


def identify(parts: Parts) -> RunIdentity:
    """Return the record of a run that has not begun."""
    plan, chosen = parts.plan, parts.plan.chosen.values
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
        "seed": plan.seed,
    }
    arms = [each.primary for each in parts.drafters]
    made = [parts.target, *(part for arm in arms for part in (arm.drafter, arm.verifier, arm.structure))]
    foreign = {type(part).__module__: source_hash(type(part)) for part in made if is_foreign(type(part))}
    if foreign:
        environment["plugins"] = foreign
    identity = _identity(plan.config, environment)
    environment["identity"] = identity
    tags = {
        "specdec.cell": identity["cell"],
        "specdec.version": __version__,
        "drafter": chosen.drafter["name"],
        **({"drafters": ", ".join(each.name for each in parts.drafters)} if parts.beside else {}),
        "model": plan.model,
        "gamma": str(parts.primary.gamma),
        "structure": str(chosen.structure["name"]),
        "verifier": str(chosen.verifier["name"]),
        "prompts": parts.prompts.name,
        "temperature": f"{plan.sampling.temperature:g}",
        "dtype": str(model.get("dtype", "float64")),
        "time": "measured" if parts.target.clock() is None else "simulated",
        **({"mlflow.source.git.commit": code["commit"]} if (code := environment.get("code")) else {}),
        **parts.target.tags,
    }
    params = with_used_dtypes(flattened(plan.config), {"target": model, "drafter": drafter})
    chosen_by_auto = {
        "target.device": str(parts.target.device),
        "target.attention": model.get("attention"),
        "target.compile": {None: False, "inductor": True}.get(model.get("compilation"), model.get("compilation")),
        "drafter.attention": drafter.get("attention"),
    }
    for key, value in chosen_by_auto.items():
        if value is not None and params.get(key) == "auto":
            # An implementation of our own, such as sdpa_two_rows, is a form of transformers', whose name the key has.
            params[key] = str(value).partition("_")[0] if key.endswith(".attention") else value
    params["measurement.null"] = plan.study is None and parts.null is not None
    params["measurement.budget_seconds"] = plan.budget_seconds
    return RunIdentity(params, environment, identity["cell"], tags, dict(plan.config))


def run_name(parts: Parts, identity: RunIdentity) -> str:
    """Return the name of a run: what it decodes, with what, of which prompts; then the beginning of the hash of its
    identity, so that runs that differ anywhere have different names.
    """
    beside = f" beside {', '.join(each.name for each in parts.beside)}" if parts.beside else ""
    words = [f"{parts.chosen.label} {parts.primary.structure.label}{beside}", parts.prompts.name]
    if temperature := parts.plan.sampling.temperature:
        words.append(f"temperature {temperature:g}")
    if identity.tags["verifier"] not in _USUAL_RULES:
        words.append(identity.tags["verifier"])
    return ", ".join([*words, identity.cell[:6]])


def _identity(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a run's identity, flat, and `cell`, the hash of all but the machine. A finished run counts
    wherever it was measured; one that goes on has to do so on the same kind of machine.
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


def run_facts(parts: Parts, predicted: Mapping[int, float] | None = None) -> RunFacts:
    """Collect what the analysis needs to know of the parts, and the speedups that advice `predicted`, by gamma."""
    others = {each.name: _facts_of(each, parts) for each in parts.beside}
    return replace(_facts_of(parts.chosen, parts), predicted=dict(predicted or {}), beside=others)


def _facts_of(drafting: DrafterArms, parts: Parts) -> RunFacts:
    primary, verifier, target = drafting.primary.structure, drafting.primary.verifier, parts.target
    judge = None if parts.judge is None else "target" if parts.original is None else "original"
    size = parts.plan.measurement.batch_size
    notes: list[str] = []  # on recorded texts and on the drafter, known before anything is decoded
    if isinstance(target, Replay):
        notes += target.notes((each.tokens for each in parts.prompts.prompts), parts.limit)
    if size > 1:
        notes.append(
            f"Decoded {size} sequences at a time, by eager calls: a round's times are its share of a step, "
            "which all active sequences share evenly."
        )
    if drafting is parts.chosen:
        notes += arithmetic_notes(parts)
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
        greedy=target.sampling.greedy,
        forced=parts.plan.forced,
        simulated=target.clock() is not None,
        judge=judge,
        target_flops=float(target.flops_per_token),
        drafter_flops=float(drafting.primary.drafter.flops_per_token),
        predicted={},
        batch_size=size,
        notes=(*notes, *target.remarks, *drafting.drafter.notes),
    )


def arithmetic_notes(parts: Parts) -> tuple[str, ...]:
    """Return a sentence for each reason why a model computes in another dtype than was asked for, or slowly; it begins
    with the models that it is about.
    """
    drafters = {each.name if parts.beside else "drafter": each.drafter.describe() for each in parts.drafters}
    about: dict[str, list[str]] = {}
    for who, described in {"target": parts.target.describe(), **drafters}.items():
        for reason in values_of("dtype_reason", described):
            about.setdefault(reason, []).append(who)
    return tuple(f"{' and '.join(who).capitalize()}: {reason}" for reason, who in about.items())


def with_used_dtypes(params: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return flat parameters with the dtype that is used in place of every `dtype`, and behind it, as `dtype_asked`,
    what the configuration says. What is recorded of the models is `described` by group: that of `drafter.of.dtype` is
    in `drafter`, below `of` or, where the drafter names its models itself, anywhere.
    """
    found: dict[str, Any] = {}
    for key, value in params.items():
        group, *below = key.split(".")
        if not below or below[-1] != "dtype" or group not in described:
            found[key] = value
            continue
        place: Any = described[group]
        for part in below[:-1]:
            place = place.get(part, place) if isinstance(place, Mapping) else place
        found |= {key: ", ".join(values_of("dtype", place)) or value, f"{key}_asked": value}
    return found


def values_of(key: str, described: Mapping[str, Any]) -> list[str]:
    """Return the distinct values of a key, at any depth, of what is recorded of a model."""
    values = (value for name, value in flattened(described).items() if name.rpartition(".")[2] == key)
    return list(dict.fromkeys(map(str, values)))

"""Builds the parts of a run from its configuration and checks that they fit together."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from specdec.config import BASELINE, NULL, ORIGINAL, MeasurementConfig, RunConfig, validated
from specdec.drafters import Drafter, drafters
from specdec.drafters.none import NoDrafter
from specdec.errors import UsageError
from specdec.peers import engines
from specdec.plan.batch_checks import check_batch, check_turns
from specdec.plan.beside import beside, named_beside
from specdec.prompts import Prompt, PromptSet, load_prompts, prompts
from specdec.sampling import SamplingConfig
from specdec.session.arm import Arm
from specdec.session.recorded_walk import walks
from specdec.session.sampled_pair import SampledPair, sampled_pair
from specdec.structures import Structure, structures
from specdec.targets import Target, targets
from specdec.targets.causal import Causal
from specdec.targets.replay import Replay
from specdec.timing.simulated import priced
from specdec.tracking import writer as tracking
from specdec.verifiers import Verifier, verifiers


@dataclass(frozen=True)
class DrafterArms:
    """One drafter of a session with its arms, which differ in gamma."""

    drafter: Drafter  # as configured; where time is simulated, that of the arms also moves the clock
    arms: tuple[Arm, ...]
    primary: Arm
    label: str  # drafter on model, for titles
    left_out: tuple[int, ...] = ()  # of measurement.gammas: deeper than the drafter drafts, or than the structure is

    @property
    def name(self) -> str:
        """The method of its arms in every table."""
        return self.primary.method


@dataclass(frozen=True)
class Parts:
    """Everything a session needs, built and found compatible. What is said of "the drafter" is that of `+drafter=`."""

    target: Target
    chosen: DrafterArms  # of +drafter=
    baseline: Arm
    prompts: PromptSet
    forced: bool
    beside: tuple[DrafterArms, ...] = ()  # of measurement.drafters
    sampled: SampledPair | None = None  # a line at a temperature beside a greedy run
    original: Arm | None = None  # plain decoding with the model that the target was before it was trained
    null: Arm | None = None  # plain decoding by the target once more, where a control is measured
    batch_size: int = 1  # sequences that every arm decodes at once
    walks: bool = False  # the target's text is recorded and drafts are looked up: all arms decode in one walk

    @property
    def drafter(self) -> Drafter:
        return self.chosen.drafter

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self.chosen.arms

    @property
    def primary(self) -> Arm:
        return self.chosen.primary

    @property
    def label(self) -> str:
        return self.chosen.label

    @property
    def left_out(self) -> tuple[int, ...]:
        return self.chosen.left_out

    @property
    def drafters(self) -> tuple[DrafterArms, ...]:
        """All drafters of the session, that of `+drafter=` first."""
        return (self.chosen, *self.beside)

    @property
    def speculative(self) -> tuple[Arm, ...]:
        """The arms of all drafters."""
        return tuple(arm for each in self.drafters for arm in each.arms)

    @property
    def plain(self) -> tuple[Arm, ...]:
        """Plain decoding: with the target, again with it as a control, and with its original where one is named."""
        return (self.baseline, *(arm for arm in (self.null, self.original) if arm is not None))

    @property
    def judge(self) -> Target | None:
        """The model under whose law outputs are judged; None where they are the target's own by the rules."""
        if self.original is not None:
            return self.original.target
        lossless = all(each.primary.verifier.capabilities.lossless for each in self.drafters)
        return None if lossless or self.forced else self.target


def build(config: RunConfig) -> Parts:
    """Validate every component's own config, then construct it.

    Raises:
        UsageError: the first thing that is wrong, before any weight is read where that is possible.
    """
    sampling, target_config, asked = checked(config)
    target = targets.construct(target_config, sampling=sampling)
    if config.measurement.batch_size > 1:
        target.compilation = None  # batches are decoded eagerly; drafters follow the target
    prompts = load_prompts(
        config.prompts,
        tokenizer=target.tokenizer,
        context_length=target.context_length,
        max_new_tokens=limited(config, target).measurement.limit,
        vocab_size=target.vocab_size,
    )
    check_turns(config, prompts)
    original = _open_original(config, target)
    made = [_drafter_arms(asked[0], target)]
    for other in asked[1:]:
        with named_beside(other.method):
            made.append(_drafter_arms(other, target))
    chosen = made[0].primary
    baseline = replace(chosen, method=BASELINE, drafter=NoDrafter(), structure=chosen.structure.resized(0))
    walked = all(walks(target, each.drafter) for each in made)
    return Parts(
        target=target,
        chosen=made[0],
        baseline=baseline,
        prompts=prompts,
        forced=bool(config.drafter.get("forced", False)),
        beside=tuple(made[1:]),
        sampled=None if walked else sampled_pair(config, baseline, chosen),
        original=None if original is None else replace(baseline, method=ORIGINAL, target=original),
        null=replace(baseline, method=NULL) if _has_control(config, target, len(made[0].arms)) else None,
        batch_size=config.measurement.batch_size,
        walks=walked,
    )


@dataclass(frozen=True)
class AskedDrafter:
    """A drafter that is to be decoded with, checked as far as no model is needed."""

    method: str
    config: RunConfig  # with its drafter, structure and verifier
    drafter_config: Any
    structure: Structure
    verifier: Verifier


class CheckedRun(NamedTuple):
    """The parts that a run asks for, typed and checked as far as configuration alone can tell."""

    sampling: SamplingConfig
    target_config: Any
    drafters: list[AskedDrafter]  # that of +drafter= first


def checked(config: RunConfig) -> CheckedRun:
    """Check the values of every part, then that the parts fit together, then the shapes of drafts. Reads no model.

    Raises:
        UsageError: the first fault.
    """
    check_batch(config)
    sampling = validated(SamplingConfig, config.sampling, where="sampling")
    target_config = targets.config(config.target)
    prompts.config(config.prompts)
    every = {str(config.drafter["name"]): config, **beside(config)}
    typed = {name: _typed(name, each, sampling) for name, each in every.items()}
    # Built last: a tree for given accuracies takes numpy, which the check before all imports does not have.
    asked = [_asked(name, each, *typed[name]) for name, each in every.items()]
    return CheckedRun(sampling, target_config, asked)


def _typed(name: str, config: RunConfig, sampling: SamplingConfig) -> tuple[Any, Any, Verifier]:
    """Return the typed configuration of drafter and structure, and the verifier; all three fit together."""
    with _place(name, config):
        drafter_config = drafters.config(config.drafter)
        structure_config = structures.config(config.structure)
        verifier = verifiers.build(config.verifier)
        _check_compatible(config, sampling, structures.get(config.structure["name"]), verifier)
        return drafter_config, structure_config, verifier.for_greedy() if sampling.greedy else verifier


def _asked(
    name: str, config: RunConfig, drafter_config: Any, structure_config: Any, verifier: Verifier
) -> AskedDrafter:
    with _place(name, config):
        return AskedDrafter(name, config, drafter_config, structures.construct(structure_config), verifier)


def _place(name: str, config: RunConfig) -> AbstractContextManager[None]:
    """Return what names the place of a fault in a drafter that is beside the one of `+drafter=`."""
    return named_beside(name) if name in config.measurement.drafter_settings else nullcontext()


def _drafter_arms(asked: AskedDrafter, target: Target) -> DrafterArms:
    """Construct a drafter, and its arms at all gammas that it drafts."""
    config, structure = asked.config, asked.structure
    # One drafter serves every gamma: arms never decode at the same time.
    drafter = drafters.construct(asked.drafter_config, target=target)
    can = drafter.capabilities
    if can.vocab_size not in (None, target.vocab_size):
        raise UsageError(
            f"Bad value drafter={config.drafter['name']}: it was made for a vocabulary of {can.vocab_size} tokens, "
            f"the target has {target.vocab_size}; use a drafter with the target's own tokenizer."
        )
    _check_built(config, drafter, structure, target)
    deepest = can.deepest or max(structure.gamma, *config.measurement.gammas, 0)
    if structure.gamma > deepest:
        raise UsageError(
            f"Bad value structure={config.structure['name']}: it is {structure.gamma} deep, and drafter "
            f"{config.drafter['name']} drafts {deepest} levels at most; lower the structure's depth."
        )
    gammas = sorted({*config.measurement.gammas, structure.gamma})
    sized = {gamma: structure if gamma == structure.gamma else structure.resized(gamma) for gamma in gammas}
    arms = {
        gamma: Arm(
            method=asked.method,
            target=target,
            drafter=priced(drafter, target),
            structure=shape,
            verifier=asked.verifier,
        )
        for gamma, shape in sized.items()
        if gamma <= deepest and shape.gamma == gamma  # a tree that was given has no deeper levels
    }
    model = str(config.target.get("model", config.target["name"]))
    size = config.measurement.batch_size
    return DrafterArms(
        drafter=drafter,
        arms=tuple(arms.values()),
        primary=arms[structure.gamma],
        label=(model if asked.method == "none" else f"{asked.method} on {model}") + (f", batch {size}" * (size > 1)),
        left_out=tuple(gamma for gamma in gammas if gamma not in arms),
    )


C = TypeVar("C", bound=RunConfig)


def limited(config: C, target: Target) -> C:
    """Return the configuration with a number in `measurement.max_new_tokens`: null stands for whole recorded texts.

    Raises:
        UsageError: it is null, and no record says where a text ends.
    """
    if config.measurement.max_new_tokens is not None:
        return config
    if not isinstance(target, Replay):
        raise UsageError(
            f"Bad value measurement.max_new_tokens=null: target {config.target['name']!r} would write without an end, "
            "only target=replay knows where its texts end; give a number of tokens."
        )
    return replace(config, measurement=replace(config.measurement, max_new_tokens=target.longest))


CHEAP = 4  # draft lengths from which on `measurement.null=auto` decodes plainly twice


def _has_control(config: RunConfig, target: Target, lengths: int) -> bool:
    """Return True if plain decoding is to be measured once more.

    Args:
        lengths: of drafts at which each prompt is decoded.
    Raises:
        UsageError: a control of time that is not measured.
    """
    asked, simulated = config.measurement.null, target.clock() is not None
    if asked is True and simulated:
        raise UsageError(
            f"Bad value measurement.null=true: the time of target {config.target['name']!r} is simulated and has no "
            "noise; use measurement.null=auto."
        )
    return not simulated and lengths >= CHEAP if asked == "auto" else asked


def _open_original(config: RunConfig, target: Target) -> Causal | None:
    """Load the model of `measurement.original` and run it exactly as the target; None where none is named.

    Raises:
        UsageError: it does not read and write the target's tokens, or holds fewer of them.
    """
    name = config.measurement.original
    if name is None:
        return None
    assert isinstance(target, Causal)  # checked before anything was loaded
    dtype = str(target.model.dtype).removeprefix("torch.")  # a checkpoint's own may be another
    values = {**config.target, "model": name, "shape": None, "dtype": dtype, "revision": None}
    original = targets.build(values, sampling=target.sampling)
    assert isinstance(original, Causal)
    known = None not in (original.tokenizer, target.tokenizer)
    for differs, what in (
        (original.vocab_size != target.vocab_size, f"has {original.vocab_size} tokens, the target {target.vocab_size}"),
        (known and original.tokenizer.get_vocab() != target.tokenizer.get_vocab(), "has another tokenizer"),
        (
            original.context_length < target.context_length,
            f"holds {original.context_length} tokens of context, the target {target.context_length}",
        ),
    ):
        if differs:
            raise UsageError(
                f"Bad value measurement.original={name}: it {what}; give the model that the target was trained from."
            )
    return original


def _check_compatible(
    config: RunConfig, sampling: SamplingConfig, structure: type[Structure], verifier: Verifier
) -> None:
    drafter = drafters.get(config.drafter["name"]).capabilities
    target = targets.get(config.target["name"]).capabilities
    rule = verifier.capabilities
    shape = structure.name
    for fits, who, what in (
        (drafter.fills, f"drafter {config.drafter['name']!r}", "fills"),
        (rule.handles, f"verifier {config.verifier['name']!r}", "handles"),
        (target.structures, f"target {config.target['name']!r}", "evaluates"),
    ):
        if shape not in fits:
            chosen = config.structure["name"]
            raise UsageError(f"Bad value structure={chosen}: {who} {what} only {', '.join(sorted(fits))}.")
    if config.measurement.lossless:
        _check_lossless(config, verifier)
    if target.recorded and not verifier.for_greedy().capabilities.lossless:
        raise UsageError(
            f"Bad value verifier={config.verifier['name']}: target {config.target['name']!r} knows "
            "recorded tokens only, and this rule commits others; use verifier=speculative_sampling."
        )
    if target.recorded and drafter.reads_logits:
        raise _no_logits(config)
    if rule.greedy_only and not sampling.greedy:
        raise UsageError(
            f"Bad value sampling.temperature={sampling.temperature}: verifier {config.verifier['name']!r} is right "
            "only at 0; use verifier=speculative_sampling."
        )
    if drafter.needs_reference and not sampling.greedy:
        raise UsageError(
            f"Bad value sampling.temperature={sampling.temperature}: drafter {config.drafter['name']!r} reads the "
            "recorded greedy text; use sampling=greedy."
        )
    for name in config.measurement.peers:
        engines.get(name)
    if config.measurement.peers and config.target["name"] != "causal":
        raise UsageError("Bad value measurement.peers: peers need target=causal; use measurement.peers=[].")
    if config.measurement.original is not None and config.target["name"] != "causal":
        raise UsageError(
            f"Bad value measurement.original={config.measurement.original}: a second baseline needs target=causal; use "
            "measurement.original=null."
        )


def _no_logits(config: RunConfig) -> UsageError:
    return UsageError(
        f"Bad value drafter={config.drafter['name']}: it learns from the target's logits, and target "
        f"{config.target['name']!r} knows recorded tokens only; use target=causal."
    )


def _check_built(config: RunConfig, drafter: Drafter, structure: Structure, target: Target) -> None:
    """Check what a drafter that is made of others can do and needs, which its class does not know.

    Raises:
        UsageError: a structure that not all of its parts fill; a part that learns from logits which a record has not.
    """
    can = drafter.capabilities
    if structure.name not in can.fills:
        raise UsageError(
            f"Bad value structure={config.structure['name']}: drafter {config.drafter['name']!r} with these parts "
            f"fills only {', '.join(sorted(can.fills))}."
        )
    if can.reads_logits and target.capabilities.recorded:
        raise _no_logits(config)


def _check_lossless(config: RunConfig, verifier: Verifier) -> None:
    """Refuse parts that do not claim to leave the target's law as it is; that they do at some temperature is no claim.

    Raises:
        UsageError: the first part that makes no such claim.
    """
    for claims, key, instead in (
        (verifier.capabilities.lossless, f"verifier={config.verifier['name']}", "verifier=speculative_sampling"),
        (
            drafters.get(config.drafter["name"]).capabilities.lossless,
            f"drafter={config.drafter['name']}",
            "another drafter",
        ),
        (not config.drafter.get("forced", False), "drafter.forced=true", "drafter.forced=false"),
    ):
        if not claims:
            raise UsageError(
                f"Bad value {key}: it does not claim to be lossless as configured, and measurement.lossless=true asks "
                f"for that; use {instead}, or measurement.lossless=false."
            )


def open_parts(config: RunConfig) -> Parts:
    """Check everything that can be wrong before decoding: the store, then every part; return the parts.

    Raises:
        UsageError: the first thing that is wrong.
    """
    tracking.check_store(config.tracking, Path.cwd())
    if config.measurement.threads is not None:
        torch.set_num_threads(config.measurement.threads)
    return build(config)


def prepare(parts: Parts, longest: Prompt, measurement: MeasurementConfig, grid_sizes: Sequence[int] = ()) -> None:
    """Have target and drafter compile, where they do, for all that is to be timed.

    Raises:
        UsageError: no memory for the key-value cache, or for a call on a full draft.
    """
    target, arms = parts.target, parts.speculative
    for arm in arms:
        target.check_draft(arm.structure)
    length = len(longest.tokens) + measurement.limit
    if any(prompt.follow_ups for prompt in parts.prompts.prompts):
        length = target.context_length  # how long the later turns will be is not known yet
    capacity = length + max(target.room(arm.structure.tree) for arm in arms)
    branches = max(arm.structure.branches for arm in arms)
    target.check_memory(len(longest.tokens), capacity, branches)
    if parts.original is not None:
        original = parts.original.target
        plain = length + original.room(parts.original.structure.tree)
        original.check_memory(len(longest.tokens), plain)
        original.prepare({1}, plain)
    sizes = {1}
    # A pass made for one number of tokens serves neither batches nor drafts whose nodes are merged.
    for primary in (each.primary.structure for each in parts.drafters):
        captured = target.compilation == "inductor" and target.device.type == "cuda"
        packed = target.evaluation == "packed" and (primary.fixed or not captured)
        if primary.branches == 1 or packed:
            sizes.add(primary.nodes + 1)
    if target.compilation == "inductor":
        sizes |= set(grid_sizes)
    deepest = max(measurement.cost_contexts) + max(grid_sizes) + 1 if grid_sizes else 0
    target.prepare(sizes, max(capacity, min(deepest, target.context_length)), branches)
    for each in parts.drafters:
        most = max(arm.structure.nodes for arm in each.arms)
        each.primary.drafter.prepare(length + most + 1, each.primary.structure)

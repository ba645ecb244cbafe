"""The parts of a plan, opened: models, prompts in tokens, and what only these tell."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import torch

from specdec.config import BASELINE, NULL, ORIGINAL
from specdec.drafters import Drafter, drafters
from specdec.drafters.none import NoDrafter
from specdec.models.load import model_path
from specdec.models.model_files import is_gguf
from specdec.plan.plan import Plan, PlannedDrafter
from specdec.plan.rules import about_drafter, check
from specdec.progress import Stage, stage
from specdec.prompts import Prompt, PromptSet, load_prompts
from specdec.sampling import SamplingConfig
from specdec.session.arm import Arm
from specdec.session.recorded_walk import walks
from specdec.targets import Target, targets
from specdec.targets.causal import Causal
from specdec.targets.replay import Replay
from specdec.text.repetition import loop_share
from specdec.timing.simulated import priced
from specdec.tracking.store import locate
from specdec.tracking.writer import check_store

_BYTES_A_SECOND = 3e8  # of weights that are read, converted and hashed
_GGUF_BYTES_A_SECOND = 2e7  # of blocks of weights that are dequantised, too
SAMPLED_EVERY = 2  # of the prompts of a run, in their order: a line on all would add half to the time of a prompt
CONTROL_SHARE = 0.1  # of the decoding that `measurement.null=auto` gives to decoding plainly once more


@dataclass(frozen=True)
class DrafterArms:
    """One drafter of a session with its arms, which differ in gamma."""

    planned: PlannedDrafter
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
class SampledPair:
    """A line at a temperature beside a greedy run: the primary structure and plain decoding, both sampling, on every
    second prompt.

    Greedy text repeats itself, which flatters drafters that copy; a sampled one shows how much. Drafts stay those of
    greedy decoding, the drafter's most probable tokens, and the rule keeps the target's own law whatever was drafted.
    """

    sampling: SamplingConfig
    arms: tuple[Arm, Arm]  # plain decoding, then the drafter, on the target of the run


@dataclass(frozen=True)
class Parts:
    """A plan with its models and prompts opened, and found compatible."""

    plan: Plan
    target: Target
    limit: int  # the most tokens of an output
    chosen: DrafterArms  # the drafter of `+drafter=`; `primary` is its own
    baseline: Arm
    prompts: PromptSet
    beside: tuple[DrafterArms, ...] = ()  # the drafters of `measurement.drafters`
    sampled: SampledPair | None = None  # a line at a temperature beside a greedy run
    original: Arm | None = None  # plain decoding with the model that the target was before it was trained
    null: Arm | None = None  # plain decoding by the target once more, as a control on every `control_every`-th prompt
    control_every: int = 1
    walks: bool = False  # the target's text is recorded and drafts are looked up: all arms decode in one walk

    @property
    def primary(self) -> Arm:
        return self.chosen.primary

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
    def arms(self) -> tuple[Arm, ...]:
        """All methods of a prompt, plain decoding first."""
        return *self.plain, *self.speculative

    @property
    def judge(self) -> Target | None:
        """The model under whose law outputs are judged; None where they are the target's own by the rules."""
        if self.original is not None:
            return self.original.target
        lossless = all(each.primary.verifier.capabilities.lossless for each in self.drafters)
        return None if lossless or self.plan.forced else self.target

    @cached_property
    def longest_prompt(self) -> Prompt:
        return max(self.prompts.prompts, key=lambda prompt: len(prompt.tokens))

    @property
    def turns(self) -> int:
        """The number of prompts that a run decodes: each counts once for each turn and repeat."""
        turns = sum(1 + len(prompt.follow_ups) for prompt in self.prompts.prompts)
        return turns * self.plan.measurement.repeats

    def read(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """Return an output in words, and True if it falls into a loop."""
        tokenizer, measurement = self.target.tokenizer, self.plan.measurement
        flagged = loop_share(tokens, measurement.repetition_period) >= measurement.repetition_share
        return "" if tokenizer is None else tokenizer.decode(tokens), flagged

    @property
    def workers(self) -> int:
        """The number of processes that decode the run: as many as asked for, and no more than there are prompts."""
        return min(self.plan.measurement.workers or 1, len(self.prompts.prompts))


def loading(plan: Plan) -> AbstractContextManager[Stage]:
    """Return the stage in which the models of a plan are read, and what its drafters need is made."""
    target, drafter = plan.target_values.get("model"), plan.chosen.values.drafter.get("model")
    if drafter == "pocket" and target not in (None, "pocket"):
        drafter = None  # heads that come along for that target
    names = dict.fromkeys(str(model) for model in (target, drafter, plan.measurement.original) if model)
    folders = [Path(model_path(name)) for name in names]
    weights = sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors"))
    packed = sum(file.stat().st_size for file in folders if is_gguf(str(file)) and file.is_file())
    expected = weights / _BYTES_A_SECOND + packed / _GGUF_BYTES_A_SECOND
    about = " and ".join(names) or "parts and prompts"
    # A download from the hub draws a bar of its own.
    return stage("Load", about, bar=all(map(Path.exists, folders)), expected=expected or None)


def open_tracked(plan: Plan) -> Parts:
    """Open the parts of a run that is tracked. A store that is there is looked at before models are loaded; a new one
    is made afterwards, so that a refusal (UsageError: the first thing that is wrong with either) leaves none.
    """
    here = Path.cwd()
    database = locate(plan.tracking.uri, here).database if plan.tracking.enabled else None
    if database is None or database.is_file():
        check_store(plan.tracking, here)
        return open_parts(plan)
    parts = open_parts(plan)
    check_store(plan.tracking, here)
    return parts


def open_parts(plan: Plan, threads: int | None = None) -> Parts:
    """Load the models of a plan, and make its prompts and arms; torch computes on `threads` in place of
    `measurement.threads`. UsageError for the first thing that is wrong.
    """
    measurement = plan.measurement
    threads = threads or measurement.threads
    if threads is not None:
        torch.set_num_threads(threads)
    target = targets.construct(plan.target, sampling=plan.sampling)
    original = None
    if measurement.original is not None:  # it is run exactly as the target; a checkpoint's own dtype may be another
        assert isinstance(target, Causal)  # checked before anything was loaded
        own = {"model": measurement.original, "dtype": str(target.model.dtype).removeprefix("torch.")}
        values = {**plan.target_values, **own, "shape": None, "revision": None}
        original = targets.build(values, sampling=target.sampling)
    simulated = target.clock() is not None
    facts = {"recorded": isinstance(target, Replay), "simulated": simulated, "opened": target, "original": original}
    check("parts", plan.case(**facts))
    limit = measurement.max_new_tokens
    if limit is None:
        assert isinstance(target, Replay)  # no other target knows where its texts end
        limit = target.longest
    prompts = load_prompts(
        plan.prompts,
        tokenizer=target.tokenizer,
        context_length=target.context_length,
        max_new_tokens=limit,
        vocab_size=target.vocab_size,
    )
    # Decoding takes about as long as so many calls on one token: half as many with drafts as without.
    methods = 1 + sum(len({*measurement.gammas, each.structure.gamma}) for each in plan.drafters) / 2
    calls = len(prompts.prompts) * limit * measurement.repeats * methods
    target.choose_compilation(calls, plan.budget_seconds)
    if measurement.batch_size > 1:
        target.compilation = None  # batches are decoded eagerly; drafters follow the target
    later_turns = any(prompt.follow_ups for prompt in prompts.prompts)
    check("prompts", plan.case(later_turns=later_turns, prompts=prompts.name))
    made = []
    for planned in plan.drafters:
        with about_drafter(planned.method, planned is not plan.chosen):
            made.append(_drafter_arms(plan, planned, target))
    chosen = made[0].primary
    baseline = replace(chosen, method=BASELINE, drafter=NoDrafter(), structure=chosen.structure.resized(0))
    walked = all(walks(target, each.drafter) for each in made)
    auto = measurement.null == "auto"
    control = not simulated if auto else measurement.null
    sampled = None if walked else _sampled_pair(plan, baseline, chosen)
    arms = tuple(arm for each in made for arm in each.arms)
    return Parts(
        plan=plan,
        target=target,
        limit=limit,
        chosen=made[0],
        baseline=baseline,
        prompts=prompts,
        beside=tuple(made[1:]),
        sampled=sampled,
        original=None if original is None else replace(baseline, method=ORIGINAL, target=original),
        null=replace(baseline, method=NULL) if control else None,
        control_every=_control_every(arms, original is not None, sampled) if auto else 1,
        walks=walked,
    )


def _sampled_pair(plan: Plan, baseline: Arm, primary: Arm) -> SampledPair | None:
    """Return the pair of a run; None where `measurement.sampled_temperature` is null, the run is not greedy, or its
    parts do not decode with sampling one text at a time and without loss.
    """
    temperature, target = plan.measurement.sampled_temperature, baseline.target
    can, rule = plan.chosen.drafter_class.capabilities, plan.chosen.rule
    fits = (
        target.sampling.greedy
        and not target.capabilities.recorded
        and plan.measurement.batch_size == 1
        and plan.chosen.method != "none"
        and not plan.forced
        and can.lossless
        and not can.needs_reference
        and rule.capabilities.lossless
        and not rule.capabilities.greedy_only
    )
    if temperature is None or not fits:
        return None
    sampling = replace(target.sampling, name="temperature", temperature=temperature)
    return SampledPair(sampling, (replace(baseline, verifier=rule), replace(primary, verifier=rule)))


def _control_every(arms: Sequence[Arm], original: bool, sampled: SampledPair | None) -> int:
    """Return on every how many prompts a control takes at most `CONTROL_SHARE` of the decoding, were every draft token
    accepted and a call on a draft no slower than one on one token: what is decoded is fixed before anything is timed.
    """
    others = 1 + original + sum(1 / (arm.gamma + 1) for arm in arms)  # calls for a token, at the fewest
    if sampled is not None:
        others += sum(1 / (arm.gamma + 1) for arm in sampled.arms) / SAMPLED_EVERY
    return ceil((1 - CONTROL_SHARE) / (CONTROL_SHARE * others))


def _drafter_arms(plan: Plan, planned: PlannedDrafter, target: Target) -> DrafterArms:
    """Construct a drafter, and its arms at all gammas that it drafts."""
    structure, wanted = planned.structure, plan.measurement.gammas
    # One drafter serves every gamma: arms never decode at the same time.
    drafter = drafters.construct(planned.config, target=target)
    can = drafter.capabilities
    deepest = can.deepest or max(structure.gamma, *wanted, 0)
    facts = {"can": can, "vocab_size": target.vocab_size, "fills": ", ".join(sorted(can.fills))}
    check("made", plan.case(planned, shape=structure.name, gamma=structure.gamma, deepest=deepest, **facts))
    gammas = sorted({*wanted, structure.gamma})
    sized = {gamma: structure if gamma == structure.gamma else structure.resized(gamma) for gamma in gammas}
    arms = {
        gamma: Arm(planned.method, target, priced(drafter, target), shape, planned.verifier)
        for gamma, shape in sized.items()
        if gamma <= deepest and shape.gamma == gamma  # a tree that was given has no deeper levels
    }
    size = plan.measurement.batch_size
    label = plan.model if planned.method == "none" else f"{planned.method} on {plan.model}"
    return DrafterArms(
        planned=planned,
        drafter=drafter,
        arms=tuple(arms.values()),
        primary=arms[structure.gamma],
        label=label + f", batch {size}" * (size > 1),
        left_out=tuple(gamma for gamma in gammas if gamma not in arms),
    )


def prepare(parts: Parts, longest: Prompt | None = None, grid_sizes: Sequence[int] = ()) -> None:
    """Have target and drafter compile, where they do, for all that is to be timed, up to the `longest` prompt that will
    be decoded (None for that of the parts), and for calls of the sizes that a cost model is made of. Raises UsageError:
    no memory for the key-value cache, or for a call on a full draft.
    """
    target, arms, contexts = parts.target, parts.speculative, parts.plan.measurement.cost_contexts
    for arm in arms:
        target.check_draft(arm.structure)
    prompt = len((longest or parts.longest_prompt).tokens)
    length = prompt + parts.limit
    if any(each.follow_ups for each in parts.prompts.prompts):
        length = target.context_length  # how long the later turns will be is not known yet
    capacity = length + max(target.room(arm.structure.tree) for arm in arms)
    branches = max(arm.structure.branches for arm in arms)
    target.check_memory(prompt, capacity, branches)
    if parts.original is not None:
        original = parts.original.target
        plain = length + original.room(parts.original.structure.tree)
        original.check_memory(prompt, plain)
        original.prepare({1}, plain)
    sizes = {1}
    # A pass made for one number of tokens serves neither batches nor drafts whose nodes are merged.
    captured = target.compilation == "inductor" and target.device.type == "cuda"
    for primary in (each.primary.structure for each in parts.drafters):
        packed = target.evaluation == "packed" and (primary.fixed or not captured)
        if primary.branches == 1 or packed:
            sizes.add(primary.nodes + 1)
    if target.compilation == "inductor":
        sizes |= set(grid_sizes)
    deepest = max(contexts) + max(grid_sizes) + 1 if grid_sizes else 0
    target.prepare(sizes, max(capacity, min(deepest, target.context_length)), branches)
    for each in parts.drafters:
        most = max(arm.structure.nodes for arm in each.arms)
        each.primary.drafter.prepare(length + most + 1, each.primary.structure)

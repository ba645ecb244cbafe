"""From the configuration of a command to its plan: every value resolved, every refusal made that needs no model."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from specdec.config import DrafterSettings, MeasurementConfig, RunConfig, TrackingConfig, validated
from specdec.drafters import Drafter, drafters
from specdec.errors import UsageError
from specdec.models.load import model_path
from specdec.models.model_files import check_tokenizer
from specdec.peers import engines
from specdec.plan.compositions import composed_config, composed_parts
from specdec.plan.rules import Case, Command, about_drafter, check
from specdec.prompts.base.loading import PromptEntries, read_prompts
from specdec.sampling import SamplingConfig
from specdec.structures import Structure, structures
from specdec.targets import targets
from specdec.text.streams import Recording
from specdec.tracking.writer import PARENT_RUN
from specdec.verifiers import Verifier, verifiers

FIRST_LOOK_S = 90.0  # budget of the command in the README: with its start and its report it then takes two minutes
EXAMPLE_S = 300.0  # likewise of its second one, on a real model, which cannot be compiled everywhere
_EXAMPLE = "smollm2"  # its `target.model`


@dataclass(frozen=True)
class PlannedDrafter:
    """A validated drafter with its structure and acceptance rule; no model is loaded yet."""

    method: str  # its name in every table
    # plain values of `drafter`, `structure` and `verifier`, as a command line with this drafter alone has them
    values: DrafterSettings
    config: Any  # the typed configuration of the drafter
    structure: Structure
    rule: Verifier  # as configured
    verifier: Verifier  # the rule's form for the run's temperature

    @property
    def drafter_class(self) -> type[Drafter]:
        return drafters.get(self.values.drafter["name"])


@dataclass(frozen=True)
class Plan:
    """Everything that a command does, as far as its configuration, the headers of models and the prompt files tell."""

    command: Command  # whose rules apply
    config: Mapping[str, Any]  # the resolved configuration as plain values: what `config.yaml` holds
    target: Any  # the typed configuration of the target; `target_values` are its plain ones
    target_values: Mapping[str, Any]
    drafters: tuple[PlannedDrafter, ...]  # that of `+drafter=` first, then those of `measurement.drafters`
    prompts: PromptEntries  # read and not yet in tokens
    sampling: SamplingConfig
    measurement: MeasurementConfig
    budget_seconds: float | None  # until the last prompt is decoded; None without a bound
    study: Mapping[str, Any] | None  # values of `study`, or None for a run without one
    tracking: TrackingConfig
    seed: int
    resume: str
    advice_dir: str

    @property
    def chosen(self) -> PlannedDrafter:
        """The drafter of `+drafter=`."""
        return self.drafters[0]

    @property
    def forced(self) -> bool:
        """True if the recorded text replaces the target's decisions (`drafter.forced`)."""
        return bool(self.chosen.values.drafter.get("forced", False))

    @property
    def model(self) -> str:
        """The target's model, or its kind where it has none."""
        return str(self.target_values.get("model", self.target_values["name"]))

    def case(self, drafter: PlannedDrafter | None = None, /, **facts: Any) -> Case:
        """Return what the rules read: of the run, of one of its drafters (the chosen one by default), and `facts`."""
        return Case(
            command=self.command,
            m=self.measurement,
            target=self.target_values,
            target_can=targets.get(self.target_values["name"]).capabilities,
            sampling=self.sampling,
            **vars((drafter or self.chosen).values),
            **facts,
        )


def plan(config: RunConfig, command: Command = "run") -> Plan:
    """Resolve the configuration of a command and read its prompts; no model is loaded, nothing is written. A run with a
    study is planned as that. UsageError for a fault.
    """
    who = f"specdec.{command}"
    if command == "run" and config.study is not None:
        command, who = "study", f"study {str(config.study['name'])!r}"
    measurement, name = config.measurement, str(config.drafter["name"])
    others = [other for other in dict.fromkeys(measurement.drafters) if other != name]
    sampling = validated(SamplingConfig, config.sampling, where="sampling")
    settings = measurement.drafter_settings if command == "run" else {}
    processes = config.target.get("tensor_parallel", 1)
    stray = next((each for each in settings if each not in others), None)
    case = Case(
        command=command, who=who, m=measurement, sampling=sampling, study=config.study, target=config.target,
        drafter=config.drafter, beside=others, drafters=",".join(measurement.drafters),
        processes=processes if isinstance(processes, int) else 1,  # else refused with the target's own keys
        stray=stray, place_of_stray="use drafter.*, structure.* and verifier.*" if stray == name else "add it there",
    )  # fmt: skip
    check("configuration", case)
    chosen = DrafterSettings(drafter=config.drafter, structure=config.structure, verifier=config.verifier)
    values = {name: chosen, **{other: _beside(other, settings.get(other, DrafterSettings())) for other in others}}
    values = {each: own for each, own in values.items() if each == name or own != chosen}  # a YAML of another name
    case.beside, case.forced = [*values][1:], any(own.drafter.get("forced", False) for own in values.values())
    if command == "run":
        settings = {other: own for other, own in values.items() if other != name}
        config = replace(config, measurement=replace(measurement, drafter_settings=settings))
    target = targets.config(config.target)
    if isinstance(target, Recording):
        target.require_path("target")  # the prompts' path is the same one, and not what is to be given
    for engine in measurement.peers:
        engines.get(engine)
    case.target_can = targets.get(config.target["name"]).capabilities
    planned = []
    for method, own in values.items():
        with about_drafter(method, method != name):
            drafter, structure = drafters.config(own.drafter), structures.config(own.structure)
            rule = verifiers.build(own.verifier)
            can, greedy_rule = drafters.get(own.drafter["name"]).capabilities, rule.for_greedy()
            vars(case).update(
                vars(own), can=can, rule=rule.capabilities, greedy_rule=greedy_rule.capabilities,
                shape=structures.get(own.structure["name"]).name, fills=", ".join(sorted(can.fills)),
                handles=", ".join(sorted(rule.capabilities.handles)),
                evaluates=", ".join(sorted(case.target_can.structures)),
            )  # fmt: skip
            check("drafter", case)
            verifier = greedy_rule if sampling.greedy else rule
            planned.append(PlannedDrafter(method, own, drafter, structures.construct(structure), rule, verifier))
    entries = read_prompts(config.prompts)
    if config.target.get("model") and any(entry.turns for entry in entries.content.entries):
        check_tokenizer(model_path(str(config.target["model"])))
    return Plan(
        command=command,
        config=asdict(config),
        target=target,
        target_values=config.target,
        drafters=tuple(planned),
        prompts=entries,
        sampling=sampling,
        measurement=config.measurement,
        budget_seconds=_budget(config),
        study=config.study,
        tracking=config.tracking,
        seed=config.seed,
        resume=config.resume,
        advice_dir=config.advice_dir,
    )


def _beside(name: str, settings: DrafterSettings) -> DrafterSettings:
    """Return the values of a drafter of `measurement.drafters`: those that `specdec.run +drafter=NAME` composes, with
    `settings` in place of single ones. A structure or rule of another name brings the values of its own YAML. Settings
    that name every value stay, even where the YAMLs have changed since: a run's `config.yaml` runs it again.
    """
    from hydra.errors import HydraException

    changes = asdict(settings)
    # A name may be that of a YAML with some values changed, so what it composes to has the last word on it.
    named = [f"{part}={changes[part].pop('name')}" for part in ("structure", "verifier") if "name" in changes[part]]
    try:
        return validated(DrafterSettings, composed_parts(name, *named, changes=changes))
    except HydraException as error:
        drafters.get(name)  # says which names there are
        raise UsageError(f"Bad value measurement.drafters={name}: {str(error).splitlines()[0]}.") from None


def _budget(config: RunConfig) -> float | None:
    """Return the seconds that a run may take until its last prompt is decoded; None without a bound.

    `auto` is a bound on the two commands of the README alone, the first looks of somebody who waits for them: on the
    default target and prompts, or on the example of a real model, by the default measurement, with any drafter. Whoever
    sets another value of these has work of their own, which is not cut short unasked, and so have the cells of a sweep
    and the files of `conf/experiment`.
    """
    asked = config.measurement.budget_seconds
    if asked != "auto":
        return asked
    if config.experiment_name is not None or config.study is not None or os.environ.get(PARENT_RUN):
        return None
    from omegaconf import OmegaConf

    composed, values = _without_arguments(), asdict(config)
    usual = {
        group: values[group] == OmegaConf.to_container(composed[group], resolve=True)
        for group in ("target", "prompts", "measurement")
    }
    if all(usual.values()):
        return FIRST_LOOK_S
    return EXAMPLE_S if usual["measurement"] and values["target"].get("model") == _EXAMPLE else None


_without_arguments = cache(composed_config)  # it takes longer than all else that happens before the parts are loaded

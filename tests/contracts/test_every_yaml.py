"""Every YAML of the run groups composes with Hydra and passes the strict validation."""

from functools import cache, partial
from pathlib import Path

import pytest
from fixtures.small_parts import composed_values
from hydra.errors import HydraException
from omegaconf import OmegaConf

from specdec.config import RunConfig, config_dir, flattened, validated
from specdec.drafters.base import drafters
from specdec.prompts import prompts
from specdec.sampling import SamplingConfig
from specdec.structures.base import structures
from specdec.targets.base import targets
from specdec.training.recipes import RECIPES
from specdec.verifiers.base import verifiers

CONF = Path(config_dir())
FAMILIES = {"target": targets, "drafter": drafters, "verifier": verifiers, "structure": structures, "prompts": prompts}
composed = partial(composed_values, whole=True)


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def check(values) -> RunConfig:
    """What a run checks before it decodes anything."""
    config = validated(RunConfig, values)
    for group, family in FAMILIES.items():
        family.config(getattr(config, group))
    validated(SamplingConfig, config.sampling, where="sampling")
    return config


def is_variant(group, name):
    """Whether a YAML is another of its group with some values changed: target=random_110m is a causal."""
    return any(base in names(group) for base in OmegaConf.load(CONF / group / f"{name}.yaml").get("defaults", ()))


def with_file(group, name):
    """Return the values of a run in which a file is chosen. One that names no other goes where Hydra would put it."""
    file = OmegaConf.load(CONF / group / f"{name}.yaml")
    if "defaults" in file:
        return composed(f"+drafter={name}") if group == "drafter" else composed("+drafter=ngram", f"{group}={name}")
    values = OmegaConf.create({**composed("+drafter=ngram"), group: file})
    return OmegaConf.to_container(values, resolve=True, throw_on_missing=True)


@pytest.mark.parametrize("group", [*FAMILIES, "sampling", "measurement", "tracking"])
def test_every_yaml_composes_and_validates(group):
    for name in names(group):
        values = with_file(group, name)
        config = check(values)
        if group in FAMILIES:
            if not is_variant(group, name):
                assert values[group]["name"] == name, "the file, the registry name and the YAML's name are one word"
            assert values[group]["name"] in FAMILIES[group].all_names()
        if group == "drafter":
            structure = structures.build(config.structure).name
            assert structure in drafters.get(config.drafter["name"]).capabilities.fills, name


# Command lines behind +drafter=, and the drafters that are parts of the one so composed, by their places.
PARTS = {
    "adaptive": {"of": "small_model"},
    "adaptive drafter@drafter.of=ngram drafter.rule=heuristic": {"of": "ngram"},
    "staged drafter@drafter.by=bigram drafter.structure.gamma=2": {"of": "small_model", "by": "bigram"},
    "staged drafter@drafter.by=staged drafter.by.of.model=x": {"of": "small_model", "by": "staged"},
    "cascade +drafter@drafter.of.heads=medusa structure=chain": {"of.context": "ngram", "of.heads": "medusa"},
    "cascade drafter@drafter.of.model=staged ~drafter@drafter.of.context": {"of.model": "staged", "of.context": None},
    "mixed drafter@drafter.bigram=model_unigram structure=chain": {"context": "ngram", "bigram": "model_unigram"},
}


@pytest.mark.parametrize("line", PARTS)
def test_parts_of_a_drafter_are_chosen_on_the_command_line(line):
    config = check(composed(*f"+drafter={line}".split()))
    parts = flattened(config.drafter)
    assert {place: parts.get(f"{place}.name") for place in PARTS[line]} == PARTS[line]


@pytest.mark.parametrize("group", ["debug", "experiment"])
def test_every_overlay_composes_and_validates(group):
    for name in names(group):
        text = (CONF / group / f"{name}.yaml").read_text()
        # An overlay that compares drafters names them itself, in its defaults or in its sweep.
        overrides = [] if "drafter" in text else ["+drafter=ngram"]
        try:
            values = composed(f"+{group}={name}", *overrides)
        except HydraException:
            values = composed(f"+{group}={name}")
        if "drafter" in values:
            check(values)


@cache
def recipe_values(kind, name):
    """Return the values of a training. A recipe that changes keys of another is merged with it here, as by Hydra."""
    changes = OmegaConf.load(CONF / kind / f"{name}.yaml")
    first, *others = changes.pop("defaults")
    if others != ["_self_"] or not str(first).startswith(f"/{kind}/"):
        return composed_values(f"+{kind}={name}", root="train")
    return OmegaConf.to_container(OmegaConf.merge(recipe_values(kind, first.removeprefix(f"/{kind}/")), changes))


@pytest.mark.parametrize("kind", RECIPES)
def test_every_recipe_composes_and_validates(kind):
    for path in (CONF / kind).rglob("*.yaml"):
        name = path.relative_to(CONF / kind).with_suffix("").as_posix()
        recipe = validated(RECIPES[kind], recipe_values(kind, name))
        assert getattr(recipe, kind).name == name

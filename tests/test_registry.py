"""Names to classes, near misses, and the one strict validation pass: each fault is one sentence with key and
value.
"""

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from specdec.config import typed, validated
from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.registry import Registry
from specdec.sampling import SamplingConfig
from specdec.structures.base import structures
from specdec.targets.base import targets
from specdec.verifiers.base import verifiers


@typed
class ThingConfig:
    name: str
    size: int


class Thing:
    def __init__(self, config: ThingConfig, colour: str = "red") -> None:
        self.config, self.colour = config, colour


class OtherThing(Thing):
    pass


@pytest.fixture
def things(monkeypatch):
    """A family of its own, in an empty package `specdec.things`."""
    package = ModuleType("specdec.things")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "specdec.things", package)
    registry: Registry[Any] = Registry("things", "thing")
    registry.register("small_thing")(Thing)
    registry.register("large_thing")(OtherThing)
    return registry


def sentence_of(call, *arguments, **named) -> str:
    with pytest.raises(UsageError) as raised:
        call(*arguments, **named)
    sentence = str(raised.value)
    assert raised.value.exit_code == 2
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


def test_build_gives_the_class_its_typed_config(things):
    thing = things.build({"name": "small_thing", "size": 3}, colour="blue")
    assert type(thing) is Thing and thing.config == ThingConfig(name="small_thing", size=3) and thing.colour == "blue"


def test_a_typed_class_is_its_own_config(things):
    things.register("typed_thing")(ThingConfig)
    assert things.build({"name": "typed_thing", "size": 3}) == ThingConfig(name="typed_thing", size=3)
    assert "thing.size='x'" in sentence_of(things.build, {"name": "typed_thing", "size": "x"})


def test_an_unknown_name_is_answered_with_near_misses_and_the_list(things):
    assert sentence_of(things.get, "smal_thing") == (
        "Unknown thing 'smal_thing'. Did you mean small_thing? The things are: large_thing, small_thing."
    )
    assert "Did you mean small_thing or large_thing?" in sentence_of(things.get, "_thing")
    assert sentence_of(things.get, "xyz") == "Unknown thing 'xyz'. The things are: large_thing, small_thing."


@pytest.mark.parametrize("name", [None, 3, True, ["ngram"], {"ngram": 1}])
def test_a_name_that_is_no_text_is_a_usage_error(name):
    assert "drafter" in sentence_of(drafters.build, {"name": name}, target=None)


def test_a_missing_name_lists_the_choices():
    assert sentence_of(verifiers.build, {}) == (
        f"Missing key verifier.name: it selects one of {', '.join(verifiers.names())}."
    )


def test_names_of_settings_lead_to_the_class(things):
    """A setting of a class that has a YAML of its own is no class more, and is offered like one."""

    class Sized(Thing):
        def __init__(self, config: ThingConfig) -> None:
            self.config = config

    things.register("sized_thing", "tiny_thing", "huge_thing")(Sized)
    assert things.get("tiny_thing") is Sized and things.names() == ["large_thing", "sized_thing", "small_thing"]
    assert things.build({"name": "huge_thing", "size": 9}).config.name == "huge_thing"
    assert "Did you mean tiny_thing?" in sentence_of(things.get, "tiny_thin")
    with pytest.raises(ValueError, match="things already has 'tiny_thing'"):
        things.register("other_thing", "tiny_thing")(OtherThing)


def test_a_name_is_taken_once(things):
    with pytest.raises(ValueError, match="things already has 'small_thing'"):
        things.register("small_thing")(OtherThing)
    things.register("small_thing")(Thing)  # the same class again, as when a module is reloaded
    assert things.names() == ["large_thing", "small_thing"]


def test_a_config_named_by_text_is_found(things):
    """A package that writes `from __future__ import annotations` has its annotations as text."""

    class Foreign:
        def __init__(self, config: "ThingConfig", target: "NowhereToBeFound") -> None:  # noqa: F821
            self.config = config

    things.register("foreign_thing")(Foreign)
    assert things.build({"name": "foreign_thing", "size": 1}, target=None).config.size == 1


# The strict pass.

GREEDY = {"name": "greedy", "temperature": 0.0, "top_k": None, "top_p": None, "min_p": None, "typical_p": None}
NGRAM = {"name": "ngram", "q": "auto", "order_max": 4, "order_min": 1, "matches_max": 32, "occurrence": "common"}
NAN = float("nan")


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("temperature", -1.0, "greater than or equal to 0"),
        ("temperature", NAN, "finite number"),
        ("top_k", 0, "equal to 1"),
        ("top_k", "4", "valid integer"),
        ("top_k", 4.0, "valid integer"),
        ("top_k", NAN, "valid integer"),
        ("top_k", True, "valid integer"),
        ("top_p", 1.5, "less than or equal to 1"),
        ("min_p", NAN, "finite number"),
        ("typical_p", 1.5, "less than or equal to 1"),
        ("temperature", None, "valid number"),
    ],
)
def test_a_bad_value_is_named_with_its_key(key, value, part):
    assert validated(SamplingConfig, GREEDY | {"temperature": 1}).temperature == 1.0, "whole numbers do for real ones"
    sentence = sentence_of(validated, SamplingConfig, GREEDY | {key: value}, where="sampling")
    assert sentence.startswith(f"Bad value sampling.{key}={value!r}: it should be") and part in sentence


def test_an_unknown_key_is_answered_with_the_keys_of_what_was_chosen():
    assert sentence_of(structures.build, {"name": "chain", "gamma": 4, "w": 3}) == (
        "Unknown key structure.w: structure 'chain' has the keys gamma."
    )
    assert sentence_of(verifiers.build, {"name": "greedy", "epsilon": 3}) == (
        "Unknown key verifier.epsilon: verifier 'greedy' has the keys (none)."
    )


def test_a_missing_key_is_named():
    values = {key: value for key, value in NGRAM.items() if key != "order_max"}
    sentence = sentence_of(drafters.build, values, target=None)
    assert sentence == "Missing key drafter.order_max: drafter 'ngram' needs a value for it."


@pytest.mark.parametrize(
    "law", [[[1.0]], [[0.5, 0.4], [0.5, 0.5]], [[0.5, 0.5], [1.0]], [[1.5, -0.5], [0.5, 0.5]], [[NAN, 1.0], [0.0, 1.0]]]
)
def test_a_table_needs_a_stochastic_matrix(law, sampling):
    values = {"name": "table", "law": law, "end_token": None, "context_length": 10}
    assert "target.law" in sentence_of(targets.build, values, sampling=sampling())


def test_a_class_without_settings_has_its_name_alone(things):
    @things.register("plain")
    class Plain:
        pass

    assert type(things.build({"name": "plain"}, target=None)) is Plain
    with pytest.raises(UsageError, match="size"):
        things.build({"name": "plain", "size": 2})


def test_a_class_that_does_not_say_what_configures_it_is_named(things):
    @things.register("bare")
    class Bare(Thing):
        pass

    with pytest.raises(TypeError, match="Bare needs a classmethod `from_config`, or a constructor"):
        things.build({"name": "bare"})


@pytest.mark.slow
def test_parts_load_without_what_reads_tables_and_draws_figures():
    """Each takes a good part of the second and of the 100 MB that lie between a start and its first token."""
    script = """
import sys
from specdec.drafters.base import drafters
from specdec.structures.base import structures
from specdec.targets.base import targets
from specdec.verifiers.base import verifiers

assert all(each.all_names() for each in (drafters, structures, targets, verifiers))
print(*{"pandas", "matplotlib", "mlflow", "datasets"} & set(sys.modules))
"""
    asked = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    assert asked.stdout.split() == []

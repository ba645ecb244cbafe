"""Command lines and YAML values that are spoiled at random: a run that can begin, or one sentence with exit code 2."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from faults.answers import answered, spoiled
from specdec.commands.cli import typed_config
from specdec.commands.failures import ending, not_begun
from specdec.config import RunConfig, config_dir
from specdec.plan.plan import plan
from specdec.session.parts import open_parts
from specdec.tracking.store import locate

pytestmark = pytest.mark.slow  # many examples of bad input


SETTINGS = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
CHOICES = (
    ("+drafter=ngram",),
    ("+drafter=oracle", "structure.gamma=2"),
    ("+drafter=suffix", "structure=rows"),
    ("+drafter=ngram", "structure=tree"),
    ("+drafter=recycling", "structure=dynamic", "sampling=temperature"),
)


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_dir(config_dir(), version_base="1.3"):
        yield


def composed(*overrides: str) -> Any:
    return OmegaConf.to_container(compose("config", [*overrides]), resolve=True, throw_on_missing=True)


def begin(values: Any) -> None:
    """Do what a run does with its values before anything is decoded."""
    config = typed_config(RunConfig, values)
    locate(config.tracking.uri, Path.cwd())
    open_parts(plan(config))


@pytest.fixture(scope="module")
def configurations() -> list[Any]:
    return [composed("+debug=tiny", *choice) for choice in CHOICES]


@SETTINGS
@given(data=st.data())
def test_values(configurations: list[Any], data: st.DataObject) -> None:
    values = data.draw(spoiled(data.draw(st.sampled_from(configurations))))
    if isinstance(values, dict):
        answered(lambda: begin(values))


KEYS = st.sampled_from(
    "structure.gamma structure structure.k target target.law drafter drafter.order_max drafter.q seed sampling "
    "sampling.temperature prompts prompts.tokens prompts.limit measurement measurement.gammas measurement.drafters "
    "measurement.drafter_settings tracking tracking.uri tracking.experiment study experiment experiment_name "
    "advice_dir verifier.name nonsense nonsense.x hydra.run.dir x/y @z".split()
)
WORDS = st.one_of(
    st.sampled_from(
        "0 -1 1e400 nan null '' [] [1] {} {a:1} [[],{}] ??? ${seed} ${nope} ${oc.env:NOPE} ${oc.env:HOME} a,b 1,2 "
        "range(1,3) choice(1,2) glob(*) ../../x /etc/passwd chain rows ngram true '\\u202e' \"x {a:[1 (".split()
    ),
    st.text(max_size=8),
    st.integers().map(str),
)
OVERRIDES = st.tuples(st.sampled_from(["", "", "+", "++", "~"]), KEYS, st.sampled_from(["=", "=", ""]), WORDS).map(
    "".join
)


@SETTINGS
@example(overrides=["target=null"])
@example(overrides=["target=[1]"])
@example(overrides=["structure.gamma=99999999999999999999"])
@given(overrides=st.lists(OVERRIDES, min_size=1, max_size=2))
def test_command_lines(overrides: list[str]) -> None:
    begun = False
    try:
        values = composed("+drafter=ngram", "+debug=tiny", *overrides)
        begun = True
        begin(values)
    except Exception as error:
        known = ending(error) or (None if begun else not_begun(error))
        assert known is not None, f"{error!r} would be a traceback"
        sentence, code = known
        assert code == 2 and sentence.strip() and "\n" not in sentence and "Traceback" not in sentence

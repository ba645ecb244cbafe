"""The typed configuration: `RunConfig` mirrors `conf/config.yaml`, and one strict pass checks all of it. Values live in
YAML, types and bounds here and beside each registered class. Imports neither torch nor MLflow.
"""

import json
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import dataclass_transform

from specdec.errors import UsageError

T = TypeVar("T")

BASELINE = "baseline"
NULL = "null"
ORIGINAL = "original"
PLAIN = (BASELINE, NULL, ORIGINAL)
"""Names of the methods without a drafter in every table: plain decoding by the target, once more by the target as a
control, and by the model that it was trained from."""

AtLeastOne = Annotated[int, Field(ge=1)]
NonEmpty = Annotated[str, Field(min_length=1)]


def _below(name: str) -> str:
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or not name.isprintable():
        raise ValueError(f"{name!r} is to name a folder below the one that is written to: use letters, digits, _ and -")
    return name


FolderName = Annotated[str, Field(min_length=1), AfterValidator(_below)]
"""A name that becomes part of a path: it may have folders of its own, and never leaves the one that it is below."""

DraftSize = Annotated[int, Field(ge=1, le=1024)]
"""Tokens of a draft, or of one of its sides; the bound is far above any that a target verifies at once."""
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass_transform(kw_only_default=True, frozen_default=True)
def typed(cls: type[T]) -> type[T]:
    """Make a frozen config dataclass: no extra keys, no coercion (`"abc"` is not an int), no NaN or infinity."""
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return cast(type[T], pydantic_dataclass(frozen=True, kw_only=True, config=strict)(cls))


@typed
class Named:
    """The configuration of a part by the name that its class is registered under; alone, of one without settings."""

    name: str


@typed
class FolderPart:
    """A name of something that is written to a folder of this name; published things may be named by a whole path."""

    name: FolderName


@typed
class DrafterSettings:
    """Values of one drafter of `measurement.drafters` that replace those that its YAMLs give."""

    drafter: dict[str, Any] = field(default_factory=dict)
    structure: dict[str, Any] = field(default_factory=dict)
    verifier: dict[str, Any] = field(default_factory=dict)


@typed
class MeasurementConfig:
    """The amount of decoding and the way it is timed (`conf/measurement/`)."""

    max_new_tokens: AtLeastOne | None  # null: recorded texts are replayed whole
    gammas: list[DraftSize]
    repeats: AtLeastOne
    budget_seconds: Annotated[float, Field(gt=0.0)] | Literal["auto"] | None
    batch_size: AtLeastOne
    warmup_tokens: Annotated[int, Field(ge=0)]
    calibration_calls: AtLeastOne
    cost_rows: Annotated[int, Field(ge=4)]
    cost_dense: AtLeastOne
    cost_contexts: list[AtLeastOne]
    cost_calls: AtLeastOne
    cost_seconds: Annotated[float, Field(gt=0)]
    bootstrap: AtLeastOne
    null: bool | Literal["auto"]
    original: NonEmpty | None
    sampled_temperature: Annotated[float, Field(gt=0.0)] | None
    peers: list[NonEmpty]
    drafters: list[NonEmpty]
    drafter_settings: dict[str, DrafterSettings]
    trace: bool
    traced: AtLeastOne
    record: bool
    lossless: bool
    workers: AtLeastOne | None
    threads: AtLeastOne | None
    quiet: Literal["report", "require"]
    server_slots: Annotated[list[AtLeastOne], Field(min_length=2, max_length=2)] | None
    repetition_period: AtLeastOne
    repetition_share: Probability


@typed
class TrackingConfig:
    """The place where results are logged (`conf/tracking/`)."""

    uri: str | None
    experiment: NonEmpty
    enabled: bool
    required: bool
    run_name: str | None


@typed
class RunConfig:
    """The root of `python -m specdec.run`. Component groups stay mappings here: the registry types them by `name`."""

    target: dict[str, Any]
    drafter: dict[str, Any]
    verifier: dict[str, Any]
    structure: dict[str, Any]
    prompts: dict[str, Any]
    sampling: dict[str, Any]
    study: dict[str, Any] | None
    measurement: MeasurementConfig
    tracking: TrackingConfig
    seed: Annotated[int, Field(ge=0)]
    resume: NonEmpty
    experiment_name: str | None
    advice_dir: NonEmpty


@typed
class AdviceConfig:
    """The text that `specdec.advise` starts from: null decodes it, else a `generations.jsonl`."""

    text: NonEmpty | None


@typed
class AdviseConfig(RunConfig):
    """The root of `python -m specdec.advise`: that of a run, so that both take the same overrides, and `advice`."""

    advice: AdviceConfig


@typed
class CertificateConfig:
    """The draws of a certificate (`conf/certify.yaml`), and how rarely luck alone may fail one."""

    false_alarm: Annotated[float, Field(gt=0.0, le=0.2)]
    rounds: AtLeastOne
    places: AtLeastOne
    redraws: AtLeastOne
    redrafts: AtLeastOne
    outputs: AtLeastOne


@typed
class CertifyConfig(RunConfig):
    """The root of `python -m specdec.certify`: that of a run, for the same overrides, and `certificate`."""

    certificate: CertificateConfig


@typed
class ServerConfig:
    """The server that is audited, and how much it is asked (`conf/certify_server.yaml`)."""

    url: NonEmpty
    model: str | None
    prompts: AtLeastOne
    texts: AtLeastOne
    places: Annotated[int, Field(ge=3, le=64)]
    tolerance: Annotated[float, Field(ge=0.0)]
    timeout_seconds: Annotated[float, Field(gt=0.0)]
    budget_seconds: Annotated[float, Field(gt=0.0)]


@typed
class CertifyServerConfig(CertifyConfig):
    """The root of `python -m specdec.certify --server URL`: that of a certificate, and `server`."""

    server: ServerConfig


def config_dir() -> str:
    """Return the absolute folder of the YAML files: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return str(folder)
    raise UsageError(f"The configuration is missing: looked for conf/config.yaml in and beside {package}.")


def validated(config_type: type[T], values: Mapping[str, Any], where: str = "", source: str = "") -> T:
    """Build `config_type` from plain values. In messages, `where` is the dotted prefix of keys, such as `structure`,
    and `source` names these values if a key is unknown, such as `structure 'chain'`. Raises UsageError: key, value and
    bound of the first fault.
    """
    try:
        # As JSON: strict validation takes mappings for dataclasses only there, and every YAML value has a JSON form.
        return TypeAdapter(config_type).validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        raise UsageError(_sentence(error, config_type, where, source)) from None


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join nested keys by dots, as parameters are named in MLflow."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _sentence(error: ValidationError, config_type: type, where: str, source: str) -> str:
    fault = error.errors()[0]
    key = ".".join(str(part) for part in (*([where] if where else []), *fault["loc"]))
    known = ", ".join(field.name for field in fields(config_type) if field.name != "name")
    subject = source or where or "the configuration"
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"Unknown key {key}: {subject} has the keys {known or '(none)'}."
    if fault["type"] in ("missing", "missing_argument"):
        return f"Missing key {key}: {subject} needs a value for it."
    if fault["type"] == "value_error":  # values that do not fit together; the sentence is that of our own validator
        return f"Bad values in {key or subject}: {fault['ctx']['error']}."
    message = fault["msg"].replace("Input should be", "it should be")
    return f"Bad value {key}={fault['input']!r}: {message}."

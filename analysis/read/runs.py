"""Reads runs, from MLflow or from an output folder, into what analysis takes: parameters, metrics, curves
over gamma, tables. The names are those that runs log (DESIGN 5). Writes nothing, changes no store.

What is missing is a UsageError that names it and says what makes it. MLflow is imported inside functions.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specdec.config import BASELINE, flattened
from specdec.errors import SpecdecError, UsageError
from specdec.registry import near_misses
from specdec.tracking.store import check_schema, locate, quieten, reason, schema_of

from ..intervals import Columns, bootstrap
from ..rounds import GENERATION, check_rounds, drafted, prompt_sums, shared_work

COMMAND = "python -m specdec.run +drafter=ngram"
WRITTEN_BY = {  # what makes an artifact, where a run can lack it
    "rounds.parquet": "every run that decoded at least one prompt",
    "generations.jsonl": "every run that decoded at least one prompt",
    "account.json": "every run that finished",
    "quality.parquet": "every run that finished with a rule that is not lossless or with measurement.original",
    "replay.parquet": "every run that finished with this version of specdec",
    "alpha.parquet": "every run that finished with this version of specdec",
    "summary.json": "every run that finished",
    "calibration.json": "every run that began to decode",
    "cost.json": "every run with a value in measurement.cost_contexts and a target that does arithmetic",
    "environment.json": "every run",
    "trace.html": "every run that finished",
    "peers.json": "every run with measurement.peers=[transformers]",
    "divergences.json": "every greedy run with an output that parted from the baseline's",
    "report.md": "every run that finished",
    "config.yaml": "every run",
}
QUANTITIES = ("tokens_per_round", "speedup")


@dataclass(frozen=True)
class Run:
    """One main run.

    Attributes:
        source: where it was read from, for messages.
        params: the flattened configuration, as text.
        curves: by key (`curve.measured`, `curve.speedup.replay`, ...), value by gamma.
        fetch: path of an artifact by name; UsageError if the run has none.
    """

    name: str
    source: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    curves: Mapping[str, Mapping[int, float]]
    fetch: Callable[[str], Path]

    def rounds(self) -> pd.DataFrame:
        """The rounds table (`analysis.rounds.COLUMNS`), baseline included. UsageError if it contradicts itself."""
        path = self.fetch("rounds.parquet")
        try:
            rounds = pd.read_parquet(path)
        except (ValueError, OSError) as error:  # pyarrow's own are both
            raise UsageError(f"{path} is no Parquet table ({reason(error)}); copy it again, or run again.") from None
        try:
            check_rounds(rounds)
            _check_one_gamma(rounds)
        except ValueError as error:
            raise UsageError(f"{path}: {error}.") from None
        return rounds

    def generations(self) -> pd.DataFrame:
        """One row per generation: key columns, tokens, seconds, flag, token ids, text."""
        path = self.fetch("generations.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines()
        return pd.DataFrame([_parsed(line, path, number) for number, line in enumerate(lines, 1)])

    def replay(self) -> pd.DataFrame:
        """What replays gave (THEORY 4.2): tokens (N) and rounds (V_1) by gamma, kind, prompt and repeat.

        kind: "own", along the arm's own texts, or "baseline", along the baseline's. Empty where the drafter has none.
        """
        return pd.read_parquet(self.fetch("replay.parquet"))

    def alpha_sums(self) -> pd.DataFrame:
        """Sum of min(p, q) (numerator) over the positions with a proposal (denominator), by prompt and repeat.

        Along the baseline's texts. Empty under a lossy verifier, whose alpha is the measured one.
        """
        return pd.read_parquet(self.fetch("alpha.parquet"))

    def quality(self) -> pd.DataFrame:
        """One row per output (`analysis.quality.OUTPUTS`), of a run whose outputs were judged."""
        return pd.read_parquet(self.fetch("quality.parquet"))

    def account(self) -> dict[str, Any]:
        """The gap account of every gamma."""
        return self._json("account.json")

    def summary(self) -> dict[str, Any]:
        """Metrics, curves, the headline figures of every gamma (`arms`), and sentences not to be missed (`notes`)."""
        return self._json("summary.json")

    def calibration(self) -> dict[str, Any]:
        """t(1), t(n) and the drafter's step, in seconds."""
        return self._json("calibration.json")

    def cost(self) -> dict[str, Any]:
        """The machine's rates, the target's matrix products, and the fitted cost of a call."""
        return self._json("cost.json")

    def environment(self) -> dict[str, Any]:
        """Versions, hardware, content hashes."""
        return self._json("environment.json")

    def lines(self, quantity: str = "tokens_per_round") -> dict[str, dict[int, float]]:
        """The models' curves of `tokens_per_round` or `speedup` by model, without the measured one."""
        prefix = _curve_prefix(quantity)
        names = {key: key.removeprefix(prefix) for key in self.curves if key.startswith(prefix)}
        return {name: dict(self.curves[key]) for key, name in names.items() if name != "measured" and "." not in name}

    @property
    def primary_gamma(self) -> int | None:
        """The depth of the primary structure: gamma of a chain, w of rows, the depth of a tree; None if unfinished."""
        for key in ("structure.gamma", "structure.w"):
            value = self.params.get(key, "")
            if value.isdigit():
                return int(value)
        try:
            return int(self.account()["primary_gamma"])
        except UsageError:
            return None

    @property
    def setting(self) -> str:
        """Model, dtype and hardware, as far as the run recorded them: figures that differ here do not compare."""
        try:
            environment = self.environment()
        except UsageError:
            environment = {}
        hardware = (environment.get("gpu") or {}).get("name") or (environment.get("cpu") or {}).get("model")
        dtype = (environment.get("model") or {}).get("dtype")
        model = self.params.get("target.model") or self.params.get("target.name") or "unknown model"
        return f"{model}{f' ({dtype})' if dtype else ''}, {hardware or 'hardware not recorded'}"

    @property
    def title(self) -> str:
        """Drafter and setting."""
        return f"{self.params.get('drafter.name', 'unknown drafter')} on {self.setting}"

    def _json(self, name: str) -> dict[str, Any]:
        path = self.fetch(name)
        return _parsed(path.read_text(encoding="utf-8"), path)


def _check_one_gamma(rounds: pd.DataFrame) -> None:
    """ValueError if a round is there twice: a table put together by hand from several gammas, or from several runs."""
    twice = rounds.duplicated([*GENERATION, "round"])
    if twice.any():
        row = rounds[twice].iloc[0]
        raise ValueError(
            f"round {row['round']} of prompt {row['prompt']!r} stands twice at gamma {row['gamma']}, so rounds of "
            f"several gammas or runs are mixed in the cell {row['cell']!r}: give every gamma its own value in the "
            "column gamma, and every run its own file"
        )


def _curve_prefix(quantity: str) -> str:
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}, got {quantity!r}")
    return "curve.speedup." if quantity == "speedup" else "curve."


def _parsed(text: str, path: Path, line: int | None = None) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        at = error.lineno if line is None else line
        raise UsageError(f"{path}:{at}: not JSON ({error.msg}); the file was cut off or edited.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}:{line or 1}: an object was expected, found a {type(value).__name__}.")
    return value


# MLflow -------------------------------------------------------------------------------------------


def load_runs(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """The main runs of an experiment, newest first, indexed by run id.

    Columns: name, status, start_time, params.*, metrics.*, tags.*, as far as any run has them. UsageError for
    a store or experiment that is not there, or without a main run.
    """
    client, uri = _client(tracking_uri)
    runs = _main_runs(client, uri, experiment)
    rows = [
        {
            "run_id": run.info.run_id,
            "name": run.info.run_name,
            "status": run.info.status,
            "start_time": pd.Timestamp(run.info.start_time, unit="ms", tz="UTC"),
            **{f"params.{key}": value for key, value in run.data.params.items()},
            **{f"metrics.{key}": value for key, value in run.data.metrics.items()},
            **{f"tags.{key}": value for key, value in run.data.tags.items()},
        }
        for run in runs
    ]
    return pd.DataFrame(rows).set_index("run_id")


def latest_run(tracking_uri: str, experiment: str, drafter: str | None = None) -> Run:
    """The newest main run that finished, of `drafter` if given. UsageError if there is none."""
    table = load_runs(tracking_uri, experiment)
    table = table[table["status"] == "FINISHED"]
    if drafter is not None:
        column = table.get("params.drafter.name", pd.Series(index=table.index, dtype=object))
        table = table[column == drafter]
    if table.empty:
        command = f"`python -m specdec.run +drafter={drafter or 'ngram'}`"
        what = "finished run" if drafter is None else f"finished run of drafter {drafter!r}"
        raise UsageError(f"The experiment {experiment!r} has no {what}: {command} makes one.")
    return open_run(tracking_uri, str(table.index[0]))


def study_files(tracking_uri: str, experiment: str, study: str, overlay: str) -> dict[str, Path]:
    """`study.json` and the tables of the newest finished run of a study, by file name.

    UsageError for a store that is not there, or without such a run, which `overlay` would make.
    """
    client, uri = _client(tracking_uri)
    found = _asked(uri, client.get_experiment_by_name, experiment)
    runs = []
    if found is not None:
        runs = _asked(
            uri,
            client.search_runs,
            [found.experiment_id],
            filter_string=f"tags.`specdec.study` = '{study}' and attributes.status = 'FINISHED'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
    if not runs:
        raise UsageError(
            f"The experiment {experiment!r} has no finished study {study!r}: "
            f"`python -m specdec.run +experiment={overlay}` makes one."
        )
    run_id = runs[0].info.run_id
    names = [item.path for item in _asked(uri, client.list_artifacts, run_id)]
    kept = [name for name in names if name == "study.json" or name.endswith(".parquet")]
    return {name: Path(_asked(uri, client.download_artifacts, run_id, name)) for name in kept}


def open_run(tracking_uri: str, run_id: str) -> Run:
    """One run with its curves; artifacts are fetched when asked for. UsageError if the store lacks it."""
    client, uri = _client(tracking_uri)
    run = _asked(uri, client.get_run, run_id)
    keys = [key for key in run.data.metrics if key.startswith("curve.")]
    return Run(
        name=str(run.info.run_name),
        source=f"run {run_id} in {uri}",
        status=run.info.status,
        params=dict(run.data.params),
        metrics={key: value for key, value in run.data.metrics.items() if key not in keys},
        curves={key: _history(client, uri, run_id, key) for key in keys},
        fetch=partial(_download, client, uri, run_id),
    )


def _client(tracking_uri: str) -> tuple[Any, str]:
    """A client that reads, and the address to show. A database that is not there is not made."""
    store = locate(tracking_uri, Path.cwd())
    revision = None if store.database is None else schema_of(store.database)
    if store.database is not None and revision is None:
        raise UsageError(f"There is no MLflow database {store.database}: `{COMMAND}` makes one.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, in a notebook
        check_schema(store, revision)
        quieten()
        from mlflow.tracking import MlflowClient

    return _asked(store.shown, partial(MlflowClient, tracking_uri=store.uri)), store.shown


def _asked(uri: str, question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What MLflow answers, or one sentence for whatever it raises."""
    try:
        return question(*args, **kwargs)
    except SpecdecError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, a missing driver's, the network's
        raise UsageError(f"The tracking store {uri} did not answer: {reason(error)}.") from error


def _main_runs(client: Any, uri: str, experiment: str) -> list[Any]:
    found = _asked(uri, client.get_experiment_by_name, experiment)
    if found is None:
        names = [item.name for item in _asked(uri, client.search_experiments)]
        hint = near_misses(experiment, names)
        raise UsageError(
            f"No experiment {experiment!r} in {uri}.{hint} It has: {', '.join(sorted(names))}. "
            f"`{COMMAND} tracking.experiment={experiment}` makes one."
        )
    if found.lifecycle_stage == "deleted":
        raise UsageError(
            f"The experiment {experiment!r} was deleted: restore it with "
            f"`mlflow experiments restore --experiment-id {found.experiment_id}`."
        )
    runs: list[Any] = []
    token: str | None = None
    while True:
        page = _asked(
            uri,
            client.search_runs,
            [found.experiment_id],
            filter_string="tags.`specdec.role` = 'main'",
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        runs.extend(page)
        token = page.token
        if not token:
            break
    if not runs:
        raise UsageError(
            f"The experiment {experiment!r} in {uri} has no main run: "
            f"`{COMMAND} tracking.experiment={experiment}` makes one."
        )
    return runs


def _history(client: Any, uri: str, run_id: str, key: str) -> dict[int, float]:
    """Value by step; the last one counts if a step was logged twice."""
    points = _asked(uri, client.get_metric_history, run_id, key)
    latest = sorted(points, key=lambda point: (point.step, point.timestamp))
    return {int(point.step): float(point.value) for point in latest}


def _download(client: Any, uri: str, run_id: str, name: str) -> Path:
    present = {item.path for item in _asked(uri, client.list_artifacts, run_id, _folder_of(name))}
    if name not in present:
        raise UsageError(_missing(name, f"Run {run_id} in {uri}"))
    return Path(_asked(uri, client.download_artifacts, run_id, name))


def _folder_of(name: str) -> str | None:
    return name.rpartition("/")[0] or None


def _missing(name: str, owner: str) -> str:
    return f"{owner} has no artifact {name}; {WRITTEN_BY.get(name, 'not every run')} writes it."


# Folders ------------------------------------------------------------------------------------------


def open_folder(folder: Path | str) -> Run:
    """The run whose output folder this is, with or without MLflow. UsageError if it is no such folder."""
    path = Path(folder)
    if not (path / "config.yaml").is_file():
        raise UsageError(f"{path} is no run's output folder (no config.yaml in it): `{COMMAND}` makes one.")
    import yaml

    config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    finished = (path / "summary.json").is_file()
    summary = _parsed((path / "summary.json").read_text("utf-8"), path / "summary.json") if finished else {}
    return Run(
        name=path.name,
        source=str(path),
        status="FINISHED" if finished else "UNFINISHED",
        params={key: str(value) for key, value in flattened(config).items()},
        metrics={key: nan if value is None else value for key, value in summary.get("metrics", {}).items()},
        curves={
            key: {int(gamma): float(value) for gamma, value in points.items()}
            for key, points in summary.get("curves", {}).items()
        },
        fetch=partial(_in_folder, path),
    )


def _in_folder(folder: Path, name: str) -> Path:
    if (folder / name).is_file():
        return folder / name
    # A run that was killed has not joined its part-files; pyarrow reads the folder as one table.
    parts = folder / "rounds"
    if name == "rounds.parquet" and any(parts.glob("part-*.parquet")):
        return parts
    raise UsageError(_missing(name, f"The folder {folder}"))


# From rounds --------------------------------------------------------------------------------------


def measured_curve(
    rounds: pd.DataFrame,
    quantity: str = "tokens_per_round",
    replicates: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """The measured points of a run, one row per gamma, with prompt-bootstrap intervals.

    Columns: gamma, value, ci_low, ci_high, prompts, rounds. Over the work that every gamma has done; speedup
    as in DESIGN 5, prefill apart, repeats pooled. NaN bounds for a single prompt. ValueError for an unknown
    quantity or without speculative rounds.
    """
    _curve_prefix(quantity)
    shared = shared_work(rounds)
    baseline = prompt_sums(shared[shared["method"] == BASELINE]).add_prefix("baseline_")
    rows = []
    for gamma, arm in drafted(shared).groupby("gamma", sort=True):
        table = prompt_sums(arm).join(baseline).fillna(0.0)
        interval = bootstrap(table, _VALUES[quantity], replicates, seed, level)["value"]
        rows.append(
            {
                "gamma": int(gamma),
                "value": interval.estimate,
                "ci_low": interval.low,
                "ci_high": interval.high,
                "prompts": len(table),
                "rounds": len(arm),
            }
        )
    if not rows:
        raise ValueError("the rounds table has only the baseline's rounds")
    return pd.DataFrame(rows)


def _tokens_per_round(sums: Columns) -> dict[str, np.ndarray]:
    return {"value": sums["tokens"] / sums["rounds"]}


def _speedup(sums: Columns) -> dict[str, np.ndarray]:
    per_token = sums["baseline_round_s"] / sums["baseline_tokens"]
    return {"value": per_token * sums["tokens"] / sums["round_s"]}


_VALUES = {"tokens_per_round": _tokens_per_round, "speedup": _speedup}

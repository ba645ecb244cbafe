"""The record of a run as analysis reads it, and the run of an output folder: parameters, metrics, curves, tables.

Files are read when they are asked for, from a folder here and from MLflow in `find_runs`. A missing file is a
UsageError that names the file and says what writes it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pandas as pd
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from specdec.config import PLAIN, flattened
from specdec.errors import UsageError
from specdec.text.lines import json_value
from specdec.tracking.store import reason

from ..intervals import Interval
from ..rounds import Arms, check_once, check_rounds
from .facts import LOAD, PLAN_FILE, STATUS_FILE, ImportFacts, RunFacts, RunStatus, SessionFacts, Trace
from .round_counts import named, read_arms

COMMAND = "python -m specdec.run +drafter=ngram"
_ENDED = "every run that ended, and `python -m specdec.report FOLDER` for one that was killed,"
WRITTEN_BY = {  # file of a run: which runs write it; for the message where it is missing
    **dict.fromkeys(("rounds.parquet", "generations.jsonl"), "every run that decoded at least one prompt"),
    **dict.fromkeys(("account.json", "summary.json", "trace.html", "report.md"), "every run that finished"),
    **dict.fromkeys(("replay.parquet", "alpha.parquet", "session.json", "traces.json"), _ENDED),
    **dict.fromkeys(("environment.json", "config.yaml"), "every run"),
    **dict.fromkeys(("plan.json", "status.json"), "every run of this version of specdec"),
    "quality.parquet": "every run that finished with a rule that is not lossless or with measurement.original",
    "sampled.parquet": "every greedy run with measurement.sampled_temperature that ended",
    "loads.parquet": "`python -m specdec.explain FILE... --out DIR`, and every import of load tests,",
    "experts.parquet": "every run whose target is a mixture of experts of transformers",
    "calibration.json": "every run that began to decode",
    "cost.json": "every run with a value in measurement.cost_contexts and a target that does arithmetic",
    "peers.json": "every run with measurement.peers",
    "divergences.json": "every greedy run with an output that parted from the baseline's",
}
EXPERTS = ("method", "gamma", "prompt", "repeat", "tokens", "calls", "experts", "independent", "uniform", "reads")
"""Columns of `experts.parquet`, a line for each text of a primary structure and number of tokens of a call. Sums over
these `calls`, in the mean over layers: the distinct experts chosen, those that independent tokens would choose with the
text's own chances and with equal ones; and the bytes of weights read, over those of a call on one token (`reads`)."""
CURVES = {"tokens_per_round": "curve/", "speedup": "curve/speedup/"}  # quantity: how the names of its curves begin
ERRORS = {"tokens_per_round": "tokens_error", "speedup": "speedup_error"}  # quantity: the error of its formula
SETTINGS = "measurement.drafter_settings."  # parameters of the other drafters of a session: this, name, their own key
OWN_PARTS = ("drafter.", "structure.", "verifier.")  # parameters that each drafter of a session has for itself

FAMILIES = (
    "ablation", "account", "all_drafters", "batching", "budget", "cost", "grid", "heldout", "iid", "lenience",
    "lossless", "memory", "mt_bench", "operations", "peer", "prompts", "quality", "repetition", "serving", "throughput",
    "topk", "train", "transition", "tree_search", "typical_acceptance",
)  # fmt: skip
# Names of categories may have dots of their own, so that a name of today's has to follow.
_CATEGORY = re.compile(
    r"category\.(.+?)\.((?:speedup|tokens_per_round|alpha|accepted_per_offered|acceleration_rate|step_overhead"
    r"|compression_ratio|throughput|draft_length)(?:\..+)?)"
)
_DRAFTER = re.compile(r"drafter\.([^./]+)\.(.+)")
_CURVE = re.compile(r"(curve|sweep)\.([^./]+)(?:\.(.+))?")


def current_name(name: str) -> str:
    """Return a metric's name of today, as `account/verify`; older versions wrote a dot after the family."""
    if parts := _CATEGORY.fullmatch(name):
        return f"category/{parts[1]}/{current_name(parts[2])}"
    if parts := _DRAFTER.fullmatch(name):
        return f"drafter/{parts[1]}/{current_name(parts[2])}"
    if parts := _CURVE.fullmatch(name):
        family, first, rest = parts.groups()
        if rest is None:
            return f"{family}/{first}"
        # The bounds of a curve, and of the key that lines share, stay beside it.
        return f"{family}/{first}{'.' if rest in ('ci_low', 'ci_high') else '/'}{rest}"
    family, dot, rest = name.partition(".")
    return f"{family}/{rest}" if dot and family in FAMILIES else name


@dataclass(frozen=True)
class Run:
    """A main run: what it logged, and its files, read when asked for."""

    name: str
    source: str  # folder or store that it was read from, for messages
    status: str
    params: Mapping[str, str]  # the flattened configuration, as text
    metrics: Mapping[str, float]
    curves: Mapping[str, Mapping[int, float]]  # value by gamma, by name (`curve/measured`, `curve/speedup/replay`, ...)
    fetch: Callable[[str], Path]  # returns the path of a file of the run by name; UsageError if the run has none
    concluded: Mapping[str, Any] | None = None  # the content of `summary.json` while it is not written yet; else None
    method: str = ""  # the drafter that tables, facts and metrics are about (`of_drafter`); "" for that of +drafter=

    def facts(self) -> RunFacts:
        """Read what was run, as the run wrote it down before decoding."""
        earlier = "run.json"  # as versions before called it
        name = earlier if self.lacks(PLAN_FILE) and not self.lacks(earlier) else PLAN_FILE
        with _as_written(self.fetch(name)):
            facts = _RUN_FACTS.validate_python({"left_out": (), **self.content(name)})
            return facts.beside[self.method] if self.method else facts

    def imported(self) -> ImportFacts | None:
        """Read the facts of an imported folder; None for a run of ours. UsageError for load tests."""
        if "import.kind" not in self.params:
            return None
        if self.params["import.kind"] == LOAD:
            raise UsageError(
                f"{self.source} holds load tests, without rounds: `python -m specdec.explain {self.source}`."
            )
        with _as_written(self.fetch(PLAN_FILE)):
            return _IMPORT_FACTS.validate_python(self.content(PLAN_FILE))

    def session(self) -> SessionFacts:
        """Read what decoding left besides the tables."""
        with _as_written(self.fetch("session.json")):
            session = _SESSION_FACTS.validate_python(self.content("session.json"))
            if not self.method:
                return session
            own = session.beside[self.method]
            counts: dict[str, Any] = {key: own[key] for key in ("compared", "identical", "unexplained")}
            return replace(session, drafter=self.method, beside={}, **counts)

    @property
    def refuted(self) -> str:
        """Why its outputs are not the target's own although they should be, in a sentence; "" where nothing speaks
        against them, and of recorded texts. No speedup of such a run is ranked, called best or recommended.
        """
        if self.lacks("session.json"):
            return ""  # the run has not ended
        facts = self.facts()
        return "" if facts.simulated or facts.forced else self.session().refuted

    def standing(self) -> RunStatus | None:
        """Read how far the run has come; None if it did not say."""
        return None if self.lacks(STATUS_FILE) else RunStatus.read(self.fetch(STATUS_FILE).parent)

    @property
    def beside(self) -> tuple[str, ...]:
        """The methods of the session's other drafters, in the order of `measurement.drafters`."""
        return () if self.method else tuple(run.method for run in self.drafters if run.method)

    def of_drafter(self, name: str) -> "Run":
        """Return this run as if `name`, one of `beside`, were its only drafter."""
        settings, prefix = f"{SETTINGS}{name}.", f"drafter/{name}/"
        shared = {key: value for key, value in self.params.items() if not key.startswith(OWN_PARTS)}
        own = {key.removeprefix(settings): value for key, value in self.params.items() if key.startswith(settings)}
        logged = {key.removeprefix(prefix): value for key, value in self.metrics.items() if key.startswith(prefix)}
        curves = {key.removeprefix(prefix): value for key, value in self.curves.items() if key.startswith(prefix)}
        # Peers are those of the drafter of +drafter=.
        params = {**shared, **own, "measurement.peers": "[]"}
        return replace(self, params=params, metrics=logged, curves=curves, concluded=None, method=name)

    @property
    def drafters(self) -> list["Run"]:
        """This run once for each drafter of its session, in the order of `measurement.drafters`; the drafter of
        `+drafter=`, which has no settings of its own there, is first where it is not named.
        """
        names = self.params.get("measurement.drafters", "[]").strip("[]").split(",")
        asked = dict.fromkeys(name.strip(" '\"") for name in names if name.strip())
        others = {name for name in asked if any(key.startswith(f"{SETTINGS}{name}.") for key in self.params)}
        order = [self.of_drafter(name) if name in others else self for name in asked]
        return order if any(run is self for run in order) else [self, *order]

    def _own(self, table: pd.DataFrame) -> pd.DataFrame:
        """Keep the lines of this drafter and of plain decoding, where the session had several drafters."""
        return table[table["method"].isin(self._methods)] if self._methods and "method" in table else table

    @property
    def _methods(self) -> list[str]:
        several = self.method or self.beside
        return [*PLAIN, self.method or self.params.get("drafter.name", "")] if several else []

    def peers(self) -> dict[str, Any]:
        """Read the other engines (`peers`, `left_out`) and what they wrote (`generations`), where there are some."""
        if self.params.get("measurement.peers", "[]") == "[]":
            return {"peers": [], "generations": []}
        return self.content("peers.json")

    def rounds(self) -> pd.DataFrame:
        """Read the rounds table (`rounds.COLUMNS`) with the seconds of the clock. UsageError for contradictions."""
        rounds = self.table("rounds.parquet")
        with named(self.fetch("rounds.parquet")):
            check_rounds(rounds)
            check_once(rounds)
        return self._own(rounds)

    def shared_at_rejections(self) -> list[float]:
        """Read the mass that drafter and target share at the position of every rejection that wrote it down."""
        own = [("method", "in", self._methods)] if self._methods else []
        table = pq.read_table(self.fetch("rounds.parquet"), columns=["beta"], filters=[("rejected", "=", True), *own])
        return [beta[-1] for beta in table["beta"].to_pylist() if beta]

    def arms(self) -> Arms:
        """Return what statistics count of the rounds, by arm, read when asked for; nobody writes to these tables."""
        path = self.fetch("rounds.parquet")
        key = (str(path), path.stat().st_mtime_ns)
        arms = _open_files.get(key)
        if arms is None:
            with _as_table(path):
                arms = _open_files[key] = read_arms(path)
        return arms.of_methods(self._methods) if self._methods else arms

    def generations(self, texts: bool = True) -> pd.DataFrame:
        """Read one line per generation: key columns, tokens, seconds, flag and, with `texts`, token ids and text."""
        path = self.fetch("generations.jsonl")
        left_out = () if texts else ("prompt_token_ids", "generated_token_ids", "text")
        with _as_written(path), path.open(encoding="utf-8") as lines:
            records = [
                {name: value for name, value in _parsed(line.strip(), path, number).items() if name not in left_out}
                for number, line in enumerate(lines, 1)
            ]
            return self._own(pd.DataFrame(records))

    def traces(self) -> list[Trace]:
        """Read the generations that are shown round by round."""
        return read_traces(self.fetch("traces.json"))

    def replay(self) -> pd.DataFrame:
        """Read what replays expect: tokens and rounds by gamma, kind, prompt and repeat; empty where there is no
        replay. The kind is "own", along the texts that this gamma wrote, "baseline", along the baseline's, or "along"
        (of imported lengths by position), as if every draft token were as good as a first one.
        """
        return self._own(self.table("replay.parquet"))

    def alpha_sums(self) -> pd.DataFrame:
        """Read the sum of min(p, q) (numerator) over the positions of the baseline's texts with a proposal
        (denominator), by prompt and repeat. Under a lossy verifier the numerator is the sum of its own chances to pass
        a token drawn from q, min(p/l, q) under lenience; empty where they depend on the depth, and for trees.
        """
        return self._own(self.table("alpha.parquet"))

    def quality(self) -> pd.DataFrame:
        """Read one line per output that was judged (`analysis.findings.run_metrics.OUTPUTS`)."""
        return self._own(self.table("quality.parquet"))

    def sampled(self) -> pd.DataFrame:
        """Read a line per text that was sampled beside a greedy run (`run_metrics.SAMPLED`); empty without any."""
        return pd.DataFrame() if self.method or self.lacks("sampled.parquet") else self.table("sampled.parquet")

    def experts(self) -> pd.DataFrame:
        """Read the experts that verification calls chose (`EXPERTS`); empty where the target is no known mixture."""
        if self.lacks("experts.parquet"):
            return pd.DataFrame(columns=list(EXPERTS))
        return self._own(self.table("experts.parquet"))

    def account(self) -> dict[str, Any]:
        """Read the gap account of every gamma."""
        return self.content("account.json")

    def summary(self) -> dict[str, Any]:
        """Read metrics, curves, the headline figures of every gamma (`arms`), and warnings in words (`notes`)."""
        return dict(self.concluded) if self.concluded is not None else self.content("summary.json")

    def calibration(self) -> dict[str, Any]:
        """Read t(1), t(n) and the drafter's step, in seconds."""
        return self.content("calibration.json")

    def cost(self) -> dict[str, Any]:
        """Read the machine's rates, the target's matrix products, and the fitted cost of a call."""
        return self.content("cost.json")

    def environment(self) -> dict[str, Any]:
        """Read versions, hardware, content hashes."""
        environment = self.content("environment.json")
        for name in ("model", "cpu", "gpu", "prompts", "code"):
            if not isinstance(environment.get(name) or {}, dict):
                raise UsageError(f"{self.fetch('environment.json')}: {name} is no object: {_COPY}.")
        return environment

    def lines(self, quantity: str = "tokens_per_round") -> dict[str, dict[int, float]]:
        """Return the models' curves of `tokens_per_round` or `speedup` by model, without the measured one."""
        if quantity not in CURVES:
            raise ValueError(f"quantity must be one of {', '.join(CURVES)}, got {quantity!r}")
        prefix = CURVES[quantity]
        lines = {key.removeprefix(prefix): dict(curve) for key, curve in self.curves.items() if key.startswith(prefix)}
        return {name: line for name, line in lines.items() if name != "measured" and name.isidentifier()}

    def points(self, quantity: str = "tokens_per_round") -> pd.DataFrame:
        """Return the measured `tokens_per_round` or `speedup` at every gamma, from the summary: gamma, value,
        value_low, value_high; and error, error_low, error_high of the capped geometric, where the run logged it.
        """
        rows = []
        for arm in self.summary()["arms"]:
            value, missed = (Interval.from_metrics(arm, name) for name in (quantity, ERRORS[quantity]))
            error = {} if isnan(missed.estimate) else missed.as_columns("error")
            rows.append({"gamma": arm["gamma"], **value.as_columns("value"), **error})
        return pd.DataFrame(rows)

    @property
    def replicates(self) -> int:
        """Replicates of the run's prompt bootstrap. UsageError if it recorded none. All runs have one seed, so that an
        estimate has one interval on every page.
        """
        key = "measurement.bootstrap"
        if not self.params.get(key, "").isdigit():
            raise UsageError(f"{self.source} does not record {key}, which its intervals need: run it again.")
        return int(self.params[key])

    @property
    def primary_gamma(self) -> int | None:
        """The depth of the primary structure: gamma of a chain, w of rows, the depth of a tree; None if unfinished."""
        for key in ("structure.gamma", "structure.w"):
            value = self.params.get(key, "")
            if value.isdigit():
                return int(value)
        for read in (lambda: self.facts().primary_gamma, lambda: int(self.account()["primary_gamma"])):
            try:
                return read()
            except UsageError:
                continue
        return None

    @property
    def simulated(self) -> bool:
        """True if times come from a cost model, and the text was recorded; False where the run did not say."""
        try:
            return self.facts().simulated
        except UsageError:
            return self.params.get("target.name") == "replay"

    @property
    def drafter_name(self) -> str:
        """The drafter as tables name it, with its model or order: `small_model pocket`. `pocket` is left out beside
        another target, for which the key means what comes along for that one.
        """
        name = self.params.get("drafter.name", "unknown drafter")
        if name == "corpus_ngram":
            return f"{name} of order {self.params['drafter.order']}"
        model = self.params.get("drafter.model")
        unnamed = {None, "", "None"}  # MLflow's parameters are text
        if self.params.get("target.model") not in {*unnamed, "pocket"}:
            unnamed.add("pocket")
        return name if model in unnamed else f"{name} {model}"

    @property
    def setting(self) -> str:
        """Model, dtype and hardware, or the cost model whose time it is: figures that differ here do not compare."""
        try:
            environment = self.environment()
        except UsageError:
            environment = {}
        gpu, cpu, described = (environment.get(name) or {} for name in ("gpu", "cpu", "model"))
        hardware, dtype = gpu.get("name") or cpu.get("model"), described.get("dtype")
        if self.simulated:
            hardware = f"simulated time ({described.get('cost_model', 'cost model not recorded')})"
        model = self.params.get("target.model") or self.params.get("target.name") or "unknown model"
        return f"{model}{f' ({dtype})' if dtype else ''}, {hardware or 'hardware not recorded'}"

    @property
    def title(self) -> str:
        """Drafter, model, dtype and hardware, with the shape of the drafts where they are not chains."""
        if imported := self.imported():
            return f"{imported.name} (imported, {imported.kind})"
        try:
            return self.facts().title(self.environment())
        except UsageError:  # a run of an earlier version
            return f"{self.params.get('drafter.name', 'unknown drafter')} on {self.setting}"

    def lacks(self, name: str) -> bool:
        try:
            self.fetch(name)
        except UsageError:
            return True
        return False

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Read a table by its file's name, all of its columns or some."""
        return read_table(self.fetch(name), columns)

    def content(self, name: str) -> dict[str, Any]:
        path = self.fetch(name)
        return _parsed(_text(path), path)


# Rounds tables that are in use, by file and time of writing: sections of one page read the same one.
_open_files: WeakValueDictionary[tuple[str, int], Arms] = WeakValueDictionary()


def read_table(path: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a table of a run's folder, all of its columns or some. UsageError for a damaged file, or without one."""
    with _as_table(path):
        return pd.read_parquet(path, columns=None if columns is None else list(columns))


@contextmanager
def _as_table(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, TypeError, KeyError) as error:  # pyarrow's own, and pandas' of its metadata
        raise UsageError(f"{path} is no Parquet table ({reason(error)}); copy it again, or run again.") from None


_COPY = "copy the file again, or run again"
_RUN_FACTS, _SESSION_FACTS = TypeAdapter(RunFacts), TypeAdapter(SessionFacts)
_IMPORT_FACTS, _TRACES = TypeAdapter(ImportFacts), TypeAdapter(list[Trace])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text: {_COPY}.") from None


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Turn what goes wrong with values that no run writes into a UsageError that names their file."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        what = f"{error.error_count()} values" if isinstance(error, ValidationError) else f"{reason(error)}"
        raise UsageError(f"{path} does not hold what a run writes there ({what}): {_COPY}.") from None


def _parsed(text: str, path: Path, line: int = 1) -> dict[str, Any]:
    value = json_value(path, line, text, "the file was cut off or edited")
    if not isinstance(value, dict):
        raise UsageError(f"{path}:{line}: an object was expected, found a {type(value).__name__}.")
    return value


def open_folder(folder: Path | str) -> Run:
    """Return the run whose output folder this is, logged in MLflow or not. UsageError if it is no such folder."""
    path = Path(folder)
    if not (path / "config.yaml").is_file():
        raise UsageError(f"{path} is no run's output folder (no config.yaml in it): `{COMMAND}` makes one.")
    import yaml

    try:
        config = yaml.safe_load(_text(path / "config.yaml"))
    except (yaml.YAMLError, ValueError, RecursionError):  # impossible dates are ValueErrors
        config = None
    if not isinstance(config, dict):
        raise UsageError(f"{path / 'config.yaml'} is not the configuration of a run: {_COPY}.")
    analysed, standing = (path / "summary.json").is_file(), RunStatus.read(path)
    finished = (analysed or "import" in config) and not (standing and standing.partial)  # no run writes an import
    summary = _parsed(_text(path / "summary.json"), path / "summary.json") if analysed else {}
    with _as_written(path / "summary.json"):
        logged, lines = summary.get("metrics", {}), summary.get("curves", {})
        metrics = {current_name(key): nan if value is None else float(value) for key, value in logged.items()}
        curves = {
            current_name(key): {int(gamma): float(value) for gamma, value in points.items()}
            for key, points in lines.items()
        }
    return Run(
        name=path.name,
        source=str(path),
        status="FINISHED" if finished else "UNFINISHED",
        params={key: str(value) for key, value in flattened(config).items()},
        metrics=metrics,
        curves=curves,
        fetch=partial(_in_folder, path),
    )


def _in_folder(folder: Path, name: str) -> Path:
    if (folder / name).is_file():
        return folder / name
    # A run that was killed has not joined its part-files; pyarrow reads the folder as one table.
    parts = folder / "rounds"
    if name == "rounds.parquet" and any(parts.glob("part-*.parquet")):
        return parts
    raise UsageError(missing_file(name, f"The folder {folder}"))


def read_traces(path: Path) -> list[Trace]:
    """Read `traces.json`. UsageError if it holds something else."""
    try:
        return _TRACES.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError, OSError):  # pydantic's and json's own are ValueErrors
        raise UsageError(f"{path} does not hold the traces of a run: copy it again, or run again.") from None


def missing_file(name: str, owner: str) -> str:
    """Return the sentence about a file that `owner` lacks: its name, and which runs write it."""
    return f"{owner} has no artifact {name}; {WRITTEN_BY.get(name, 'not every run')} writes it."

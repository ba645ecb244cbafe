"""Evaluation output of SpecForge (sgl-project/SpecForge, benchmarks/bench_eagle3.py): one indented JSON object a file.

It maps `model` to the drafter and every benchmark to a list of configurations: batch_size, steps (0: plain decoding),
topk, num_draft_tokens and metrics, one entry per run (benchmarks/benchmarker/utils.py, BenchmarkMetrics): latency in
seconds, output_throughput in tokens per second, accept_length (completion tokens over verification calls, the target's
own token and the prefill's included) and num_questions. So it has totals of whole benchmarks.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specdec.errors import UsageError
from specdec.text.lines import printable, unpacked

from ..imported import ImportChoices, Imported, ImportedText, imported

KIND = "specforge"
LARGEST_FILE = 64 << 20  # bytes: the format is a table of a few kilobytes
MEASURED = ("latency", "output_throughput", "accept_length")
DERIVED = (
    "Tokens are latency times output_throughput, rounds are tokens over accept_length; the token that the prefill "
    "gives is among the tokens and not among the rounds, so tokens per round are a little too high."
)
WHOLE = "One line stands for a whole benchmark, so an interval over lines is one over benchmarks and not over prompts."


class ServerSetting(NamedTuple):
    """The options that a server was started with; None where it was started by hand."""

    batch_size: int | None
    steps: int | None
    topk: int | None
    num_draft_tokens: int | None

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items() if value is not None)


def read(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return a data set per drafting configuration: texts are benchmarks, repeats runs. UsageError for another form."""
    settings: dict[ServerSetting, list[ImportedText]] = {}
    with unpacked(path, f"The file {path}") as (content, _):
        raw = content.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise UsageError(f"{path} is larger than {LARGEST_FILE >> 20} MiB: SpecForge writes a table, not a trace.")
    try:
        document = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({getattr(error, 'msg', 'not UTF-8 or too deep')}).") from None
    if not recognises(document):
        raise UsageError(f"{path}: no benchmark with a list of configurations (batch_size, metrics) is in it.")
    for key, configurations in document.items():
        if (benchmark := printable(key)) == "model":
            continue
        for place, configuration in enumerate(_list(path, benchmark, configurations)):
            where = f"{path}: {benchmark:.60}[{place}]"
            options = [configuration.get(name) for name in ServerSetting._fields]
            if any(value is not None and (type(value) is not int or not 0 <= value < 2**31) for value in options):
                raise UsageError(f"{where}: {', '.join(ServerSetting._fields)} must be whole numbers or null.")
            for run, metrics in enumerate(_list(path, benchmark, configuration.get("metrics"))):
                at = f"{where}.metrics[{run}]"
                for quantity in MEASURED:
                    value = metrics.get(quantity)
                    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
                        raise UsageError(f"{at}: {quantity} must be a number above 0, found {value!r:.40}.")
                seconds, rate, length = (float(metrics[quantity]) for quantity in MEASURED)
                if length < 1:
                    raise UsageError(f"{at}: accept_length is {length}, and a round gives at least one token.")
                tokens = seconds * rate
                sums: dict[str, Any] = {"tokens": tokens, "rounds": tokens / length, "seconds": seconds}
                text = ImportedText(benchmark, benchmark, repeat=run, **sums)
                settings.setdefault(ServerSetting(*options), []).append(text)
    drafting = [setting for setting in settings if setting.steps != 0]
    made = []
    for setting in drafting:
        notes = [DERIVED, WHOLE, *_against_plain(setting, settings)]
        part = str(setting) if len(drafting) > 1 else ""
        made.append(imported(path, KIND, setting.steps or choices.needed_gamma, settings[setting], notes, part=part))
    if not made:
        raise UsageError(f"{path} has no configuration with steps above 0: nothing was drafted in it.")
    return made


def recognises(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    lists = [item for key, item in value.items() if key != "model" and isinstance(item, list) and item]
    return any(isinstance(item[0], Mapping) and {"batch_size", "metrics"} <= item[0].keys() for item in lists)


def _list(path: Path, name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UsageError(f"{path}: {name:.60} must be a list of configurations, each with a list of metrics.")
    return value


def _against_plain(setting: ServerSetting, settings: Mapping[ServerSetting, list[ImportedText]]) -> list[str]:
    """Return a sentence with the throughput over the file's own plain decoding, where it has some."""
    plain = [text for other, texts in settings.items() if other.steps == 0 and other[0] == setting[0] for text in texts]
    ratios = []
    for benchmark in dict.fromkeys(text.prompt for text in settings[setting]):
        rates = []  # tokens per second of the benchmark, its runs pooled
        for texts in (settings[setting], plain):
            runs = [text for text in texts if text.prompt == benchmark]
            if runs:
                rates.append(sum(text.tokens or 0.0 for text in runs) / sum(text.seconds for text in runs))
        if len(rates) == 2:
            ratios.append(f"{benchmark} {rates[0] / rates[1]:.2f}")
    if not ratios:
        return ["The file has no plain decoding (steps 0) at this batch size, so no speedup."]
    return [f"Output throughput over the file's own plain decoding at batch size {setting[0]}: {', '.join(ratios)}."]

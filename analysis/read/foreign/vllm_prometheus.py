"""The Prometheus page of a vLLM server (`/metrics`): counters of speculative decoding since it started.

Source: vllm-project/vllm, vllm/v1/spec_decode/metrics.py (class SpecDecodingProm). Read are
vllm:spec_decode_num_drafts, _num_draft_tokens, _num_accepted_tokens and _num_accepted_tokens_per_pos (label `position`,
from 0), each with `_total` behind it. Engines of one `model_name` are added up; models stay apart. None counts the
bonus token. Of several scrapes, one behind the other, the last less the first is read.
"""

import re
from collections import defaultdict
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from specdec.errors import UsageError
from specdec.text.lines import BadLine, decoded, file_lines, printable

from ..foreign_lines import MOST_COUNTED, NO_ENDS, NO_TIMES, UNORDERED, ForeignFile
from ..imported import ImportChoices, Imported, imported, within_gamma
from ..load_points import Gauges, LoadFile, number_of
from .vllm import NO_SILENT, SAME_OFFER, RequestRounds, histogram_of, short_notes

KIND = "vllm_prometheus"
LOAD_FILES = (  # what writes them: how they begin
    "vLLM's page /metrics: "
    'vllm:num_requests_running{model_name="M"} 74.0 vllm:kv_cache_usage_perc{model_name="M"} 0.99'
)
PREFIX = "vllm:spec_decode_num_"
SAMPLE = re.compile(r"(vllm:spec_decode_num_\w+?)(?:_total)?(?:\{(.*)\})?\s+(\d+\.?\d*(?:[eE][+-]?\d+)?)(?:\s+\S+)?\s*")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
MOST = 200_000  # rounds of a table: a server counts hundreds of millions, whose shares are the same
NO_REQUESTS = (
    "It is one sum over all requests of a server: nothing varies between prompts, so there is no interval and no test "
    "that compares prompts."
)
Series = tuple[str, tuple[tuple[str, str], ...]]


def read(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the rounds that the counters imply, a data set for each model that drafted; gamma counts the positions.
    UsageError for a page without these counters, contradictions, and another gamma.
    """
    file = ForeignFile(path, choices)
    samples: dict[Series, list[float]] = defaultdict(list)
    for number, raw in file_lines(path, f"The file {path}"):
        if not raw.startswith(PREFIX.encode()):
            continue
        with file.line():
            where = f"{path}:{number}"
            text = decoded(where, raw, "save the page as it is")
            sample = SAMPLE.fullmatch(text)
            if sample is None or float(sample[3]) > MOST_COUNTED:
                raise BadLine(f"{where}: no sample of a counter (NAME{{LABELS}} NUMBER): {text!r:.80}.")
            if not sample[1].endswith("_created"):
                samples[sample[1], tuple(sorted(LABEL.findall(sample[2] or "")))].append(float(sample[3]))
    notes = [NO_TIMES, NO_SILENT, NO_ENDS, NO_REQUESTS, UNORDERED, SAME_OFFER, *file.settled()]
    scrapes = max(map(len, samples.values()), default=0)
    if scrapes > 1:
        notes.append("The file has several scrapes: counted is what was drafted between the first and the last one.")
    models: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (name, labels), values in samples.items():
        known = dict(labels)
        counter = name.removeprefix(PREFIX) + known.get("position", "")
        models[known.get("model_name", "")][counter] += values[-1] - (values[0] if len(values) > 1 else 0.0)
    made = [source for model, counters in models.items() if (source := _made(path, model, counters, choices, notes))]
    if not made:
        raise UsageError(f"{path} has no drafts: no counter {PREFIX}drafts above 0, as of a server that never drafted.")
    return made


def recognises(value: Any) -> bool:
    return isinstance(value, str) and re.search(rf"{PREFIX}|^(# (HELP|TYPE) )?vllm:", value, re.MULTILINE) is not None


def load_points(file: LoadFile) -> Gauges | None:
    if not re.search(r"^(# (HELP|TYPE) )?vllm:", file.text, re.MULTILINE):
        return None
    where, slots = str(file.path), nan
    values: dict[str, list[float]] = defaultdict(list)
    for line in file.text.splitlines():
        if found := re.fullmatch(r"vllm:(\w+)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*", line):
            values[found[1]].append(number_of(where, {found[1]: found[3]}, found[1]))
            labels = dict(LABEL.findall(found[2] or ""))
            if found[1] == "cache_config_info" and labels.get("num_gpu_blocks", "").isdigit():
                slots = float(labels["num_gpu_blocks"]) * number_of(where, labels, "block_size")
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    running, waiting, usage = (max(filter(isfinite, values[name]), default=nan) for name in names)
    return Gauges(running, waiting, usage, slots)


def _made(
    path: Path, model: str, counters: dict[str, float], choices: ImportChoices, notes: list[str]
) -> Imported | None:
    where = f"{path} (model_name {model})" if model else str(path)
    if any(value != int(value) or value < 0 for value in counters.values()):
        raise UsageError(f"{where}: a counter fell or is no whole number: the server was restarted between scrapes.")
    drafts = int(counters.get("drafts", 0))
    if not drafts:
        return None
    positions = [name for name in counters if re.fullmatch(r"accepted_tokens_per_pos\d{1,4}", name)]
    gamma = len(positions)
    if sorted(positions) != sorted(f"accepted_tokens_per_pos{place}" for place in range(gamma)) or not gamma:
        raise UsageError(f"{where}: {PREFIX}accepted_tokens_per_pos lacks a position from 0 to gamma - 1.")
    if choices.gamma is not None:
        within_gamma(where, [gamma], choices.gamma)
        gamma = choices.gamma
    reached = [int(counters[f"accepted_tokens_per_pos{place}"]) for place in range(len(positions))]
    total = int(counters["accepted_tokens"]) if "accepted_tokens" in counters else None
    histogram = histogram_of(where, drafts, reached, total)
    drafted = int(counters["draft_tokens"]) if "draft_tokens" in counters else None
    accepted = [length for length, rounds in enumerate(thinned(histogram, MOST)) for _ in range(rounds)]
    said = list(notes)
    if drafts > MOST:
        said.append(f"The table has {len(accepted):,} rounds for the {drafts:,} that were counted, in the same shares.")
        drafted = None if drafted is None else round(drafted * len(accepted) / drafts)
    rounds = RequestRounds(accepted, None, drafted, None, gamma)
    said += short_notes([rounds], gamma)
    texts = [rounds.text("all requests", "", gamma)]
    return imported(path, KIND, gamma, texts, said, ordered=False, part=printable(model))


def thinned(histogram: list[int], most: int) -> list[int]:
    """Return a histogram of at most `most` rounds in the same shares, to the nearest round; a smaller one as it is."""
    total = sum(histogram)
    if total <= most:
        return histogram
    shares = np.array([number * most / total for number in histogram])  # products of integers, which floats would round
    kept = shares.astype(int)
    kept[np.argsort(kept - shares, kind="stable")[: most - kept.sum()]] += 1  # those with the largest rest
    return [*map(int, kept)]

"""The JSON of `tests/benchmarks/gpu.py` as a page: calls against the time to read the weights, rounds and what the host
adds to them, the forced oracle against its formula, and transformers beside our loop.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError

from ..figures import pictures, style
from ..sections import Section

RESULT = Path(__file__).parents[1] / "results" / "gpu.json"
COMMAND = "python tests/benchmarks/gpu.py --out analysis/results/gpu.json"
_MS, _GB = 1e3, 1e9


@dataclass(frozen=True)
class GpuMeasurement:
    """The content of one file."""

    found: Mapping[str, Any]  # the file's mapping
    source: str  # where it is from, for messages

    @property
    def origin(self) -> str:
        """Words for where the figures come from, which every page begins with."""
        versions = self.found["versions"]
        where = f"{self.found['device']['name']}, torch {versions['torch']}, commit {str(self.found['commit'])[:12]}"
        if self.found["measured"]:  # on a GPU, with models of full size
            return f"Measured on {where}, {self.found['captured']}."
        return (
            f"No figure here comes from a GPU: toys on {where}, which show what the page looks like and say nothing "
            f"about any machine. `{COMMAND}` makes the real ones, in less than nine minutes."
        )

    def sections(self) -> tuple[Section, ...]:
        """Return a section per part, in the measurement's order. UsageError if one lacks what this version reads."""
        made = []
        for name, (title, read) in PARTS.items():
            part = self.found["sections"].get(name)
            if part is None:
                continue
            try:
                section = read(title, part)
            except KeyError as error:
                if part.get("complete", True):
                    lacks = f"section {name!r} lacks {error}, which this version reads"
                    raise UsageError(f"{self.source}: {lacks}; measure again: {COMMAND}.") from None
                section = Section(title, ("Nothing was measured.",))
            faults = (f"It failed: {part['error']}.",) if "error" in part else ()
            late = ("Time ran out before it was complete.",) if part["status"] == "out of time" else ()
            made.append(Section(title, (*section.text, *faults, *late), section.tables, section.figures))
        return tuple(made)


def read_gpu(path: Path = RESULT) -> GpuMeasurement:
    """Read a file of the script. UsageError if it is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["sections"], dict) or not {"measured", "device", "versions"} <= found.keys():
            raise KeyError("sections")
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} was not written by the GPU measurement; make it again: {COMMAND}.") from None
    return GpuMeasurement(found, str(path))


def _correctness(title: str, part: Mapping[str, Any]) -> Section:
    calls, drafts = pd.DataFrame(part["calls"]), pd.DataFrame(part["drafts"])
    every = pd.concat([calls["departure"], drafts["departure"]])
    right = int(calls["right"].sum() + drafts["right"].sum())
    text = (
        f"{right} of {len(every)} captured passes do what plain calls do: they depart by {every.max():.2g} at most, "
        f"and {part['tolerance']:g} is allowed.",
        f"A decoded text of {part['text']['tokens']} tokens is the same by both for its first {part['text']['same']}: "
        "in 16 bits texts part where two tokens are nearly equal, as they often are for random weights.",
    )
    for rows in (calls, drafts):
        rows["departure"] = rows["departure"].map("{:.2g}".format)
    return Section(title, text, (("Calls", calls), ("Drafts", drafts)))


def _calls(title: str, part: Mapping[str, Any]) -> Section:
    rows = pd.DataFrame(part["rows"])
    limits = rows["model"].map({name: model["limit_s"] for name, model in part["models"].items()})
    table = rows[["model", "tokens", "how"]].copy()
    table[["ms", "low", "high"]] = rows[["median_s", "low_s", "high_s"]] * _MS
    table["x weights"] = rows["median_s"] / limits
    text, figures = [], []
    for name, model in part["models"].items():
        mine = table[table["model"] == name].rename(columns={"low": "ms_low", "high": "ms_high"})
        single = mine[mine["tokens"] == 1]
        best = single.loc[single["ms"].idxmin()]
        eager = single[single["how"] == "eager"]["ms"].iloc[0]
        text.append(
            f"The {name} ({model['parameters'] / _GB:.2f} G parameters) takes {best['x weights']:.2f} times as long "
            f"for a call on one token ({best['how']}) as reading its weights at the measured "
            f"{part['bandwidth_bytes_per_s'] / _GB:.0f} GB/s; an eager call takes {eager / best['ms']:.1f} times as "
            "long as that call."
        )
        ways = enumerate(mine.groupby("how", sort=False))
        lines = {str(how): pictures.over(timed, "tokens", "ms", style.look(place)) for place, (how, timed) in ways}
        figure = pictures.chart(
            pictures.Panel("milliseconds", lines, level=(_MS * model["limit_s"], "weights / bandwidth"), zero=True),
            title=f"Calls of the {name}",
            caption="Medians with quartiles; dotted: reading the weights once.",
            xlabel="tokens of the call",
        )
        figures.append((f"gpu_calls_{name}", figure))
    return Section(title, tuple(text), (("Calls on n tokens", table.round(3)),), tuple(figures))


def _rounds(title: str, part: Mapping[str, Any]) -> Section:
    rows = pd.DataFrame(part["rows"])
    table = rows[["shape", "how", "nodes"]].copy()
    for name in ("round", "draft", "verify"):
        table[f"{name}, ms"] = [times["median_s"] * _MS for times in rows[name]]
    table["host waits"] = rows["waits"]
    fastest = table.loc[table.groupby("shape", sort=False)["round, ms"].idxmin()]
    text = tuple(
        f"A round of a {row['shape']} of {row['nodes']} nodes takes {row['round, ms']:.2f} ms ({row['how']}), and the "
        f"host waits {row['host waits']} time{'s' * (row['host waits'] != 1)} in it."
        for row in fastest.to_dict("records")
    )
    return Section(title, text, (("Rounds", table.round(3)),))


def _overhead(title: str, part: Mapping[str, Any]) -> Section:
    rows = pd.DataFrame(part["rows"])
    shares = ", ".join(f"{row['share']:.0%} {row['how']}" for row in part["rows"])
    table = rows[["how"]].copy()
    table[["round, ms", "kernels, ms"]] = rows[["round_s", "kernels_s"]] * _MS
    table["share of the host"] = rows["share"]
    return Section(title, (f"Time of a round in which no kernel runs: {shares}.",), (("", table.round(3)),))


def _oracle(title: str, part: Mapping[str, Any]) -> Section:
    rows = pd.DataFrame(part["rows"])
    columns = ["gamma", "alpha", "v", "c", "tokens_per_round", "formula", "limit", "speedup", "realised"]
    low, high = rows["realised"].min(), rows["realised"].max()
    best = rows.loc[rows["speedup"].idxmax()]
    text = (
        f"{low:.0%} to {high:.0%} of the limit is reached; the best speedup is {best['speedup']:.2f} at alpha "
        f"{best['alpha']:g} and gamma {best['gamma']:.0f}, where the capped geometric, at the measured "
        f"costs, says {best['formula']:.2f}.",
        "The limit has the tokens per round that the coins gave; the capped geometric has their expectation.",
    )
    return Section(title, text, (("Forced acceptance", rows[columns].round(3)),))


def _peers(title: str, part: Mapping[str, Any]) -> Section:
    rows = pd.DataFrame(part["rows"])
    table = pd.DataFrame({"": rows["arm"], "ms a token": rows["median_s"] * _MS})
    text = [
        f"transformers' {peer}, which runs eagerly, takes {part[key]:.2f} times as long a token as ours."
        for key, peer in (("generate_ratio", "generate"), ("assisted_ratio", "assisted generation"))
        if key in part
    ]
    return Section(title, tuple(text) or ("No peer was measured.",), (("", table.round(3)),))


def _memory(title: str, part: Mapping[str, Any]) -> Section:
    sizes = pd.DataFrame({name: size for name, size in part.items() if isinstance(size, Mapping)}).T
    table = pd.DataFrame({"model": list(sizes.index)})
    table[["weights, GB", "cache, GB"]] = sizes[["weight_bytes", "cache_bytes"]].to_numpy(dtype=float) / _GB
    table["slots"] = sizes["slots"].to_numpy(dtype=int)
    held = (sizes["weight_bytes"] + sizes["cache_bytes"]).sum() / _GB
    text = f"Weights and caches of both models take {held:.2f} GB."
    if "peak_bytes" in part:
        text += f" The peak was {part['peak_bytes'] / _GB:.2f} GB, and graphs kept {part['graph_bytes'] / _GB:.2f} GB."
    return Section(title, (text,), (("", table.round(4)),))


PARTS: dict[str, tuple[str, Callable[[str, Mapping[str, Any]], Section]]] = {
    "correctness": ("Do captured passes do what plain calls do?", _correctness),
    "calls": ("How close is a call to reading the weights once?", _calls),
    "rounds": ("What does a round cost, and how often does the host wait?", _rounds),
    "overhead": ("How much of a round is the host's?", _overhead),
    "oracle": ("How much of Omega / (v + gamma c) is reached?", _oracle),
    "peers": ("And transformers?", _peers),
    "memory": ("What does it take in memory?", _memory),
}
"""The parts of the measurement: the title of each, and what reads it."""

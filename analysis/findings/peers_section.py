"""Other engines beside ours, as a run wrote them down: a sentence for each in the notes, and a table for pages."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from specdec.config import BASELINE

from ..intervals import Interval, too_few
from ..read.runs import Run
from ..sections import Section


def peer_notes(described: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
    """Say each peer's time over ours, how both sides ran, and what failed or was left out.

    described: `peers.json`; metrics: of the run, those of peers as `peer/<name>.*`.
    """
    notes = []
    for peer in described["peers"]:
        name, failure = peer["peer"], peer["failure"]
        if f"peer/{name}.ratio" not in metrics:
            notes.append(f"Peer {name} failed: {failure}" if failure else f"Peer {name} has decoded nothing yet.")
            continue
        ratio, same = Interval.from_metrics(metrics, f"peer/{name}.ratio"), metrics.get(f"peer/{name}.identical")
        said = (
            f"Peer {name} ({peer['version']}, {peer['setting']}) takes {ratio:.2f} times our time per token with "
            f"{_arm(peer)} ({peer['ours']['setting']}), prefill included."
        )
        if same is not None:
            said += f" {same:.0%} of its outputs are our baseline's, token for token."
        if len(peer["tried"]) > 1:
            outcomes = (
                f"{tried['setting']} "
                + (f"{tried['seconds']:.3f} s" if "seconds" in tried else f"failed ({tried['failed']})")
                for tried in peer["tried"]
            )
            said += f" Tried on the longest prompt: {', '.join(outcomes)}."
        notes.append(said + (f" It failed and is compared as far as it came: {failure}" if failure else ""))
    left_out = described.get("left_out", ())
    return [*notes, *(f"Peer {peer['peer']} is left out: {peer['reason']}" for peer in left_out)]


def _arm(peer: Mapping[str, Any]) -> str:
    ours = peer["ours"]
    return "the baseline" if ours["method"] == BASELINE else f"{ours['method']} at gamma {ours['gamma']}"


PEERS = "Beside other engines"


def peers_section(run: Run) -> Section:
    """Show each peer's ratio, both sides' settings, and who was left out. UsageError without `peers.json`."""
    described, lines = run.peers(), []
    ratios: dict[str, Interval] = {}
    prompts = len({line["prompt"] for line in described.get("generations", ())})
    for peer in described["peers"]:
        name = peer["peer"]
        ratios[name], same = Interval.from_metrics(run.metrics, f"peer/{name}.ratio"), f"peer/{name}.identical"
        lines.append(
            {
                "peer": name,
                "its time per token over ours": f"{ratios[name]:.2f}",
                "set against": _arm(peer),
                "engine": peer["version"],
                "its setting": peer["setting"],
                "our setting": peer["ours"]["setting"],
                "outputs that are our baseline's": f"{run.metrics[same]:.0%}" if same in run.metrics else "–",
                "left out or failed": peer["failure"] or "–",
            }
        )
    for omitted in described.get("left_out", ()):
        lines.append({"peer": omitted["peer"], "left out or failed": omitted["reason"]})
    few = too_few(prompts)
    slower = [name for name, ratio in ratios.items() if ratio.low > 1 and not few]
    faster = [name for name, ratio in ratios.items() if ratio.high < 1 and not few]
    rest = sorted(name for name, ratio in ratios.items() if ratio.known and name not in (*slower, *faster))
    said = [
        *([f"**Slower than ours: {', '.join(slower)}.**"] if slower else []),
        *([f"**Faster than ours: {', '.join(faster)}.**"] if faster else []),
        *([f"Not told apart from ours: {', '.join(rest)}{few and f'; {few}'}."] if rest else []),
        "Each engine generated from the same prompts in the same process, in turn with ours, at the fastest of the "
        "settings that were tried. Times include both sides' prefill; intervals are 95% prompt-bootstrap intervals.",
    ]
    return Section(PEERS, (" ".join(said),), (("Every peer, and how both sides ran", pd.DataFrame(lines).fillna("–")),))

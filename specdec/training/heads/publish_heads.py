"""Put finished heads where the package ships them, and write their card from their summaries.

    python -m specdec.training.heads.publish_heads models/heads/medusa models/heads/grounded specdec/pocket/heads

Every figure of the card comes from `summary.json`; none is typed by hand.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.training.models.publish import hardware_line

CARD = """\
# Heads of the pocket target

Heads that draft for the pocket target from its own hidden states, so that `+drafter=medusa`, `+drafter=grounded` and
`+drafter=blockwise` need no download. **They demonstrate the tool and are evidence of nothing else**: see the
[pocket models' card](../MODEL_CARD.md). They work with no other weights than those whose hash they carry
(`{target}`).

| | {names} |
|---|{rules}
{rows}

Held-out text is of the standard-library modules that the pocket models never saw; accuracies are top-1 of the next
token but k, given the true tokens before it where a head reads them; the target's own next-token accuracy there is
{reference}. Beside each stands the accuracy where all earlier heads were right, which is what a draft meets.

## Recipe

{commands}

The target is frozen; the loss is against its own law at the predicted position (`loss.teacher`). `history_*.csv` has
one line per step. Seconds are of training alone, all sittings together, on a machine that did other work at the same
time; computing the hidden states took some minutes before.

```json
{recipe}
```

## Hardware

{hardware}

## Text

The Python sources named in the pocket models' card as far as they were installed, read in the target's tokens; content
hash `{corpus}`. Versions and licences of every source are in the summaries.

## Licence

As the pocket models: specdec's own (Apache-2.0), trained on sources under the licences that the summaries list.
"""


def publish_heads(folders: Sequence[Path], destination: Path) -> None:
    """Copy heads, histories and summaries, each under its folder's name, and write `MODEL_CARD.md`.

    Raises:
        UsageError: a training is not finished, or they belong to different targets or texts.
    """
    summaries: dict[str, dict[str, Any]] = {}
    for folder in folders:
        if not (folder / "summary.json").is_file():
            raise UsageError(f"{folder} has no summary.json: the training is not finished.")
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        summaries[summary["recipe"]["heads"]["name"]] = summary
    for what in (("target",), ("data", "corpus_sha256")):
        if len({str(_at(summary, what)) for summary in summaries.values()}) > 1:
            raise UsageError(f"The heads differ in {'.'.join(what)}: train them on one target and one text.")
    destination.mkdir(parents=True, exist_ok=True)
    for name, folder in zip(summaries, folders, strict=True):
        shutil.copyfile(folder / "heads.safetensors", destination / f"{name}.safetensors")
        shutil.copyfile(folder / "history.csv", destination / f"history_{name}.csv")
        shutil.copyfile(folder / "summary.json", destination / f"summary_{name}.json")
    (destination / "MODEL_CARD.md").write_text(heads_card(summaries), encoding="utf-8")


def heads_card(summaries: dict[str, dict[str, Any]]) -> str:
    """The card's text, from each heads' `summary.json` by name."""
    first = next(iter(summaries.values()))
    recipes = {
        name: {key: summary["recipe"][key] for key in ("heads", "loss", "optimizer", "data")}
        for name, summary in summaries.items()
    }
    machines = {name: hardware_line(summary["hardware"]) for name, summary in summaries.items()}
    deepest = max(summary["recipe"]["heads"]["count"] for summary in summaries.values())
    shown = {
        "parameters": lambda s: f"{s['parameters']:,}",
        "file (bytes)": lambda s: f"{s['bytes']:,}",
        "tokens trained on": lambda s: f"{s['tokens']:,}",
        "steps": lambda s: f"{s['steps']:,}",
        "training (seconds)": lambda s: f"{s['seconds']:,.0f}",
        "date": lambda s: s["date"],
        **{f"**head {k}, top-1 (given earlier)**": _accuracy(k) for k in range(1, deepest + 1)},
    }
    return CARD.format(
        target=first["target"],
        names=" | ".join(summaries),
        rules="---|" * len(summaries),
        rows="\n".join(
            f"| {label} | " + " | ".join(show(summary) for summary in summaries.values()) + " |"
            for label, show in shown.items()
        ),
        reference=f"{first['heldout']['heldout.target.top1']:.3f}",
        commands="\n".join(f"- `python -m specdec.train +heads={name}`" for name in summaries),
        recipe=json.dumps(recipes, indent=1),
        hardware="\n".join(sorted(set(machines.values()))),
        corpus=first["data"]["corpus_sha256"],
    )


def _accuracy(head: int) -> Any:
    def show(summary: dict[str, Any]) -> str:
        found = [summary["heldout"].get(f"heldout.head_{head}.top1{given}") for given in ("", "_given_earlier")]
        return "" if None in found else f"{found[0]:.3f} ({found[1]:.3f})"

    return show


def _at(values: dict[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        values = values[key]
    return values


if __name__ == "__main__":
    publish_heads([Path(folder) for folder in sys.argv[1:-1]], Path(sys.argv[-1]))

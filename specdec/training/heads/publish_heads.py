"""Copies finished heads to where the package ships them, and writes their card from their summaries.

    python -m specdec.training.heads.publish_heads models/heads/medusa models/heads/grounded specdec/pocket/heads

Every figure of the card comes from `summary.json`; none is typed by hand.
"""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.training.models.publish import copy_records, figures, finished_summary, hardware_line, table

CARD = """\
# Heads of the pocket target

Heads that draft for the pocket target from its own hidden states, so that `+drafter=medusa`, `+drafter=grounded` and
`+drafter=blockwise` need no download. **They demonstrate the tool and are evidence of nothing else**: see the
[pocket models' card](../MODEL_CARD.md). They work only with the target whose weights have the hash that they carry
(`{target}`).

| | {names} |
|---|{rules}
{rows}

The held-out text is the standard-library modules that the pocket models never saw. The top-1 accuracy of head k counts
how often its most likely token is the token k places after the next one; a head that reads earlier tokens is given the
true ones. In brackets is the accuracy where all earlier heads were right, as in a draft whose earlier tokens are
accepted. The target's own accuracy at the next token is {reference}.

## Recipe

{commands}

The target is frozen; the loss is against its own law at the predicted position (`loss.teacher`). `history_*.csv` has
one line per step. Seconds count training alone, all sittings together, on a machine that did other work at the same
time; computing the hidden states took some minutes more.

```json
{recipe}
```

## Hardware

{hardware}

## Text

The Python sources that the pocket models' card names, as far as they were installed, in the target's tokens; content
hash `{corpus}`. The summaries have the version and licence of every source.

## Licence

As the pocket models: specdec's own (Apache-2.0), trained on sources under the licences that the summaries list.
"""


def publish_heads(folders: Sequence[Path], destination: Path) -> None:
    """Copy heads, histories and summaries, each under its folder's name, and write `MODEL_CARD.md`.

    Raises:
        UsageError: a training is not finished, or the heads belong to different targets or texts.
    """
    summaries: dict[str, dict[str, Any]] = {}
    for folder in folders:
        summary = finished_summary(folder)
        summaries[summary["recipe"]["heads"]["name"]] = summary
    if len({(summary["target"], summary["data"]["corpus_sha256"]) for summary in summaries.values()}) > 1:
        raise UsageError("The heads differ in target or data.corpus_sha256: train them on one target and one text.")
    destination.mkdir(parents=True, exist_ok=True)
    for name, folder in zip(summaries, folders, strict=True):
        shutil.copyfile(folder / "heads.safetensors", destination / f"{name}.safetensors")
        copy_records(folder, destination, name)
    (destination / "MODEL_CARD.md").write_text(heads_card(summaries), encoding="utf-8")


def heads_card(summaries: dict[str, dict[str, Any]]) -> str:
    """Return the card's text, from the `summary.json` of each set of heads, by name."""
    first = next(iter(summaries.values()))
    keys = ("heads", "loss", "optimizer", "data")
    recipes = {name: {key: s["recipe"][key] for key in keys} for name, s in summaries.items()}
    machines = {hardware_line(s["hardware"]) for s in summaries.values()}
    deepest = max(s["recipe"]["heads"]["count"] for s in summaries.values())
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "parameters": lambda s: f"{s['parameters']:,}",
        "file (bytes)": lambda s: f"{s['bytes']:,}",
        **figures(),
        **{f"**head {k}, top-1 (given earlier)**": _accuracy(k) for k in range(1, deepest + 1)},
    }
    return CARD.format(
        target=first["target"],
        names=" | ".join(summaries),
        rules="---|" * len(summaries),
        rows=table(shown, summaries.values()),
        reference=f"{first['heldout']['heldout.target.top1']:.3f}",
        commands="\n".join(f"- `python -m specdec.train +heads={name}`" for name in summaries),
        recipe=json.dumps(recipes, indent=1),
        hardware="\n".join(sorted(machines)),
        corpus=first["data"]["corpus_sha256"],
    )


def _accuracy(head: int) -> Callable[[dict[str, Any]], str]:
    def show(summary: dict[str, Any]) -> str:
        found = [summary["heldout"].get(f"heldout.head_{head}.top1{given}") for given in ("", "_given_earlier")]
        return "" if None in found else f"{found[0]:.3f} ({found[1]:.3f})"

    return show


if __name__ == "__main__":
    publish_heads([Path(folder) for folder in sys.argv[1:-1]], Path(sys.argv[-1]))

"""Copies finished heads and feature drafters to where the package ships them, and writes the card of all.

    python -m specdec.training.heads.publish_heads models/heads/medusa models/heads/grounded models/eagle/pocket \
        specdec/pocket/heads

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
# Heads and a feature drafter of the pocket target

They draft for the pocket target from its own hidden states, so that `+drafter=medusa`, `+drafter=grounded`,
`+drafter=blockwise` and `+drafter=eagle` need no download. **They demonstrate the tool and are evidence of nothing
else**: see the [pocket models' card](../MODEL_CARD.md). They work only with the target whose weights have the hash that
they carry (`{target}`).

| | {names} |
|---|{rules}
{rows}

The held-out text is the standard-library modules that the pocket models never saw. The top-1 accuracy of head k, or of
step k of the feature drafter, counts how often its most likely token is the token k places after the next one, the
top-5 accuracy how often one of its five most likely tokens is; what reads earlier tokens is given the true ones. In
brackets is the accuracy where all earlier heads or steps were right, as in a draft whose earlier tokens are accepted.
The target's own accuracy at the next token is {reference}. Notebook 04 has both over training, and intervals.

## Recipe

{commands}

The target is frozen; the loss is against its own law at the predicted position (`loss.teacher`). `history_*.csv` has
one line per step. Seconds count training alone, all sittings together; computing the hidden states took some minutes
more.

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
        summaries[shipped_name(summary)] = summary
    if len({(summary["target"], summary["data"]["corpus_sha256"]) for summary in summaries.values()}) > 1:
        raise UsageError("The heads differ in target or data.corpus_sha256: train them on one target and one text.")
    destination.mkdir(parents=True, exist_ok=True)
    for name, folder in zip(summaries, folders, strict=True):
        shutil.copyfile(folder / f"{kind_of(summaries[name])}.safetensors", destination / f"{name}.safetensors")
        copy_records(folder, destination, name)
    (destination / "MODEL_CARD.md").write_text(heads_card(summaries), encoding="utf-8")


def heads_card(summaries: dict[str, dict[str, Any]]) -> str:
    """Return the card's text, from the `summary.json` of each, by name."""
    first = next(iter(summaries.values()))
    recipes = {
        name: {key: s["recipe"][key] for key in (kind_of(s), "loss", "optimizer", "data")}
        for name, s in summaries.items()
    }
    machines = {hardware_line(s["hardware"]) for s in summaries.values()}
    deepest = max(map(_depth, summaries.values()))
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "parameters": lambda s: f"{s['parameters']:,}",
        "file (bytes)": lambda s: f"{s['bytes']:,}",
        **figures(),
        **{f"**head or step {k}, top-1 (given earlier)**": _accuracy(k, 1) for k in range(1, deepest + 1)},
        **{f"head or step {k}, top-5 (given earlier)": _accuracy(k, 5) for k in range(1, deepest + 1)},
    }
    return CARD.format(
        target=first["target"],
        names=" | ".join(summaries),
        rules="---|" * len(summaries),
        rows=table(shown, summaries.values()),
        reference=f"{first['heldout']['heldout/target.top1']:.3f}",
        commands="\n".join(f"- `python -m specdec.train {_choice(summary)}`" for summary in summaries.values()),
        recipe=json.dumps(recipes, indent=1),
        hardware="\n".join(sorted(machines)),
        corpus=first["data"]["corpus_sha256"],
    )


def kind_of(summary: dict[str, Any]) -> str:
    """Return the key of a summary's recipe that says what was trained: heads or eagle."""
    return "heads" if "heads" in summary["recipe"] else "eagle"


def shipped_name(summary: dict[str, Any]) -> str:
    """Return the name under which a training's results are shipped: of heads their own, otherwise that of the kind."""
    kind = kind_of(summary)
    return str(summary["recipe"][kind]["name"]) if kind == "heads" else kind


def _choice(summary: dict[str, Any]) -> str:
    kind = kind_of(summary)
    return f"+{kind}={summary['recipe'][kind]['name']}"


def _depth(summary: dict[str, Any]) -> int:
    recipe = summary["recipe"]
    return int(recipe["heads"]["count"] if "heads" in recipe else recipe["loss"]["steps"])


def _accuracy(head: int, top: int) -> Callable[[dict[str, Any]], str]:
    def show(summary: dict[str, Any]) -> str:
        one = "head" if kind_of(summary) == "heads" else "step"
        found = [summary["heldout"].get(f"heldout/{one}_{head}.top{top}{given}") for given in ("", "_given_earlier")]
        return "" if None in found else f"{found[0]:.3f} ({found[1]:.3f})"

    return show


if __name__ == "__main__":
    publish_heads([Path(folder) for folder in sys.argv[1:-1]], Path(sys.argv[-1]))

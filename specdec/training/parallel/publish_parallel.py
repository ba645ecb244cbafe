"""Copies a finished training of a model that drafts in parallel to where the package ships it, and writes its card.

    python -m specdec.training.parallel.publish_parallel models/parallel/pocket specdec/pocket

Every figure of the card comes from `summary.json`; none is typed by hand.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec.training.models.publish import copy_model, copy_records, figures, finished_summary, hardware_line, table

NAME = "parallel"  # of the folder, and the end of the names of history and summary
CARD = """\
# The pocket drafter, drafting in parallel

The [pocket drafter](../MODEL_CARD.md), adapted to draft all tokens of a round in one call over mask tokens (PARD,
2504.18583), so that `+drafter=parallel` needs no download. **It demonstrates the tool and is evidence of nothing
else.** Shape, tokenizer and context are the pocket drafter's. The mask token is {mask_token}, in `config.json` as
`pard_token`: a byte that UTF-8 text never holds.

| | |
|---|---|
{rows}

The tokens are those of the text; with the masks behind them, {inputs:,} tokens went through the model. Training the
pocket drafter came first, and its tokens and seconds are on its own card.

| draft token | masks read | top-1 | top-1 where all earlier ones were right | nats per token |
|---|---|---|---|---|
{accuracies}

Draft token k is read behind k - 1 masks. The held-out text is the standard-library modules that the pocket models never
saw; the shipped bfloat16 weights are scored, in float32, in sequences of {length} tokens. A dash stands where the
earlier tokens never were all right.

## Recipe

`python -m specdec.train +parallel={name}`. Subtask k of the training predicts the token k + 1 places ahead from k
masks, and is kept behind a share max(keep^k, keep_least) of the positions. The loss is the mean cross entropy over all
that is kept.
`history_parallel.csv` has one line per step. Seconds count training alone, all sittings together, on a machine that did
other work at the same time.

```json
{recipe}
```

## Hardware

{hardware}

## Text

The Python sources that the pocket models' card names, as far as they were installed; content hash `{corpus}`.
`summary_parallel.json` has the version and licence of every source.

## Licence

As the pocket models: specdec's own (Apache-2.0), trained on sources under the licences that the summary lists.
"""


def publish_parallel(folder: Path, destination: Path) -> None:
    """Copy model, history and summary of a finished training, and write `MODEL_CARD.md` into the model's folder.

    Raises:
        UsageError: the training is not finished.
    """
    summary = finished_summary(folder)
    place = destination / NAME
    copy_model(folder, place)
    copy_records(folder, destination, NAME)
    (place / "MODEL_CARD.md").write_text(parallel_card(summary), encoding="utf-8")


def parallel_card(summary: dict[str, Any]) -> str:
    """Return the card's text, from a `summary.json`."""
    recipe, heldout = summary["recipe"], summary["heldout"]
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "parameters": lambda s: f"{s['parameters']:,}",
        "files (bytes)": lambda s: f"{s['bytes']:,}",
        **figures(),
    }
    data = {key: value for key, value in recipe["data"].items() if key != "source"}
    lines = []
    for k in range(1, recipe["parallel"]["ahead"] + 1):
        names = ("top1", "top1_given_earlier", "nats_per_token")
        found = [heldout.get(f"heldout/token_{k}.{name}") for name in names]
        cells = ["-" if value is None else f"{value:.3f}" for value in found]
        lines.append("| " + " | ".join([str(k), str(k - 1), *cells]) + " |")
    return CARD.format(
        mask_token=summary["mask_token"],
        rows=table(shown, [summary]),
        inputs=summary["inputs"],
        accuracies="\n".join(lines),
        length=recipe["data"]["sequence_length"],
        name=recipe["parallel"]["name"],
        recipe=json.dumps({"parallel": recipe["parallel"], "data": data, "optimizer": recipe["optimizer"]}, indent=1),
        hardware=hardware_line(summary["hardware"]),
        corpus=summary["data"]["corpus_sha256"],
    )


if __name__ == "__main__":
    publish_parallel(Path(sys.argv[1]), Path(sys.argv[2]))

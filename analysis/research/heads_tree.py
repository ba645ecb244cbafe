"""The trees that heads fill: found by search in two ways, drawn by hand, or a Cartesian product of choices. Reads
`results/heads_tree.json`, which holds counts of every prompt, so that each figure is made anew.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specdec.errors import UsageError
from specdec.theory.path_trees import RankPath

from ..findings import Section, counted
from ..intervals import Columns, Interval, bootstrap

RESULT = Path(__file__).parents[1] / "results" / "heads_tree.json"
COMMAND = "python -m pytest -n 0 -m benchmark tests/benchmarks/test_heads_tree.py"
DRAWN, CHANCES, JOINT, CARTESIAN = "drawn by hand", "found by chances", "found jointly", "product"
ACCURACY = "accuracy"
PUBLISHED = "Medusa (2401.10774, section 3.3.1) found a sparse tree of 64 nodes faster than a dense one of 256"

OWN = f"{JOINT}, own"
Measured = Mapping[str, Any]
"""The benchmark's entry for one kind of heads and one tree."""


def load_trees(path: Path | str = RESULT) -> list[dict[str, Any]]:
    """Return the entries of a result file: one for each kind of heads and tree, and one with the counts of each kind.

    Raises:
        UsageError: there is no such file, or it holds something else.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))["figures"]
        for each in trees_of(found):
            _counts(each)
    except FileNotFoundError:
        raise UsageError(f"The trees of heads {path} do not exist: `{COMMAND}` makes them.") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} holds no trees of heads: `{COMMAND}` makes them.") from None
    return list(found)


def trees_of(found: Sequence[Measured], heads: str | None = None) -> list[Measured]:
    """Return the entries of trees, of one kind of heads or of all."""
    return [each for each in found if each["shape"] != ACCURACY and heads in (None, each["heads"])]


def searched_accuracy(found: Sequence[Measured]) -> list[list[float]]:
    """Return the chances by depth and rank that the searched tree is built from, both kinds of heads together."""
    return next([list(level) for level in each["accuracy"]] for each in found if each["shape"] == ACCURACY)


def searched_paths(found: Sequence[Measured]) -> dict[str, list[RankPath]]:
    """Return by kind of heads the rank paths that its trees are searched with, each as often as it was counted."""
    counts = {each["heads"]: each["paths"] for each in found if each["shape"] == ACCURACY}
    return {
        heads: [tuple(map(int, path.split())) for path, times in each.items() for _ in range(times)]
        for heads, each in counts.items()
    }


def _counts(measured: Measured, suffix: str = "") -> pd.DataFrame:
    """Return tokens and rounds by prompt."""
    counts = measured["by_prompt"]
    columns = {f"tokens{suffix}": counts["tokens"], f"rounds{suffix}": counts["rounds"]}
    return pd.DataFrame(columns, index=counts["prompts"]).astype(float)


def tokens_per_round(measured: Measured) -> Interval:
    """Return the tokens per round of one entry."""
    return bootstrap(_counts(measured), lambda sums: {"rate": sums["tokens"] / sums["rounds"]})["rate"]


def gain(first: Measured, second: Measured) -> Interval:
    """Return tokens per round of the first tree less the second's, the same prompts resampled for both."""
    table = _counts(first, "_first").join(_counts(second, "_second"), how="inner")

    def values(sums: Columns) -> Mapping[str, np.ndarray]:
        rate = {side: sums[f"tokens_{side}"] / sums[f"rounds_{side}"] for side in ("first", "second")}
        return {"gain": rate["first"] - rate["second"]}

    return bootstrap(table, values)["gain"]


def tree_sections(path: Path | str = RESULT) -> tuple[Section, ...]:
    """Return the section on trees of heads; where there is no result yet, one that says what makes it."""
    title = "Which tree for heads"
    try:
        found = load_trees(path)
    except UsageError as error:
        return (Section(title, (str(error),)),)
    kinds = list(dict.fromkeys(each["heads"] for each in trees_of(found)))
    by_kind = {heads: {each["shape"]: each for each in trees_of(found, heads)} for heads in kinds}
    searched = next(each for each in found if each["shape"] == ACCURACY)
    judged = counted(len(by_kind[kinds[0]][JOINT]["by_prompt"]["prompts"]), "prompt")
    text = (
        " ".join(_by_hand(heads, trees) for heads, trees in by_kind.items()),
        "The joint search counts at every position which choices of the heads are right one after the other, and takes "
        "the nodes that most of these rank paths pass through, so that no tree of as many nodes has a larger mean "
        "accepted length at these positions. The search by chances takes the largest products of each head's, as "
        "Medusa's does (2401.10774, section 2.3.3), as if heads were right independently of one another. Both count "
        f"along {counted(len(searched['searched_on']), 'prompt')}; the trees are judged on {judged} that they never "
        "saw, in the rounds that greedy decoding takes. Intervals are 95% prompt-bootstrap intervals, differences "
        "paired by prompt.",
        " ".join(_products(heads, trees) for heads, trees in by_kind.items()) + f" {PUBLISHED}.",
    )
    caption = "Tokens per round; in the last column those beyond the tree of as many nodes that was found by chances"
    return (Section(title, text, ((caption, _table(by_kind)),)),)


def _by_hand(heads: str, trees: Mapping[str, Measured]) -> str:
    found, drawn, chances, own = (trees[shape] for shape in (JOINT, DRAWN, CHANCES, OWN))
    return (
        f"With {heads} heads the tree of {found['nodes']} nodes that was found jointly for all heads yields "
        f"{tokens_per_round(found):.3f} tokens per round, {gain(found, drawn):+.3f} beyond the one that was drawn by "
        f"hand; the one found by chances {gain(chances, drawn):+.3f}, the one found jointly for these heads alone "
        f"{gain(own, drawn):+.3f}."
    )


def _products(heads: str, trees: Mapping[str, Measured]) -> str:
    """Set the largest Cartesian product against the best small tree."""
    dense = max(_dense(trees), key=lambda each: int(each["nodes"]))
    sparse = _by_chances(trees, 64)
    fewer = gain(sparse, dense)
    return (
        f"With {heads} heads the best tree of {sparse['nodes']} nodes yields {tokens_per_round(sparse):.2f} tokens per "
        f"round, {fewer:+.3f} beside the full product of {dense['nodes']}, whose calls evaluate "
        f"{(dense['nodes'] + 1) / (sparse['nodes'] + 1):.1f} times as many tokens."
    )


def _dense(trees: Mapping[str, Measured]) -> list[Measured]:
    return [each for shape, each in trees.items() if shape.startswith(CARTESIAN)]


def _by_chances(trees: Mapping[str, Measured], most: int) -> Measured:
    """Return the largest tree found by chances that has at most `most` nodes."""
    mine = [each for shape, each in trees.items() if shape.startswith(CHANCES)]
    return max((each for each in mine if int(each["nodes"]) <= most), key=lambda each: int(each["nodes"]))


def _table(by_kind: Mapping[str, Mapping[str, Measured]]) -> pd.DataFrame:
    lines = []
    for heads, trees in by_kind.items():
        for shape, each in trees.items():
            best = _by_chances(trees, int(each["nodes"]))
            beyond = f"{gain(each, best):+.3f}" if each is not best and best["nodes"] == each["nodes"] else ""
            lines.append(
                {
                    "heads": heads,
                    "tree": shape,
                    "nodes": each["nodes"],
                    "depth": each["depth"],
                    "tokens per round": f"{tokens_per_round(each):.3f}",
                    "beyond the one by chances": beyond,
                }
            )
    return pd.DataFrame(lines)

"""The trees that heads fill: found by search in two ways, drawn by hand, or a Cartesian product of choices. Reads
`results/heads_tree.json`, which holds counts of every prompt, so that each figure is made anew.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from specdec.errors import UsageError

from ..sections import Section, counted
from .committed import RESULTS, Measured, load_figures
from .heads_ablation import difference, tokens_per_round

RESULT = RESULTS / "heads_tree.json"
DRAWN, CHANCES, JOINT, CARTESIAN = "drawn by hand", "found by chances", "found jointly", "product"
ACCURACY = "accuracy"
PUBLISHED = "Medusa (2401.10774, section 3.3.1) found a sparse tree of 64 nodes faster than a dense one of 256"
OWN = f"{JOINT}, own"


def load_trees(path: Path | str = RESULT) -> dict[str, dict[str, Measured]]:
    """Return the entries of a result file by kind of heads and shape: the trees, and under `ACCURACY` the counts that
    they were found by. UsageError as of `load_figures`.
    """
    kinds: dict[str, dict[str, Measured]] = {}
    with load_figures(path, "test_heads_tree", "trees of heads", "trees of heads") as entries:
        for entry in entries:
            kinds.setdefault(entry["heads"], {})[entry["shape"]] = entry
    return kinds


def tree_sections(path: Path | str = RESULT) -> tuple[Section, ...]:
    """Return the section on trees of heads; where there is no result yet, one that says what makes it."""
    title = "Which tree for heads"
    try:
        kinds = load_trees(path)
    except UsageError as error:
        return (Section(title, (str(error),)),)
    drawn_by_hand, products, lines = [], [], []
    for heads, trees in kinds.items():
        searched = trees.pop(ACCURACY)  # on the same prompts for all kinds of heads
        joint, drawn = trees[JOINT], trees[DRAWN]
        judged = counted(len(joint["by_prompt"]["prompts"]), "prompt")  # the same for all kinds of heads
        beyond = {shape: f"{difference(trees[shape], drawn):+.3f}" for shape in (JOINT, CHANCES, OWN)}
        drawn_by_hand.append(
            f"With {heads} heads the tree of {joint['nodes']} nodes that was found jointly for all heads yields "
            f"{tokens_per_round(joint):.3f} tokens per round, {beyond[JOINT]} beyond the one that was drawn by hand; "
            f"the one found by chances {beyond[CHANCES]}, the one found jointly for these heads alone {beyond[OWN]}."
        )
        cartesian = [tree for shape, tree in trees.items() if shape.startswith(CARTESIAN)]
        dense = max(cartesian, key=lambda tree: int(tree["nodes"]))
        sparse = _by_chances(trees, 64)
        products.append(
            f"With {heads} heads the best tree of {sparse['nodes']} nodes yields {tokens_per_round(sparse):.2f} tokens "
            f"per round, {difference(sparse, dense):+.3f} beside the full product of {dense['nodes']}, whose calls "
            f"evaluate {(dense['nodes'] + 1) / (sparse['nodes'] + 1):.1f} times as many tokens."
        )
        for shape, tree in trees.items():
            best = _by_chances(trees, int(tree["nodes"]))
            beside = tree is not best and best["nodes"] == tree["nodes"]
            gained = f"{difference(tree, best):+.3f}" if beside else ""
            lines.append((heads, shape, tree["nodes"], tree["depth"], f"{tokens_per_round(tree):.3f}", gained))
    text = (
        " ".join(drawn_by_hand),
        "The joint search counts at every position which choices of the heads are right one after the other, and takes "
        "the nodes that most of these rank paths pass through, so that no tree of as many nodes has a larger mean "
        "accepted length at these positions. The search by chances takes the largest products of each head's, as "
        "Medusa's does (2401.10774, section 2.3.3), as if heads were right independently of one another. Both count "
        f"along {counted(len(searched['searched_on']), 'prompt')}; the trees are judged on {judged} that they never "
        "saw, in the rounds that greedy decoding takes. Intervals are 95% prompt-bootstrap intervals, differences "
        "paired by prompt.",
        f"{' '.join(products)} {PUBLISHED}.",
    )
    caption = "Tokens per round; in the last column those beyond the tree of as many nodes that was found by chances"
    columns = ["heads", "tree", "nodes", "depth", "tokens per round", "beyond the one by chances"]
    return (Section(title, text, ((caption, pd.DataFrame(lines, columns=columns)),)),)


def _by_chances(trees: Mapping[str, Measured], most: int) -> Measured:
    """Return the largest tree found by chances that has at most `most` nodes."""
    mine = [entry for shape, entry in trees.items() if shape.startswith(CHANCES)]
    return max((entry for entry in mine if int(entry["nodes"]) <= most), key=lambda entry: int(entry["nodes"]))

"""Trees of heads from their counts: the tree that comes along was found, and is judged by paired gains."""

from fixtures.small_parts import composed_values
from oracles.path_trees import tree_of_paths

from specdec.analysis.research import heads_tree
from specdec.analysis.research.heads_ablation import difference
from specdec.analysis.research.heads_tree import ACCURACY, CHANCES, DRAWN, JOINT, OWN
from specdec.structures import structures
from specdec.theory.trees import best_tree


def test_the_trees_that_come_along_are_those_that_were_judged():
    """`structure=heads_medusa` is the best tree for the rank paths in the results, `structure=heads` the drawn one."""

    def shipped(name: str) -> list[int]:
        return list(structures.build(composed_values(f"structure={name}")["structure"]).tree.parents)

    found = heads_tree.load_trees()
    counted = {heads: own.pop(ACCURACY) for heads, own in found.items()}
    trees = {(heads, shape): each for heads, own in found.items() for shape, each in own.items()}
    (section,) = heads_tree.tree_sections()
    assert section.text and len(section.tables[0][1]) == len(trees)
    paths = {
        heads: [tuple(map(int, path.split())) for path, times in each["paths"].items() for _ in range(times)]
        for heads, each in counted.items()
    }
    judged = {name: each["parents"] for name, each in trees.items()}
    assert shipped("heads_medusa") == judged["medusa", OWN] == list(tree_of_paths(paths["medusa"], 8).parents)
    assert shipped("heads") == judged["grounded", DRAWN] == judged["medusa", DRAWN]
    both = list(tree_of_paths(paths["medusa"] + paths["grounded"], 8).parents)
    assert judged["medusa", JOINT] == judged["grounded", JOINT] == both
    chances = list(best_tree(counted["medusa"]["accuracy"], 8, 4).parents)
    assert judged["medusa", CHANCES] == judged["grounded", CHANCES] == chances
    # The YAMLs of the trees say these differences.
    for heads, gain in (("medusa", "0.091 (0.058 to 0.122)"), ("grounded", "-0.014 (-0.036 to 0.004)")):
        assert f"{difference(trees[heads, OWN], trees[heads, DRAWN]):.3f}" == gain
    assert difference(trees["grounded", JOINT], trees["grounded", DRAWN]).low < 0

"""The tree of `structure=heads`, found by search, and what it gains over one drawn by hand, for notebook 04.

The shipped heads' first, second, ... choices are counted along one half of the prompts, each rank apart and whole rank
paths, trees are built from both counts, and judged in the rounds of the other half, on which greedy decoding takes
exactly those; some minutes.
"""

from collections import Counter

import pytest
import torch
from fixtures.small_parts import composed
from oracles.path_trees import tree_of_paths

from specdec.analysis.research.heads_tree import CARTESIAN, CHANCES, DRAWN, JOINT
from specdec.clock import CpuClock
from specdec.plan.plan import plan
from specdec.records import Request
from specdec.replay.expected_rounds import TextReplay
from specdec.replay.rank_accuracy import rank_counts, rank_walk, total
from specdec.replay.walk import TextReading
from specdec.session.parts import open_parts
from specdec.structures import structures
from specdec.structures.tree import given
from specdec.studies.base.contract import halves_of
from specdec.text.streams import Stream
from specdec.theory.trees import best_tree

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

PROMPTS, TOKENS, RANKS, DEPTH, NODES = 40, 96, 10, 4, 8
HEADS = ("medusa", "grounded")
BY_HAND = (-1, -1, -1, 0, 0, 1, 3, 6)
PRODUCTS = ((4, 3, 2), (2, 2, 2, 2), (4, 4, 4, 4))


def parts(name):
    settings = [f"+drafter={name}", f"prompts.limit={PROMPTS}", f"measurement.max_new_tokens={TOKENS}"]
    settings += ["target.device=cpu", "target.dtype=float32", "measurement.gammas=[]"]
    return open_parts(plan(composed(*settings)))


@pytest.fixture(scope="module")
def built():
    torch.set_num_threads(1)
    return {name: parts(name) for name in HEADS}


@pytest.fixture(scope="module")
def halves(built):
    """Greedy texts of the prompts: those to search on, those to judge on."""
    streams, first = [], built[HEADS[0]]
    for prompt in first.prompts.prompts:
        answer = first.baseline.decode(Request(prompt.tokens, TOKENS), CpuClock())
        ended = answer.finish == "end_token"
        streams.append(Stream(prompt.id, prompt.category, answer.prompt, answer.tokens, ended=ended))
    half = halves_of(streams)
    return [[stream for stream in streams if half[stream.id] == number] for number in (0, 1)]


@pytest.fixture(scope="module")
def searched(built, halves):
    """By kind of heads: the counts of ranks, and the rank path at every position of the texts to search on."""
    found = {}
    for name, each in built.items():
        drafter, target = each.primary.drafter, each.target
        sizes = TOKENS, RANKS, DEPTH
        paths = [path for text in halves[0] for path, _ in rank_walk(drafter, target, text, *sizes, every=True)]
        found[name] = rank_counts(drafter, target, halves[0], TOKENS, RANKS, DEPTH, DEPTH), paths
    return found


def shapes(accuracy, paths, own):
    """(name, structure): as many nodes by hand, by search on both kinds of heads, by chances and jointly, and by joint
    search on these heads alone; and for each Cartesian product the best trees of at most as many nodes.
    """
    yield DRAWN, given(BY_HAND)
    yield CHANCES, given(best_tree(accuracy, NODES, DEPTH).parents)
    yield JOINT, given(tree_of_paths(paths, NODES).parents)
    yield f"{JOINT}, own", given(tree_of_paths(own, NODES).parents)
    for widths in PRODUCTS:
        values = {"name": "expansion", "widths": list(widths), "nodes": 1000}
        size = structures.build(values).nodes
        yield f"{CARTESIAN} {'x'.join(map(str, widths))}", values
        for nodes in {size, min(size, 64)}:
            yield f"{CHANCES} {nodes}", given(best_tree(accuracy, nodes, DEPTH).parents)


@pytest.mark.parametrize("name", HEADS)
def test_trees_by_hand_by_search_and_by_product(name, built, halves, searched, log_figure):
    counts, paths = ({kind: pair[part] for kind, pair in searched.items()} for part in (0, 1))
    accuracy = total(list(counts.values())).accuracy(DEPTH)
    target, drafter = built[name].target, built[name].primary.drafter
    reading = TextReading(target)
    named = dict(shapes(accuracy, [path for each in paths.values() for path in each], paths[name]))
    trees = {shape: structures.build(values) for shape, values in named.items()}
    rounds = {shape: [] for shape in trees}
    for stream in halves[1]:
        request = Request(stream.prompt, stream.limit(TOKENS))
        for shape, structure in trees.items():
            replay = TextReplay(drafter, target, structure, stream.generated, request, reading)
            rounds[shape].append(int(replay.rounds(CpuClock()).rounds))
    tokens = [len(stream.generated) for stream in halves[1]]
    for shape, structure in trees.items():
        found = {"nodes": structure.nodes, "depth": structure.gamma, "parents": list(structure.tree.parents)}
        by_prompt = {"prompts": [s.id for s in halves[1]], "tokens": tokens, "rounds": rounds[shape]}
        log_figure(heads=name, shape=shape, **found, by_prompt=by_prompt)
    log_figure(
        **{"heads": name, "shape": "accuracy", "searched_on": [stream.id for stream in halves[0]]},
        **{"tested": counts[name].tested, "hits": counts[name].hits},
        accuracy=[[round(chance, 3) for chance in level] for level in accuracy],
        paths=dict(sorted(Counter(" ".join(map(str, path)) for path in paths[name]).items())),
    )
    assert sum(rounds[JOINT]) > 0

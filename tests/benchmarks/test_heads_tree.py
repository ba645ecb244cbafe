"""The tree of `structure=heads_searched`, and what it gains over that of `structure=heads`, for notebook 04:
`analysis/results/heads_tree.json`. `conf/structure/heads_searched.yaml` has the accuracies that are found here.

Run by hand: `python -m pytest -n 0 -m benchmark tests/benchmarks/test_heads_tree.py`; some minutes. The shipped heads'
first, second, ... choices are counted in the rounds of one half of the prompts, trees are built from the counts, and
judged in the rounds of the other half, on which greedy decoding takes exactly those.
"""

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from specdec.analysis.heads.heads_tree import CARTESIAN, DRAWN, SEARCHED
from specdec.clock import CpuClock
from specdec.config import RunConfig, config_dir, validated
from specdec.experiment.parts import build
from specdec.records import Request
from specdec.replay.answers import TextStates
from specdec.replay.expected_rounds import rounds_along
from specdec.replay.rank_accuracy import Fed, rank_counts, total
from specdec.structures import structures
from specdec.structures.tree import given
from specdec.studies.base.candidates import halves_of
from specdec.text.streams import Stream
from specdec.theory.trees import best_tree

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

PROMPTS, TOKENS, RANKS, DEPTH, NODES = 40, 96, 10, 4, 8
HEADS = ("medusa", "grounded")
BY_HAND = (-1, -1, -1, 0, 0, 1, 3, 6)  # the tree of structure=heads
PRODUCTS = ((4, 3, 2), (2, 2, 2, 2), (4, 4, 4, 4))


def parts(name):
    settings = [f"+drafter={name}", f"prompts.limit={PROMPTS}", f"measurement.max_new_tokens={TOKENS}"]
    settings += ["target.device=cpu", "target.dtype=float32", "measurement.gammas=[]"]
    with initialize_config_dir(config_dir(), version_base="1.3"):
        composed = compose("config", overrides=settings)
    return build(validated(RunConfig, OmegaConf.to_container(composed, resolve=True)))


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
def counts(built, halves):
    found = {}
    for name, each in built.items():
        fed = Fed(each.primary.drafter, each.target)
        found[name] = rank_counts(fed, halves[0], TOKENS, RANKS, DEPTH, DEPTH)
    return found


def shapes(accuracy, own):
    """(name, structure): as many nodes by hand, by search on both kinds of heads, and by search on these alone; and for
    each Cartesian product the best trees of at most as many nodes."""
    yield DRAWN, given(BY_HAND)
    yield SEARCHED, given(best_tree(accuracy, NODES, DEPTH).parents)
    yield f"{SEARCHED}, own", given(best_tree(own, NODES, DEPTH).parents)
    for widths in PRODUCTS:
        values = {"name": "expansion", "widths": list(widths), "nodes": 1000}
        size = structures.build(values).nodes
        yield f"{CARTESIAN} {'x'.join(map(str, widths))}", values
        for nodes in {size, min(size, 64)}:
            yield f"{SEARCHED} {nodes}", given(best_tree(accuracy, nodes, DEPTH).parents)


@pytest.mark.parametrize("name", HEADS)
def test_trees_by_hand_by_search_and_by_product(name, built, halves, counts, log_figure):
    accuracy = total(list(counts.values())).accuracy(DEPTH)
    target, drafter = built[name].target, built[name].primary.drafter
    states, found = TextStates(target), {}
    named = dict(shapes(accuracy, counts[name].accuracy(DEPTH)))
    trees = {shape: structures.build(values) for shape, values in named.items()}
    rounds = {shape: [] for shape in trees}
    for stream in halves[1]:
        request = Request(stream.prompt, stream.limit(TOKENS))
        for shape, structure in trees.items():
            where = (drafter, target, structure, stream.generated, request, CpuClock(), states)
            rounds[shape].append(int(rounds_along(*where).rounds))
    tokens = [len(stream.generated) for stream in halves[1]]
    for shape, structure in trees.items():
        found = {"nodes": structure.nodes, "depth": structure.gamma, "parents": list(structure.tree.parents)}
        by_prompt = {"prompts": [s.id for s in halves[1]], "tokens": tokens, "rounds": rounds[shape]}
        log_figure(heads=name, shape=shape, **found, by_prompt=by_prompt)
    log_figure(
        heads=name,
        shape="accuracy",
        searched_on=[stream.id for stream in halves[0]],
        tested=counts[name].tested,
        hits=counts[name].hits,
        accuracy=[[round(chance, 3) for chance in level] for level in accuracy],
    )
    assert sum(rounds[SEARCHED]) > 0

"""Drafts of every structure are timed equally often, in turn with calls, and nothing is left behind."""

import pytest
import torch

from specdec.clock import SimulatedClock
from specdec.drafters import Drafter
from specdec.drafters.base import DrafterCapabilities
from specdec.records import EMPTY, Draft
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.timing.shapes import time_drafts
from specdec.timing.timer import Timer

PROMPT = [7, 3, 19, 44, 3, 19, 52]


class Turns(SimulatedClock):
    """Reads 1, 2, 3, ..., and what a drafter adds."""

    def mark(self):
        self.advance(1.0)
        return super().mark()


class Slow(Drafter):
    """Every draft takes two seconds for each level and one for each node, and half as much again the first time."""

    capabilities = DrafterCapabilities(fills=frozenset({"tree", "chain"}))

    def __init__(self, clock):
        self.clock, self.seen = clock, set()

    def draft(self, structure):
        cost = 2 * structure.gamma + structure.nodes
        self.clock.advance(cost if structure in self.seen else 1.5 * cost)
        self.seen.add(structure)
        return Draft(torch.zeros(len(structure.tree), dtype=torch.long), structure.tree) if structure.nodes else EMPTY


def timer(clock, calls):
    return Timer(clock, calls, generator_for(0, "drafts", "cost"))


@pytest.mark.parametrize("evaluation", ["packed", "rows"])
def test_every_structure_is_timed_apart_from_its_first_draft(tiny_model, sampling, make_structure, evaluation):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0), evaluation=evaluation)
    clock = Turns()
    shapes = [make_structure("tree", 3), make_structure("chain", 2), make_structure("tree", 1)]
    table = time_drafts(target, Slow(clock), shapes, PROMPT, timer(clock, 4))
    assert table.groupby("structure")["call"].apply(sorted).tolist() == [[0, 1, 2, 3]] * 3
    assert table["drafted"].tolist() == table["nodes"].tolist()
    assert dict(zip(table["structure"], table["nodes"], strict=True)) == {0: 6, 1: 2, 2: 2}
    assert (table["seconds"] == 1 + 2 * table["depth"] + table["nodes"]).all()
    orders = table.sort_index().groupby("call")["structure"].apply(tuple)
    assert len(set(orders)) > 1, "in random order"
    assert target.decoder.length == len(PROMPT) - 1


def test_a_drafter_that_reads_states_is_given_them(tiny_model, sampling, make_structure):
    class Reader(Slow):
        capabilities = DrafterCapabilities(fills=frozenset({"chain"}), reads_states=True)

        def start(self, text, states=None):
            self.read_of = states.shape

    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    target.hidden.keep(0)
    clock = Turns()
    reader = Reader(clock)
    time_drafts(target, reader, [make_structure("chain", 1)], PROMPT, timer(clock, 1))
    assert tuple(reader.read_of) == (len(PROMPT) - 1, 32)

"""The work that peers of every engine are given: a prompt, a chain, and a drafter of our own beside a target."""

from types import SimpleNamespace

from fixtures.drafting import decoded

from specdec.drafters.none import NoDrafter
from specdec.peers import Work
from specdec.prompts import Prompt
from specdec.structures import structures

PROMPT = Prompt("p/0", "p", "", (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5))
LIMIT, GAMMA = 24, 3
LONGEST = len(PROMPT.tokens) + LIMIT
CHAIN = structures.build({"name": "chain", "gamma": GAMMA})
KINDS = {  # our drafter: method and gamma that each kind of peer is set against
    "none": {"generate": ("baseline", 0)},
    "ngram": {"generate": ("baseline", 0), "prompt_lookup": ("ngram", GAMMA)},
    "small_model": {"generate": ("baseline", 0), "assisted": ("small_model", GAMMA)},
}


def ours(target):
    """Return the text that we decode greedily."""
    return decoded(target, NoDrafter(), CHAIN.resized(0), PROMPT.tokens, LIMIT).tokens


def work(target, name="none", model=None, structure=CHAIN, longest=LONGEST, translation=None):
    """Return the work of a drafter of this name, whose matches have up to 7 tokens, or which runs this model."""
    drafter = SimpleNamespace(model=model, translation=translation)
    return Work(target, drafter, {"name": name, "q": "auto", "order_max": 7}, structure, LIMIT, longest, 5)

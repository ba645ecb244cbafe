"""The target whose texts are replayed, and all outcomes of live decoding."""

from collections import Counter, defaultdict

import pytest
from fixtures.decoding import decode
from fixtures.drafting import chain

from specdec.targets.causal import Causal


@pytest.fixture(scope="module")
def target(tiny_model, sampling):
    return Causal(tiny_model("llama"), sampling(temperature=0.0))


@pytest.fixture
def live_rounds(enumeration):
    """`live_rounds(target, drafter, prompt, limit)` decodes with chains of two in all ways; it gives for each text the
    mean number of rounds, given the text, that offer n tokens, by n.
    """

    def law(target, drafter, prompt, limit):
        def live():
            draws = dict.fromkeys(("draft_generator", "accept_generator"), enumeration.generator)
            made = decode(target, drafter, chain(2), prompt, limit, "speculative_sampling", **draws)
            return made.tokens, tuple(len(row.draft_tokens) for row in made.rounds)

        chance, offered = defaultdict(float), defaultdict(Counter)
        for (tokens, offers), weight in enumeration.law(live).items():
            chance[tokens] += weight
            for size in offers:
                offered[tokens][size] += weight
        return {text: {size: sum_ / chance[text] for size, sum_ in found.items()} for text, found in offered.items()}

    return law

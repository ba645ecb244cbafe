"""Exact output laws by enumeration on a table target: every random choice of the real drafter, rule and loop is
branched on, so that a law is a finite sum and equals the target's to 1e-12, without sampling error.

`rule_checks` and `drafter_checks` are made for classes of others, too: they take any `Verifier` or `Drafter`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.certification.certificate import Check, attempted, judged, not_applicable
from specdec.certification.enumeration import Enumeration
from specdec.clock import CpuClock
from specdec.decode import decode_round
from specdec.drafters.base import Drafter, DrafterCapabilities
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, Request, TextStart
from specdec.sampling import GREEDY, probabilities
from specdec.session.arm import Arm
from specdec.structures.base import Structure, structures
from specdec.targets.base import Target
from specdec.targets.table import Table, TableConfig
from specdec.tree_building.siblings import Asked, How, grow, growing
from specdec.verifiers.base import Verifier

EXACT = 1e-12  # the largest error of a chance that rounding in float64 explains
Law = dict[tuple[int, ...], float]  # the chance of every text

CUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "uncut": ({}, {}),
    "top_k": ({"top_k": 2}, {"top_k": 2}),
    "top_p": ({"top_p": 0.6}, {"top_p": 0.75}),
    "p_cut": ({"typical_p": 0.3}, {}),
    "q_cut": ({}, {"top_p": 0.5}),
}
"""By name, how p and q are cut, so that their supports differ in every way."""

PROMPT = (0, 1, 2, 0, 1, 1, 0, 1)  # it repeats itself, so that drafters which look tokens up find some


def table_target(law: Any, end_token: int | None = None, **how: Any) -> Table:
    """Return a target of the stochastic matrix `law` [V, V], with values of `SamplingConfig`; else it is greedy."""
    rows = law.tolist() if isinstance(law, Tensor) else law
    config = TableConfig(name="table", law=rows, end_token=end_token, context_length=1000)
    return Table(config, replace(GREEDY, name="table", **how))


def random_law(size: int, seed: int, spread: float = 1.2) -> Tensor:
    """Return a random stochastic matrix [size, size] whose rows are far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, size, generator=generator, dtype=torch.float64) * spread).softmax(-1)


def arm_of(target: Target, drafter: Drafter, verifier: Verifier, structure: Structure) -> Arm:
    return Arm(method="certified", target=target, drafter=drafter, verifier=verifier, structure=structure)


def round_law(enumeration: Enumeration, arm: Arm, root: int, rounds: int = 1) -> Law:
    """Return the chance of every sequence of tokens that `rounds` rounds after `root` commit."""
    target, drafter, generator, clock = arm.target, arm.drafter, enumeration.generator, CpuClock()

    def run() -> tuple[int, ...]:
        target.start(TextStart([root], 0))
        drafter.start(TextStart([root], 64, generator=generator))
        committed: tuple[int, ...] = ()
        for _ in range(rounds):
            decided, _ = decode_round(target, drafter, arm.verifier, arm.structure, generator, clock)
            committed += decided.committed
        return committed

    return enumeration.law(run)


def continuation(p: np.ndarray, root: int, length: int) -> np.ndarray:
    """Return the law of the `length` tokens after `root` under the target alone, one axis per token."""
    if length == 0:
        return np.array(1.0)
    return np.stack([p[root, token] * continuation(p, token, length - 1) for token in range(len(p))])


def target_law(target: Target) -> np.ndarray:
    """Return the standardised laws [V, V] of a table target after each token."""
    rows = []
    for token in range(target.vocab_size):
        target.start(TextStart([token], 0))
        rows.append(target.verify(EMPTY)[0].double().numpy())
    return np.stack(rows)


def bias(enumeration: Enumeration, arm: Arm, rounds: int = 1, roots: Sequence[int] | None = None) -> float:
    """Return the largest error of the law of whole rounds' tokens, over the roots: at most `EXACT` if lossless."""
    p = target_law(arm.target)
    length = rounds * (arm.gamma + 1)
    worst = 0.0
    for root in range(len(p)) if roots is None else roots:
        total = np.zeros((len(p),) * length)
        for committed, chance in round_law(enumeration, arm, root, rounds).items():
            # The target itself writes the tokens that follow the committed ones.
            total[committed] += chance * continuation(p, committed[-1], length - len(committed))
        worst = max(worst, float(np.abs(total - continuation(p, root, length)).max()))
    return worst


def own_law(target: Target, prompt: Sequence[int], length: int) -> Law:
    """Return the law of plain decoding's outputs without any loop: the product of the target's scores of every text."""
    law: Law = {}
    for text in itertools.product(range(target.vocab_size), repeat=length):
        p = probabilities(target.score(prompt, text[:-1]), target.sampling)  # [length, V]
        ends = next((place for place, token in enumerate(text) if token in target.end_tokens), length - 1)
        kept = text[: ends + 1]
        law[kept] = float(np.prod([float(p[place, token]) for place, token in enumerate(kept)]))
    return law


def largest_error(one: Law, other: Law) -> float:
    """Return the largest difference of the chances that two laws give to a text; a text that one lacks has chance 0."""
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other})


def text_bias(enumeration: Enumeration, arm: Arm, prompt: Sequence[int], length: int) -> float:
    """Return the largest error of the law of the outputs of the real loop, limit and end token included."""

    def run() -> tuple[int, ...]:
        generator = enumeration.generator
        request = Request(prompt, length, draft_generator=generator, accept_generator=generator)
        return arm.decode(request, CpuClock()).tokens

    return largest_error(enumeration.law(run), own_law(arm.target, prompt, length))


def law_pair(
    size: int, temperature: float, how: tuple[dict[str, Any], dict[str, Any]], end_token: int | None = None
) -> tuple[Table, Tensor]:
    """Return a table target and a law q [V, V] to draft from, both random, with the sampling of a pair of `CUTS`."""
    target = table_target(random_law(size, 5), end_token, temperature=temperature, **how[0])
    drafted = table_target(random_law(size, 6), temperature=temperature, **how[1])
    return target, torch.tensor(target_law(drafted))


# Drafts that are enumerated -----------------------------------------------------------------------


def fill(structure: Structure, q: Tensor, root: int, generator: Any, way: How) -> Draft:
    """Fill a chain, rows or a tree level by level, the children of each node by its row of q."""

    def laws(asked: Asked) -> Tensor:
        return q[[root if node < 0 else int(asked.tokens[node]) for node in asked.nodes]]

    return grow(growing(structure, way, "table", generator), laws)


FILL: dict[str, Callable[..., Draft]] = {
    "chain": fill,
    "rows": fill,
    "tree": fill,
    "dynamic": lambda structure, q, *how: fill(structure, q.log(), *how),  # the drafter's confidence is of logits
}
"""By the name of a structure, the function that fills it from a table. A structure without one cannot be enumerated."""

WAYS: dict[str, list[How]] = {
    "chain": ["independent", "ranked"],
    "rows": ["independent", "without_replacement", "ranked"],
    "tree": ["independent", "without_replacement", "ranked"],
    "dynamic": ["ranked"],
}
"""The ways in which nodes get their tokens: with repeats, all different, or the most likely ones as point masses."""


class TableDrafter(Drafter):
    """Fills any structure of `FILL` from a Markov law q [V, V]."""

    capabilities = DrafterCapabilities(fills=frozenset(FILL))

    def __init__(self, q: Tensor, way: How = "independent") -> None:
        self.q, self.way = q, way
        self.root = 0
        self.generator: torch.Generator | None = None

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self.root, self.generator = text.prompt[-1], text.generator

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self.root = tokens[-1]

    def draft(self, structure: Structure) -> Draft:
        return FILL[structure.name](structure, self.q, self.root, self.generator, self.way)


def small_structure(name: str, gamma: int) -> Structure:
    """Return a small structure of `FILL`, `gamma` deep: two rows where they are long, two nodes at a tree's levels."""
    if name == "chain":
        return structures.build({"name": name, "gamma": gamma})
    if name == "rows":
        return structures.build({"name": name, "k": 3 if gamma == 1 else 2, "w": gamma, "budget": 100})
    if name == "dynamic":
        return structures.build({"name": name, "nodes": gamma + 2, "depth": gamma, "branching": 3, "beam": 2})
    parents = [-1, -1, *(2 * level for level in range(gamma - 1) for _ in range(2))]
    sizes = {"nodes": len(parents), "depth": gamma}
    return structures.build({"name": name, "parents": parents, "file": None, "accuracy": None, **sizes})


# The checks ---------------------------------------------------------------------------------------

Case = Callable[[Enumeration], float]  # enumerates one law and returns its largest error


def rule_checks(verifier: Verifier, structure: str) -> list[Check]:
    """Enumerate what an acceptance rule, as configured, of specdec or of anyone, commits on a table target, with drafts
    that are drawn, drawn without replacement and ranked: whole rounds, two rounds after one another, and texts of the
    real loop with its limit and an end token. `structure` names one that the rule handles, a key of `FILL`.

    It takes seconds. A rule passes only if every law equals the target's to `EXACT`, whatever it declares; all of its
    randomness has to come from the generator that `accept` is given, by `torch.rand` or `torch.multinomial`, and
    uniform numbers may be compared, scaled and indexed.
    """
    named = f"rule on {structure}"
    if structure not in FILL:
        why = f"no table fills the structure {structure!r}: the exact check knows {', '.join(FILL)}"
        return [not_applicable("exact", f"{named}: whole rounds", why)]
    families = _cases(verifier, structure).items()
    return [check for family, cases in families for check in _enumerated(f"{named}: {family}", cases)]


def drafter_checks(make: Callable[[Target], Drafter], verifier: Verifier, structure: str) -> list[Check]:
    """Enumerate the texts that a drafter's own drafts lead to, through the real loop on a table target of three tokens.
    `make` gives the drafter (UsageError: it needs a model); the rule is lossless, and both handle the structure.
    """
    name = f"drafter on {structure}: texts of the loop"
    if structure not in FILL:
        return [not_applicable("exact", name, f"no small structure {structure!r} is known")]
    temperature = 0.0 if verifier.capabilities.greedy_only else 1.0
    length = 4 if structure == "chain" else 3
    target = table_target(random_law(3, 5), temperature=temperature)
    try:
        drafter = make(target)
        unfit = drafter.capabilities.vocab_size not in (None, target.vocab_size) or drafter.capabilities.needs_reference
    except UsageError as refusal:
        return [not_applicable("exact", name, f"it drafts with a model of its own ({refusal})")]
    if unfit:
        return [not_applicable("exact", name, "it is made for another vocabulary, or reads a recorded text")]

    arm = arm_of(target, drafter, verifier, small_structure(structure, 2))
    return _enumerated(name, [partial(text_bias, arm=arm, prompt=PROMPT, length=length)])


def _enumerated(name: str, cases: Sequence[Case]) -> list[Check]:
    def check() -> list[Check]:
        enumeration = Enumeration()
        worst = max([0.0, *(case(enumeration) for case in cases)])
        fault = "what is committed does not have the target's law" if worst > EXACT else ""
        compared = f"{len(cases)} {'law' if len(cases) == 1 else 'laws'} with the target's own"
        error = f"largest error {worst:.1e}"
        return [judged("exact", name, compared, enumeration.runs, error, fault, facts={"error": worst})]

    return attempted("exact", name, check)


def _ways(verifier: Verifier, structure: str, temperature: float) -> Iterator[How]:
    """Yield the ways to draw siblings that a rule takes: one that needs independent draws refuses the others."""
    target, q = law_pair(3, temperature, CUTS["uncut"])
    for way in WAYS[structure]:
        target.start(TextStart([1], 0))
        draft = FILL[structure](small_structure(structure, 1), q, 1, torch.Generator().manual_seed(0), way)
        try:
            verifier.accept(draft, target.verify(draft), torch.Generator().manual_seed(0))
        except UsageError:
            continue
        except Exception:  # a fault that the checks themselves will say
            pass
        yield way


def _cases(verifier: Verifier, structure: str) -> dict[str, list[Case]]:
    """Return the laws to enumerate by family.

    Whole rounds are two deep, one deep with all cuts, and three deep for a chain. The second of two rounds begins where
    a rejection may have left the first. The last round of a text meets the limit anywhere, and a token may end it.
    """
    temperatures = (0.0,) if verifier.capabilities.greedy_only else (0.0, 0.5, 1.0)
    warmest, chain = temperatures[-1], structure == "chain"

    def arm(
        way: How, size: int, gamma: int, temperature: float = warmest, cut: str = "uncut", end_token: int | None = None
    ) -> Arm:
        """Return the combination over `size` tokens in the vocabulary, with drafts `gamma` deep."""
        target, q = law_pair(size, temperature, CUTS[cut], end_token)
        return arm_of(target, TableDrafter(q, way), verifier, small_structure(structure, gamma))

    def rounds(made: Arm, number: int = 1) -> Case:
        return partial(bias, arm=made, rounds=number, roots=None if chain else [made.target.vocab_size - 1])

    whole, two, written = list[Case](), list[Case](), list[Case]()
    for way in _ways(verifier, structure, warmest):
        for temperature in temperatures:
            whole += [rounds(arm(way, 4, 1, temperature, cut)) for cut in CUTS]
            whole += [rounds(arm(way, *size, temperature)) for size in (((3, 2), (2, 3)) if chain else ((2, 2),))]
            whole.append(rounds(arm(way, 3, 2 if chain else 1, temperature, "top_k")))
        if (structure, way) != ("rows", "independent"):  # thousands of outcomes, and nothing that trees do not show
            two += [rounds(arm(way, *size), number=2) for size in (((3, 1), (2, 2)) if chain else ((2, 1),))]
        for size, gamma, length in ((3, 1, 3), (2, 2, 4), (2, 3, 3)) if chain else ((2, 2, 3),):
            for end_token in (None, 0):
                ended = arm(way, size, gamma, end_token=end_token)
                written.append(partial(text_bias, arm=ended, prompt=[1], length=length))
    return {"whole rounds": whole, "two rounds": two, "texts of the loop": written}

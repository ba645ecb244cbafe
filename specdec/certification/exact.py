"""Exact output laws by enumeration on a table target: every random choice of the real drafter, rule and loop is
branched on, so that a law is a finite sum and equals the target's to 1e-12, without sampling error.

`rule_checks` and `drafter_checks` are made for classes of others, too: they take any `Verifier` or `Drafter`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.certification.checks import Check, Verdict, attempted, not_applicable
from specdec.certification.enumeration import Enumeration
from specdec.certification.table_drafts import FILL, WAYS, TableDrafter, small_structure
from specdec.clock import CpuClock
from specdec.decode import decode_round, generate
from specdec.drafters.base import Drafter
from specdec.errors import UsageError
from specdec.records import EMPTY, Request, TextStart
from specdec.sampling import SamplingConfig, probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.targets.table import Table, TableConfig
from specdec.tree_building.siblings import How
from specdec.verifiers.base import Verifier

EXACT = 1e-12
"""The largest error of a chance that rounding in float64 explains."""

Law = dict[tuple[int, ...], float]
"""The chance of every text."""

CUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "uncut": ({}, {}),
    "top_k": ({"top_k": 2}, {"top_k": 2}),
    "top_p": ({"top_p": 0.6}, {"top_p": 0.75}),
    "p_cut": ({"typical_p": 0.3}, {}),
    "q_cut": ({}, {"top_p": 0.5}),
}
"""By name, how p and q are cut, so that their supports differ in every way."""

PROMPT = (0, 1, 2, 0, 1, 1, 0, 1)
"""A prompt of three tokens that repeats itself, so that drafters which look tokens up find some."""


def table_target(law: Any, end_token: int | None = None, **how: Any) -> Table:
    """Return a target whose law is the stochastic matrix `law` [V, V].

    Args:
        how: `temperature` (0 where it is left out) and cuts of `SamplingConfig`.
    """
    rows = law.tolist() if isinstance(law, Tensor) else law
    values: dict[str, Any] = dict(temperature=0.0, top_k=None, top_p=None, min_p=None, typical_p=None)
    sampling = SamplingConfig(name="table", **(values | how))
    return Table(TableConfig(name="table", law=rows, end_token=end_token, context_length=1000), sampling)


def random_law(size: int, seed: int, spread: float = 1.2) -> Tensor:
    """Return a random stochastic matrix [size, size] whose rows are far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, size, generator=generator, dtype=torch.float64) * spread).softmax(-1)


def round_law(
    enumeration: Enumeration,
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    structure: Structure,
    root: int,
    rounds: int = 1,
) -> Law:
    """Return the chance of every sequence of tokens that `rounds` rounds after `root` commit."""

    clock, room = CpuClock(), structure.gamma + 1

    def run() -> tuple[int, ...]:
        target.start(TextStart([root], 0))
        drafter.start(TextStart([root], 64, generator=enumeration.generator))
        committed: tuple[int, ...] = ()
        for _ in range(rounds):
            decided, _ = decode_round(target, drafter, verifier, structure, enumeration.generator, clock, room)
            committed += decided.committed
        return committed

    return enumeration.law(run)


def continuation(p: np.ndarray, root: int, length: int) -> np.ndarray:
    """Return the law of the `length` tokens after `root` under the target alone, one axis per token."""
    if length == 0:
        return np.array(1.0)
    return np.stack([p[root, token] * continuation(p, token, length - 1) for token in range(len(p))])


def completed(law: Mapping[tuple[int, ...], float], p: np.ndarray, length: int) -> np.ndarray:
    """Return the law of `length` tokens when the target itself writes what follows the committed ones."""
    total = np.zeros((len(p),) * length)
    for committed, chance in law.items():
        total[committed] += chance * continuation(p, committed[-1], length - len(committed))
    return total


def target_law(target: Target) -> np.ndarray:
    """Return the standardised laws [V, V] of a table target after each token."""
    rows = []
    for token in range(target.vocab_size):
        target.start(TextStart([token], 0))
        rows.append(target.verify(EMPTY)[0].double().numpy())
    return np.stack(rows)


def bias(
    enumeration: Enumeration,
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    structure: Structure,
    rounds: int = 1,
    roots: Sequence[int] | None = None,
) -> float:
    """Return the largest error of the joint law of a whole round's (or several rounds') tokens, over all roots or the
    given ones: 0 up to `EXACT` for a lossless rule.
    """
    p = target_law(target)
    length = rounds * (structure.gamma + 1)
    worst = 0.0
    for root in range(target.vocab_size) if roots is None else roots:
        law = round_law(enumeration, target, drafter, verifier, structure, root, rounds)
        worst = max(worst, float(np.abs(completed(law, p, length) - continuation(p, root, length)).max()))
    return worst


def generated_law(
    enumeration: Enumeration,
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    structure: Structure,
    prompt: Sequence[int],
    length: int,
) -> Law:
    """Return the law of the outputs of the real loop, limit and end token included."""

    def run() -> tuple[int, ...]:
        generator = enumeration.generator
        return generate(
            target=target,
            drafter=drafter,
            verifier=verifier,
            structure=structure,
            request=Request(prompt, length, draft_generator=generator, accept_generator=generator),
            clock=CpuClock(),
        ).tokens

    return enumeration.law(run)


def own_law(target: Target, prompt: Sequence[int], length: int) -> Law:
    """Return the law of the outputs of plain decoding, computed apart from any loop: the product of the target's own
    chances, by its scores of every text.
    """
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


def law_pair(
    size: int, temperature: float, how: tuple[dict[str, Any], dict[str, Any]], seed: int = 5
) -> tuple[Table, Tensor]:
    """Return a table target and a law q [V, V] to draft from, both random, at one temperature, each with its own cut.

    Args:
        how: keys of `SamplingConfig` for p and for q, as in `CUTS`.
    """
    target = table_target(random_law(size, seed), temperature=temperature, **how[0])
    drafted = table_target(random_law(size, seed + 1), temperature=temperature, **how[1])
    return target, torch.tensor(target_law(drafted))


# The checks ---------------------------------------------------------------------------------------

Case = Callable[[Enumeration], float]
"""Enumerates one law and returns its largest error."""


def rule_checks(verifier: Verifier, structure: str) -> list[Check]:
    """Enumerate what an acceptance rule commits on a table target, with drafts that are drawn, drawn without
    replacement and ranked: whole rounds, two rounds after one another, and texts of the real loop with its limit and an
    end token.

    It takes seconds. A rule passes only if every law equals the target's to `EXACT`; all of its randomness has to come
    from the generator that `accept` is given, by `torch.rand` or `torch.multinomial`, and uniform numbers may be
    compared, scaled and indexed.

    Args:
        verifier: as configured, of specdec or of anyone; its `lossless` is not read.
        structure: the name of a structure that it handles, a key of `table_drafts.FILL`.
    """
    named = f"rule on {structure}"
    if structure not in FILL:
        why = f"no table fills the structure {structure!r}: the exact check knows {', '.join(FILL)}"
        return [not_applicable("exact", f"{named}: whole rounds", why)]
    families = (
        ("whole rounds", _whole_rounds(verifier, structure)),
        ("two rounds", _two_rounds(verifier, structure)),
        ("texts of the loop", _texts(verifier, structure)),
    )
    return [_enumerated(f"{named}: {name}", list(cases)) for name, cases in families]


def drafter_checks(make: Callable[[Target], Drafter], verifier: Verifier, structure: str) -> list[Check]:
    """Enumerate the texts that a drafter's own drafts lead to, through the real loop on a table target of three tokens.

    Args:
        make: gives the drafter for a target; it may raise UsageError where it needs a model.
        verifier: a rule that is known to be lossless.
        structure: the name of a structure that both handle.
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

    def error(enumeration: Enumeration) -> float:
        shape = small_structure(structure, 2)
        law = generated_law(enumeration, target, drafter, verifier, shape, PROMPT, length)
        return largest_error(law, own_law(target, PROMPT, length))

    return [_enumerated(name, [error])]


def _enumerated(name: str, cases: Sequence[Case]) -> Check:
    def check() -> Check:
        enumeration, worst = Enumeration(), 0.0
        for case in cases:
            worst = max(worst, case(enumeration))
        failed = worst > EXACT
        detail = "what is committed does not have the target's law" if failed else ""
        statistic = f"largest error {worst:.1e}"
        compared = f"{len(cases)} {'law' if len(cases) == 1 else 'laws'} with the target's own"
        verdict: Verdict = "FAILED" if failed else "passed"
        return Check(
            "exact", name, compared, enumeration.runs, statistic, verdict, detail=detail, facts={"error": worst}
        )

    return attempted("exact", name, check)


def _temperatures(verifier: Verifier) -> tuple[float, ...]:
    return (0.0,) if verifier.capabilities.greedy_only else (0.0, 0.5, 1.0)


def _ways(verifier: Verifier, structure: str) -> Iterator[How]:
    """Yield the ways to draw siblings that a rule takes: one that needs independent draws refuses the others."""
    target, q = law_pair(3, _temperatures(verifier)[-1], CUTS["uncut"])
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


def _whole_rounds(verifier: Verifier, structure: str) -> Iterator[Case]:
    """Yield the laws of one round: two deep, and all cuts where they are one deep; three deep for a chain."""
    for way, temperature in itertools.product(_ways(verifier, structure), _temperatures(verifier)):
        for cut in CUTS.values():
            yield _round_case(verifier, structure, way, (4, 1), temperature, cut)
        sizes = ((3, 2), (2, 3)) if structure == "chain" else ((2, 2),)
        for size in sizes:
            yield _round_case(verifier, structure, way, size, temperature, CUTS["uncut"])
        yield _round_case(verifier, structure, way, (3, 2 if structure == "chain" else 1), temperature, CUTS["top_k"])


def _two_rounds(verifier: Verifier, structure: str) -> Iterator[Case]:
    """Yield the laws of two rounds, in which the second begins where a rejection may have left the first."""
    for way in _ways(verifier, structure):
        if (structure, way) == ("rows", "independent"):
            continue  # thousands of outcomes, and nothing that trees do not show
        for size, gamma in ((3, 1), (2, 2)) if structure == "chain" else ((2, 1),):
            how = _temperatures(verifier)[-1], CUTS["uncut"]
            yield _round_case(verifier, structure, way, (size, gamma), *how, rounds=2)


def _round_case(
    verifier: Verifier,
    structure: str,
    way: How,
    size: tuple[int, int],
    temperature: float,
    cut: tuple[dict[str, Any], dict[str, Any]],
    rounds: int = 1,
) -> Case:
    """Return the enumeration of rounds over `size` = (tokens in the vocabulary, depth of the draft)."""

    def case(enumeration: Enumeration) -> float:
        target, q = law_pair(size[0], temperature, cut)
        shape, roots = small_structure(structure, size[1]), None if structure == "chain" else [size[0] - 1]
        return bias(enumeration, target, TableDrafter(q, way), verifier, shape, rounds, roots)

    return case


def _texts(verifier: Verifier, structure: str) -> Iterator[Case]:
    """Yield the laws of whole texts: the last round meets the limit at every place, and a token may end the text."""
    sizes = ((3, 1, 3), (2, 2, 4), (2, 3, 3)) if structure == "chain" else ((2, 2, 3),)
    for way, (size, gamma, length) in itertools.product(_ways(verifier, structure), sizes):
        for end_token in (None, 0):

            def case(enumeration: Enumeration, of: tuple[Any, ...] = (way, size, gamma, length, end_token)) -> float:
                way, size, gamma, length, end_token = of
                _, q = law_pair(size, _temperatures(verifier)[-1], CUTS["uncut"])
                target = table_target(random_law(size, 5), end_token, temperature=_temperatures(verifier)[-1])
                shape = small_structure(structure, gamma)
                law = generated_law(enumeration, target, TableDrafter(q, way), verifier, shape, [1], length)
                return largest_error(law, own_law(target, [1], length))

            yield case

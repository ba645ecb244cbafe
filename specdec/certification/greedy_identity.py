"""Greedy identity in float64: through an acceptance rule, tiny random models of every architecture write what
transformers' own `generate` writes, token for token.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from specdec.certification.certificate import Check, attempted, judged, not_applicable
from specdec.certification.exact import arm_of
from specdec.certification.tiny_models import ARCHITECTURES, load_tiny_model
from specdec.clock import CpuClock
from specdec.drafters.base import Drafter, DrafterCapabilities
from specdec.errors import UsageError
from specdec.records import Draft, Source, Tree
from specdec.sampling import GREEDY
from specdec.session.arm import Arm, seeded_request
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.targets.base.contract import Evaluation
from specdec.targets.causal import Causal
from specdec.verifiers.base import Verifier

NEW_TOKENS = 28
PROMPT = (7, 3, 19, 44, 3, 19, 52, 7, 3, 19, 44, 8, 3, 19)
"""A prompt that repeats itself, so that n-grams match, and is longer than the windows of 6 of the tiny models."""


@cache
def own_greedy(architecture: str) -> tuple[int, ...]:
    """Return the continuation of `PROMPT` that transformers' `generate` writes, with its own cache and masks."""
    seen = torch.ones(1, len(PROMPT), dtype=torch.long)
    output = load_tiny_model(architecture).generate(
        torch.tensor([PROMPT]), attention_mask=seen, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
    )
    return tuple(output[0, len(PROMPT) :].tolist())


@cache
def tiny_target(architecture: str, evaluation: Evaluation) -> Causal:
    """Return a tiny model as a greedy target, with the way in which it evaluates a draft that branches."""
    target = Causal(load_tiny_model(architecture), GREEDY)
    target.evaluation = evaluation
    return target


class Scattered(Drafter):
    """Puts each token of a known text anywhere among wrong siblings, or nowhere: any path of a draft may be right."""

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}))

    def __init__(self, text: Sequence[int]) -> None:
        self.text, self.position, self.dice = text, 0, random.Random(0)

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self.position += len(tokens)

    def draft(self, structure: Structure) -> Draft:
        tree: Tree = structure.tree
        tokens, right = [0] * len(tree), -1
        for node, children in enumerate(tree.children, -1):
            place = self.dice.randrange(len(children) + 1) if node == right else len(children)
            truth = self.text[self.position + (tree.depths[node] if node >= 0 else 0)] if children else 0
            for index, child in enumerate(children):
                tokens[child] = (truth + index - place) % 61
                right = child if index == place else right
        return Draft(torch.tensor(tokens, dtype=torch.long), tree, source=(Source("scattered", 0),) * len(tree))


def identity_checks(
    verifier: Verifier, structure: Structure, make: Callable[[Target], Drafter] | None = None
) -> list[Check]:
    """Compare greedy outputs under any rule, on tiny models, with the models' own: of every architecture with drafts of
    which any path may be right, packed and path by path (unless the structure follows the drafter's confidence), and of
    two with a drafter's own drafts, where `make` gives one (see `drafter_identity`). It takes seconds.
    """
    evaluations: list[Evaluation] = ["packed"] if structure.branches == 1 else ["packed", "rows"]
    rules = {id(rule): rule for rule in (verifier, verifier.for_greedy())}.values()
    name = "greedy identity: any path"
    if structure.name in Scattered.capabilities.fills:
        cases: list[_Case] = [
            (arm_of(tiny_target(architecture, evaluation), Scattered(own), rule, structure), own)
            for architecture in sorted(ARCHITECTURES)
            for own in (own_greedy(architecture),)
            for evaluation in evaluations
            for rule in rules
        ]
        checks = _compared(name, cases)
    else:
        checks = [not_applicable("exact", name, f"a {structure.name} draft follows the drafter's confidence")]
    return checks if make is None else [*checks, *drafter_identity(make, verifier.for_greedy(), structure)]


def drafter_identity(make: Callable[[Target], Drafter], verifier: Verifier, structure: Structure) -> list[Check]:
    """Compare greedy outputs on two tiny models, with a drafter's own drafts, with the models' own. `make` gives the
    drafter for a target; it may raise UsageError where it needs a certain model.
    """
    name = "greedy identity: the drafter's own drafts"
    cases: list[_Case] = []
    for architecture in ("gemma3", "llama"):
        target = tiny_target(architecture, "packed")
        try:
            drafter = make(target)
        except UsageError as refusal:
            return [not_applicable("exact", name, f"it drafts with a model of its own ({refusal})")]
        if drafter.capabilities.vocab_size not in (None, target.vocab_size):
            return [not_applicable("exact", name, "it is made for another vocabulary")]
        cases.append((arm_of(target, drafter, verifier, structure), own_greedy(architecture)))
    return _compared(name, cases)


_Case = tuple[Arm, tuple[int, ...]]  # and the tokens that its output should have


def _compared(name: str, cases: Sequence[_Case]) -> list[Check]:
    def check() -> list[Check]:
        parted, accepted = 0, 0
        for arm, own in cases:
            reference = own if arm.drafter.capabilities.needs_reference else None
            request = seeded_request(arm.target, ("prompt", PROMPT), NEW_TOKENS, 0, ("draft", "accept"), reference)
            generation = arm.decode(request, CpuClock())
            parted += generation.tokens != own
            accepted += sum(row.accepted for row in generation.rounds)
        fault = "outputs differ from those of the model's own generate" if parted else ""
        compared = "with transformers' own generate, tiny models in float64"
        facts = {"outputs": len(cases), "parted": parted, "accepted_tokens": accepted}
        return [judged("exact", name, compared, len(cases), f"{parted} part", fault, facts=facts)]

    return attempted("exact", name, check)

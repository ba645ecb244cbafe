"""Promises of every structure, target and prompt set, as checks. Each raises AssertionError with one sentence."""

from collections.abc import Callable, Sequence
from unittest import SkipTest

import torch

from specdec.certification.enumeration import Enumeration
from specdec.certification.exact import CUTS, EXACT, bias, law_pair
from specdec.certification.table_drafts import WAYS, TableDrafter
from specdec.prompts.base.contract import PromptSource
from specdec.records import EMPTY, Draft, TextStart, Tree
from specdec.sampling import probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.testing.drafter_contract import require
from specdec.verifiers import verifiers

_ENUMERATED = {2: (2, 4), 1: (3, 3)}  # depth: tokens of the vocabulary, most nodes that are enumerated
_PROMPT = (0, 1, 0)
_CLOSE = 1e-4  # difference of a chance that float32 and another order of sums explain
_CHAIN, _TREE = Tree((-1, 0, 1)), Tree((-1, -1, 0, 1))

# Structures ---------------------------------------------------------------------------------------


def something_is_asked_for(structure: Structure) -> None:
    """Check that a full draft has nodes, and as many levels as the structure says."""
    require(structure.nodes > 0, "A full draft has no node: the other cases say nothing.")
    require(
        structure.tree.depth == structure.gamma, f"gamma is {structure.gamma}, the tree {structure.tree.depth} deep."
    )
    require(structure.nodes >= len(structure.tree), f"nodes is {structure.nodes}, the tree has {len(structure.tree)}.")
    require(structure.branches >= len(structure.tree.leaves), "branches are fewer than the tree has leaves.")


def every_depth_below_is_there(structure: Structure) -> None:
    """Check that `resized` gives each smaller depth, down to a draft without nodes."""
    for depth in range(structure.gamma + 1):
        other = structure.resized(depth)
        require(other.gamma == other.tree.depth == depth, f"resized({depth}) is {other.gamma} deep.")
        require(other.name == structure.name, f"resized({depth}) is named {other.name!r}, not {structure.name!r}.")
        require(structure.clamped(depth).gamma == depth, f"clamped({depth}) is {structure.clamped(depth).gamma} deep.")
    require(structure.resized(0).nodes == 0, "resized(0) has nodes.")
    for depth in (structure.gamma + more for more in (1, 2, 4)):
        deeper = structure.resized(depth).gamma
        sentence = f"resized({depth}) is {deeper} deep: it has to be that deep, or the whole shape."
        require(deeper in (depth, structure.gamma), sentence)


def exact_law_of_a_round(structure: Structure) -> None:
    """Check by enumeration that a round which such a draft begins commits the target's own law."""
    for depth, (size, most) in _ENUMERATED.items():
        shape = structure.resized(depth)
        if structure.name in WAYS and 0 < shape.nodes <= most:
            target, q = law_pair(size, 1.0, CUTS["uncut"])
            rule = verifiers.build({"name": "speculative_sampling"})
            for way in WAYS[structure.name]:
                error = bias(Enumeration(), target, TableDrafter(q, way), rule, shape, roots=[0])
                require(error <= EXACT, f"With {way} drafts a round has another law than the target's ({error:.1e}).")
            return
    raise SkipTest("a draft of one or two levels is too large to enumerate, or nothing of `FILL` fills it")


# Targets ------------------------------------------------------------------------------------------


def _begun(target: Target, prompt: Sequence[int] = _PROMPT) -> Target:
    target.start(TextStart(prompt, 64, branches=4))
    return target


def _draft(tree: Tree) -> Draft:
    return Draft(torch.arange(len(tree), device="cpu") % 2, tree)


def _same_as_scored(target: Target, text: Sequence[int], draft: Draft = EMPTY) -> None:
    """Check p of root and draft after `text` against the scores of each path, which need no cache."""
    p = target.verify(draft).double().cpu()
    require(p.shape == (len(draft) + 1, target.vocab_size), f"verify gives p {list(p.shape)} for {len(draft)} nodes.")
    for node in range(-1, len(draft)):
        path = [int(draft.tokens[each]) for each in (draft.tree.path(node) if node >= 0 else ())]
        own = probabilities(target.score(text, path), target.sampling)[-1].double().cpu()
        error = float((p[node + 1] - own).abs().max())
        require(error <= _CLOSE, f"After {[*text, *path]} verify and score differ by {error:.1e}.")


def the_law_follows_the_text(target: Target) -> None:
    """Check that the other cases are about something: the law after one token is not the law after every other."""
    laws = [target.score([token], [])[-1] for token in range(min(target.vocab_size, 8))]
    require(any(not torch.equal(laws[0], law) for law in laws), "The law is the same after each token.")


def a_draft_is_verified_as_it_is_scored(target: Target) -> None:
    trees = [tree for name, tree in (("chain", _CHAIN), ("tree", _TREE)) if name in target.capabilities.structures]
    for tree in [Tree(()), *trees]:
        _same_as_scored(_begun(target), _PROMPT, _draft(tree))


def the_accepted_path_is_kept_and_the_rest_is_not(target: Target) -> None:
    text = list(_PROMPT)
    _begun(target)
    for accepted in (2, 0, 3):
        draft = _draft(_CHAIN)
        _same_as_scored(target, text, draft)
        target.commit(tuple(range(accepted)), 1)
        text += [*draft.tokens[:accepted].tolist(), 1]
    _same_as_scored(target, text)


def discarded_drafts_leave_nothing(target: Target) -> None:
    _begun(target).verify(_draft(_CHAIN))
    target.discard()
    _same_as_scored(target, _PROMPT, _draft(_CHAIN))


def a_new_text_begins_anew(target: Target) -> None:
    _begun(target).verify(_draft(_CHAIN)).cpu()
    target.commit((0, 1), 1)
    _same_as_scored(_begun(target, (1, 1)), (1, 1), _draft(_CHAIN))


# Prompt sets --------------------------------------------------------------------------------------


def something_is_read(source: PromptSource) -> None:
    require(source.read().entries, "There is no prompt: the other cases say nothing.")


def each_prompt_has_an_id_of_its_own(source: PromptSource) -> None:
    ids = [entry.id for entry in source.read().entries]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    require(not twice, f"{len(twice)} ids stand twice, such as {twice[:1]}.")
    require(all(ids), "An id is empty.")


def each_prompt_is_text_or_tokens(source: PromptSource) -> None:
    for entry in source.read().entries:
        require(bool(entry.turns) != bool(entry.tokens), f"Prompt {entry.id} has to have turns or tokens, one of them.")
        require(all(turn.strip() for turn in entry.turns), f"Prompt {entry.id} has an empty turn.")


def another_call_reads_the_same(source: PromptSource) -> None:
    require(list(source.read().entries) == list(source.read().entries), "Two calls of `read` give different prompts.")


STRUCTURE_CHECKS: tuple[Callable[[Structure], None], ...] = (
    something_is_asked_for,
    every_depth_below_is_there,
    exact_law_of_a_round,
)
TARGET_CHECKS: tuple[Callable[[Target], None], ...] = (
    the_law_follows_the_text,
    a_draft_is_verified_as_it_is_scored,
    the_accepted_path_is_kept_and_the_rest_is_not,
    discarded_drafts_leave_nothing,
    a_new_text_begins_anew,
)
PROMPT_CHECKS: tuple[Callable[[PromptSource], None], ...] = (
    something_is_read,
    each_prompt_has_an_id_of_its_own,
    each_prompt_is_text_or_tokens,
    another_call_reads_the_same,
)

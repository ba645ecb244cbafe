"""The conformance suite: the contract, exact enumeration and greedy identity, as cases that any test runner takes.

A package of others runs it on its own parts, by the name under which they are registered, with their own YAML:

    @pytest.mark.parametrize("case", drafter_cases("NAME"), ids=str)
    def test_conformance(case):
        case.run()

It is what specdec's own parts have to pass. It needs no model and no GPU: parts are tried on a table of five tokens and
on tiny random models. A structure of another name than specdec's four is enumerated once a function in `FILL` fills it,
in the `WAYS` it says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import SkipTest

import torch

from specdec.certification import exact
from specdec.certification.certificate import Check
from specdec.certification.drafter_contract import CHAIN_CHECKS, CHECKS, SIZE, Subject, require, walk
from specdec.certification.enumeration import Enumeration
from specdec.certification.greedy_identity import drafter_identity, identity_checks
from specdec.certification.tiny_models import VOCABULARY, load_tiny_model
from specdec.drafters import Drafter, drafters
from specdec.drafters.base import DrafterCapabilities
from specdec.errors import UsageError
from specdec.plan.compositions import composed_config
from specdec.prompts.base.contract import PromptSource, prompts
from specdec.records import EMPTY, Draft, TextStart, Tree
from specdec.sampling import GREEDY, probabilities
from specdec.structures.base import Structure, structures
from specdec.targets import Target, targets
from specdec.targets.causal import Causal
from specdec.verifiers import verifiers

FILL, WAYS = exact.FILL, exact.WAYS
Make = Callable[[Target], Drafter]
_SAMPLED = replace(GREEDY, name="sampled", temperature=1.0)
_DEPTH = 4  # of the drafts in greedy texts
_ENUMERATED = {2: (2, 4), 1: (3, 3)}  # depth: tokens of the vocabulary, most nodes that are enumerated
_PROMPT = (0, 1, 0)
_CLOSE = 1e-4  # difference of a chance that float32 and another order of sums explain
_CHAIN, _TREE = Tree((-1, 0, 1)), Tree((-1, -1, 0, 1))


@dataclass(frozen=True)
class ConformanceCase:
    """One case of the suite."""

    name: str  # for test ids
    # Raises AssertionError where the part breaks its contract, and SkipTest, which pytest knows, where it says nothing.
    run: Callable[[], None]

    def __str__(self) -> str:
        return self.name


def drafter_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered drafter, with the values of its YAML, or `changes` in place of them, such as a
    small file beside the test. Raises UsageError: no such drafter, no YAML, values that its config does not take.
    """
    cls = drafters.get(name)
    config = drafters.config(_values("drafter", name) | changes)
    return cases_of(lambda target: drafters.construct(config, target=target), cls.capabilities)


def cases_of(make: Make, capabilities: DrafterCapabilities) -> list[ConformanceCase]:
    """Return the suite for a drafter of any class with these capabilities; `make` gives a new one for a target, or
    raises UsageError where it cannot draft for that one, whose cases are skipped.
    """
    cases = [ConformanceCase("something is proposed", partial(_something_is_proposed, make, capabilities))]
    for structure in sorted(capabilities.fills & FILL.keys()):
        subject = _subject(make, capabilities, structure)
        checks = (*CHECKS, *CHAIN_CHECKS) if structure == "chain" else CHECKS
        cases += _cases(subject, *checks, prefix=f"{structure}: ")
        law = partial(exact.drafter_checks, make, verifiers.build({"name": "speculative_sampling"}), structure)
        rule, shape = verifiers.build({"name": "greedy"}), exact.small_structure(structure, _DEPTH)
        greedy = partial(drafter_identity, make, rule, shape)
        for name, proof in (("exact law of texts", law), ("greedy identity", greedy)):
            cases.append(ConformanceCase(f"{structure}: {name}", partial(_all_passed, proof, capabilities.lossless)))
    return cases


def verifier_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered acceptance rule (see `drafter_cases`): what it commits by enumeration, and
    greedy texts of tiny models of nine architectures. A rule that declares itself lossy has nothing to conform to.
    """
    verifier = verifiers.build(_values("verifier", name) | changes)
    cases = []
    for structure in sorted(verifier.capabilities.handles & FILL.keys()):
        law = partial(exact.rule_checks, verifier, structure)
        greedy = partial(identity_checks, verifier, exact.small_structure(structure, _DEPTH))
        for what, proof in (("exact law of rounds and texts", law), ("greedy identity", greedy)):
            run = partial(_all_passed, proof, verifier.capabilities.lossless)
            cases.append(ConformanceCase(f"{structure}: {what}", run))
    return cases


def structure_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered structure (see `drafter_cases`): its sizes, and the exact law of a round."""
    structure = structures.build(_values("structure", name) | changes)
    return _cases(structure, something_is_asked_for, every_depth_below_is_there, exact_law_of_a_round)


def target_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered target (see `drafter_cases`): drafts are verified as their paths are scored,
    before and after what is committed, discarded and begun anew. Token ids 0 and 1 have to be in its vocabulary.
    """
    target = targets.build(_values("target", name) | changes, sampling=_SAMPLED)
    return _cases(
        target,
        the_law_follows_the_text,
        a_draft_is_verified_as_it_is_scored,
        the_accepted_path_is_kept_and_the_rest_is_not,
        discarded_drafts_leave_nothing,
        a_new_text_begins_anew,
    )


def prompts_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered prompt set (see `drafter_cases`): prompts with ids, the same at every call."""
    source = prompts.build(_values("prompts", name) | changes)
    return _cases(
        source,
        something_is_read,
        each_prompt_has_an_id_of_its_own,
        each_prompt_is_text_or_tokens,
        another_call_reads_the_same,
    )


def _values(group: str, name: str) -> dict[str, Any]:
    """Return the plain values of a part's YAML, from specdec's own folder or a plugin's."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    try:
        own = [f"+drafter={name}"] if group == "drafter" else ["+drafter=none", f"{group}={name}"]
        composed = composed_config(*own)
    except HydraException:
        raise UsageError(
            f"No file {group}/{name}.yaml is on Hydra's search path: put it into the folder conf/ of your package, and "
            "install the package."
        ) from None
    values: Any = OmegaConf.to_container(composed[group], resolve=True)
    return dict(values)


def _cases(part: Any, *checks: Callable[[Any], None], prefix: str = "") -> list[ConformanceCase]:
    """Return a case for each check of a part, which is named as the check is."""
    return [ConformanceCase(prefix + check.__name__.replace("_", " "), partial(check, part)) for check in checks]


def _subject(make: Make, capabilities: DrafterCapabilities, structure: str) -> Subject:
    """Return a drafter for a table, or for a tiny model where it runs a part of the target's own."""

    def made() -> Drafter:
        if capabilities.runs_target:
            target: Target = Causal(load_tiny_model("llama"), _SAMPLED)
        else:
            target = exact.table_target(exact.random_law(SIZE, 0), temperature=1.0)
        try:
            drafter = make(target)
        except UsageError as refusal:
            raise SkipTest(f"it does not draft for a tiny target: {refusal}") from None
        if drafter.capabilities.vocab_size not in (None, target.vocab_size):
            raise SkipTest(f"it drafts for {drafter.capabilities.vocab_size} tokens, a tiny target has fewer")
        return drafter

    vocabulary = VOCABULARY if capabilities.runs_target else SIZE
    return Subject(made, partial(exact.small_structure, structure), vocabulary)


def _something_is_proposed(make: Make, capabilities: DrafterCapabilities) -> None:
    """Check that the other cases are about something: a text that repeats itself gets a draft somewhere."""
    for structure in sorted(capabilities.fills & FILL.keys()):
        subject = _subject(make, capabilities, structure)
        if any(len(draft) for draft in walk(subject.make(), subject.shape(3))):
            return
    require(False, "Nothing was proposed in any round of a text that repeats itself: the other cases say nothing.")


def _all_passed(checks_of: Callable[[], Sequence[Check]], lossless: bool) -> None:
    """Raise AssertionError for the first check that failed, SkipTest where none of them applies."""
    if not lossless:
        raise SkipTest("it declares that it is not lossless")
    checks = checks_of()
    for check in checks:
        require(check.verdict != "FAILED", f"{check.name}: {check.detail} ({check.statistic}).")
    if all(check.verdict == "not applicable" for check in checks):
        raise SkipTest("; ".join(check.detail for check in checks))


# Structures ---------------------------------------------------------------------------------------


def something_is_asked_for(structure: Structure) -> None:
    """Check that a full draft has nodes, and as many levels as the structure says."""
    tree = structure.tree
    require(structure.nodes > 0, "A full draft has no node: the other cases say nothing.")
    require(tree.depth == structure.gamma, f"gamma is {structure.gamma}, the tree {tree.depth} deep.")
    require(structure.nodes >= len(tree), f"nodes is {structure.nodes}, the tree has {len(tree)}.")
    require(structure.branches >= len(tree.leaves), "branches are fewer than the tree has leaves.")


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
            target, q = exact.law_pair(size, 1.0, exact.CUTS["uncut"])
            rule = verifiers.build({"name": "speculative_sampling"})
            for way in WAYS[structure.name]:
                arm = exact.arm_of(target, exact.TableDrafter(q, way), rule, shape)
                error = exact.bias(Enumeration(), arm, roots=[0])
                sentence = f"With {way} drafts a round has another law than the target's ({error:.1e})."
                require(error <= exact.EXACT, sentence)
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

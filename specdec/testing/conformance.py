"""The conformance suite: the contract, exact enumeration and greedy identity, as cases that any test runner takes.

A package of others runs it on its own parts, by the name under which they are registered, with their own YAML:

    @pytest.mark.parametrize("case", drafter_cases("NAME"), ids=str)
    def test_conformance(case):
        case.run()

It needs no model and no GPU: parts are tried on a table of five tokens and on tiny random models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import SkipTest

from specdec.certification.certificate import Check
from specdec.certification.exact import drafter_checks, random_law, rule_checks, table_target
from specdec.certification.greedy_identity import drafter_identity, identity_checks
from specdec.certification.table_drafts import FILL, small_structure
from specdec.certification.tiny_models import VOCABULARY, load_tiny_model
from specdec.drafters import Drafter, drafters
from specdec.drafters.base import DrafterCapabilities
from specdec.errors import UsageError
from specdec.plan.compositions import composed_config
from specdec.prompts.base.contract import prompts
from specdec.sampling import SamplingConfig
from specdec.structures.base import structures
from specdec.targets import Target, targets
from specdec.targets.causal import Causal
from specdec.testing.drafter_contract import CHAIN_CHECKS, CHECKS, SIZE, Subject, require, walk
from specdec.testing.part_contracts import PROMPT_CHECKS, STRUCTURE_CHECKS, TARGET_CHECKS
from specdec.verifiers import verifiers

Make = Callable[[Target], Drafter]
_SAMPLED = SamplingConfig(name="sampled", temperature=1.0, top_k=None, top_p=None, min_p=None, typical_p=None)
_DEPTH = 4  # of the drafts in greedy texts


@dataclass(frozen=True)
class ConformanceCase:
    """One case of the suite.

    Attributes:
        name: what is checked, as test ids show it.
        run: checks it. Raises AssertionError where the part breaks its contract, and unittest's SkipTest, which pytest
            takes for a skipped test, where the case says nothing about the part.
    """

    name: str
    run: Callable[[], None]

    def __str__(self) -> str:
        return self.name


def drafter_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered drafter, with the values of its YAML.

    Args:
        changes: values in place of those of the YAML, such as a small file beside the test.
    Raises:
        UsageError: no such drafter, no YAML, values that its config does not take.
    """
    cls = drafters.get(name)
    config = drafters.config(_values("drafter", name) | changes)
    return cases_of(lambda target: drafters.construct(config, target=target), cls.capabilities)


def cases_of(make: Make, capabilities: DrafterCapabilities) -> list[ConformanceCase]:
    """Return the suite for a drafter of any class.

    Args:
        make: gives a new drafter for a target; UsageError where it cannot draft for that one, whose cases are skipped.
        capabilities: those of its class.
    """
    cases = [ConformanceCase("something is proposed", partial(_something_is_proposed, make, capabilities))]
    for structure in sorted(capabilities.fills & FILL.keys()):
        subject = _subject(make, capabilities, structure)
        for check in (*CHECKS, *CHAIN_CHECKS) if structure == "chain" else CHECKS:
            cases.append(ConformanceCase(f"{structure}: {_words(check)}", partial(check, subject)))
        exact = partial(drafter_checks, make, verifiers.build({"name": "speculative_sampling"}), structure)
        rule, shape = verifiers.build({"name": "greedy"}), small_structure(structure, _DEPTH)
        greedy = partial(drafter_identity, make, rule, shape)
        for name, checks in (("exact law of texts", exact), ("greedy identity", greedy)):
            run = partial(_all_passed, checks, capabilities.lossless)
            cases.append(ConformanceCase(f"{structure}: {name}", run))
    return cases


def verifier_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered acceptance rule, with the values of its YAML: what it commits by enumeration,
    and greedy texts of tiny models of nine architectures.

    Args, raises: as of `drafter_cases`. A rule that declares itself lossy has nothing to conform to.
    """
    verifier = verifiers.build(_values("verifier", name) | changes)
    cases = []
    for structure in sorted(verifier.capabilities.handles & FILL.keys()):
        exact = partial(rule_checks, verifier, structure)
        greedy = partial(identity_checks, verifier, small_structure(structure, _DEPTH))
        for what, checks in (("exact law of rounds and texts", exact), ("greedy identity", greedy)):
            run = partial(_all_passed, checks, verifier.capabilities.lossless)
            cases.append(ConformanceCase(f"{structure}: {what}", run))
    return cases


def structure_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered structure: its sizes, and the law of a round by enumeration.

    Args, raises: as of `drafter_cases`.
    """
    structure = structures.build(_values("structure", name) | changes)
    return [ConformanceCase(_words(check), partial(check, structure)) for check in STRUCTURE_CHECKS]


def target_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered target: drafts are verified as their paths are scored, before and after what is
    committed, discarded and begun anew. Token ids 0 and 1 have to be in its vocabulary.

    Args, raises: as of `drafter_cases`.
    """
    target = targets.build(_values("target", name) | changes, sampling=_SAMPLED)
    return [ConformanceCase(_words(check), partial(check, target)) for check in TARGET_CHECKS]


def prompts_cases(name: str, **changes: Any) -> list[ConformanceCase]:
    """Return the suite for a registered prompt set: there are prompts, with ids, the same at every call.

    Args, raises: as of `drafter_cases`.
    """
    source = prompts.build(_values("prompts", name) | changes)
    return [ConformanceCase(_words(check), partial(check, source)) for check in PROMPT_CHECKS]


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


def _words(check: Callable[..., None]) -> str:
    return check.__name__.replace("_", " ")


def _subject(make: Make, capabilities: DrafterCapabilities, structure: str) -> Subject:
    """Return a drafter for a table, or for a tiny model where it runs a part of the target's own."""

    def made() -> Drafter:
        if capabilities.runs_target:
            target: Target = Causal(load_tiny_model("llama"), _SAMPLED)
        else:
            target = table_target(random_law(SIZE, 0), temperature=1.0)
        try:
            drafter = make(target)
        except UsageError as refusal:
            raise SkipTest(f"it does not draft for a tiny target: {refusal}") from None
        if drafter.capabilities.vocab_size not in (None, target.vocab_size):
            raise SkipTest(f"it drafts for {drafter.capabilities.vocab_size} tokens, a tiny target has fewer")
        return drafter

    vocabulary = VOCABULARY if capabilities.runs_target else SIZE
    return Subject(made, partial(small_structure, structure), vocabulary)


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

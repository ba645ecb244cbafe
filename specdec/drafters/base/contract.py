"""The contract of a drafter."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from specdec.records import Draft, TextStart
from specdec.registry import Registry
from specdec.structures.base import Structure

Replay = Literal["position", "start", "copying", "calling"]


@dataclass(frozen=True)
class DrafterCapabilities:
    """The abilities of a drafter, and its needs.

    `replay` says how a text of the target gives the rounds that the drafter takes (theory.md 4.2); None: not at all.
        "position": a proposal depends on the text before it alone.
        "start": also on where its round began, but not on earlier rounds. If it draws, it has `chances`. Like
        "position", chains have expected rounds at any temperature.
        "copying": also on earlier rounds, so that it is drafted again round by round, under greedy only.
        "calling": also on what only the target's calls on its drafts leave, logits or a cache: as "copying", and the
        target is called in each round. A drafter that `reads_logits` declares this or None.
    """

    fills: frozenset[str]  # names of the structures that it can fill
    lossless: bool = True  # false only where it makes the output depart from the target's by declaration
    needs_reference: bool = False  # it reads the recorded baseline text of the same prompt (greedy runs only)
    reads_states: bool = False  # it reads the target's hidden states, and asks for them when made (`HiddenStates.keep`)
    reads_logits: bool = False  # it learns from the target's logits over each draft, which a recorded text has not
    runs_target: bool = False  # it drafts with a part of the target's own model; refused beside a target without one
    reports_confidence: bool = False  # it ends a draft where the structure's `threshold` asks for it
    replay: Replay | None = None
    deepest: int | None = None  # levels that it can draft; None for any number. A run refuses a deeper structure
    vocab_size: int | None = None  # tokens that it was made for; None: any. A run refuses a target of another size
    state_width: int | None = None  # of the hidden states that it reads; None when it takes whatever the target has


class Drafter(ABC):
    """Proposes a token tree in each round. Made once by the registry with the run's `target`, reused per prompt."""

    capabilities: DrafterCapabilities  # the class says what its YAML gives, before anything is loaded

    def prepare(self, capacity: int, structure: Structure) -> None:
        """Compile what can be compiled, if the target does (`Target.compilation`), before anything is timed, for the
        largest capacity that `start` will be given and the primary structure; drafts of others are asked for as well.
        """

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        """Begin a new text. A drafter that reads states needs `Target.states` after its own start: the hidden states
        [S-1, D] of all of the prompt but its last token.
        """

    @abstractmethod
    def draft(self, structure: Structure) -> Draft:
        """Propose at most what `structure` asks for; the draft is empty where there is nothing to propose."""

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        """Take note of the tokens appended to the text in this round, whose draft may be another drafter's, and of
        `Target.states` after its own commit: those [A+1, D] of the round's root and accepted nodes.
        """

    def retract(self, count: int) -> bool:
        """Take the last `count` tokens out of the text again: they were the draft of a drafter that this one speeds up,
        and were rejected. Called after a commit, before the next draft. A drafter that cannot returns False: nothing it
        knows counts any more, and `start` comes next.
        """
        return False

    def observe(self, draft: Draft, logits: Tensor) -> None:
        """Take note of what the target said of the round's draft, which may be empty: `Target.logits` [N+1, V] after
        the root, then after each node, rejected ones included, to be copied if they are needed later. Called before
        `commit`, only of a drafter that `reads_logits`; its time counts as that of the commit.
        """

    @property
    def remembers(self) -> str:
        """The setting without which drafts depend on nothing but their own prompt, as `KEY=VALUE`; "" where they never
        depend on prompts that were decoded before (`remember`).
        """
        return ""

    def remember(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Take note of a finished text, for drafts of texts that are begun later. A run calls this after each prompt,
        when all methods have decoded it and all replays are done; the time is in no duration. Nothing else passes from
        one text to another, and what does may not depend on who decodes a prompt or how often: only the first output of
        a prompt counts, which the baseline wrote, and no draft of the prompt itself reads it.
        """

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        """Return q [len(text), V] before every token of `text`, in one teacher-forced pass; point masses are one-hot.
        Only drafters whose replay is "position" and that always propose can do so. None means that a replay has to
        draft token by token. Afterwards the drafter has no text: call `start` next.
        """
        return None

    def chances(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Tensor | None:
        """Return q of the text's own tokens [len(text), depth] in chains that begin at each position: in place [t, k]
        the chance that a chain which has drafted tokens t to t+k-1 of the text goes on with token t+k.
        It is 0 beyond the text and where nothing is offered. Only drafters whose replay is "start" can do so; None
        means that a replay has to draft at every position, which takes point masses. Afterwards the drafter has no
        text: call `start` next. A drafter that reads states gets `Target.states` [S+N-1, D] of all but the last token.
        """
        return None

    def batched(self, slots: int) -> "BatchDrafter | None":
        """Return a drafter of `slots` texts at once that drafts for each as this one would, in fewer calls; None: each
        text gets a drafter of its own. It shares this one's weights and leaves its text alone.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """Return what is recorded about a model that drafts: hash, dtype, attention kind, parameters."""
        return {}

    @property
    def passes(self) -> Mapping[str, Mapping[str, Any]]:
        """Records of the compiled passes that serve its model's calls, by the calls; empty without any."""
        return {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about this drafter that a reader of the run must not miss; known before anything is decoded."""
        return ()

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of one drafted token; 0 for drafters that look tokens up."""
        return 0.0


class BatchDrafter:
    """Proposes a token tree for each of several texts in each step. A slot holds one text at a time and has a drafter
    for it in `texts`, which is told of what becomes of it. Here they draft in turn; subclasses make fewer calls.

    What is drafted for a text depends on that text and its own generator alone: neither on the slot nor on the other
    texts. Texts have begun with `TextStart.in_step` False, because none may read the target's cache.
    """

    def __init__(self, texts: Sequence[Drafter]) -> None:
        self.texts = texts

    def reserve(self, capacity: int) -> None:
        """Make room for texts of the largest capacity that `start` will be given; those that were there are forgotten.
        Called before the first of several starts.
        """

    def draft(self, structures: Mapping[int, Structure]) -> dict[int, Draft]:
        """Propose for each slot at most what its structure asks for; a draft may be empty."""
        return {slot: self.texts[slot].draft(structure) for slot, structure in structures.items()}

    def release(self, slot: int) -> None:
        """Forget the text of a slot, where the next start would not free what it holds."""


drafters: Registry[Drafter] = Registry("drafters", "drafter")

"""Records of what a run writes down about itself: `plan.json`, `session.json`, `status.json`, `traces.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

PLAN_FILE, STATUS_FILE = "plan.json", "status.json"
LOAD = "load"  # `import.kind` of the run folder of load tests, which has no rounds (`load_points`)
LOAD_FOLDER = "load_tests"  # what that folder is called below --out
Standing = Literal["running", "finished", "killed", "failed"]


@dataclass(frozen=True)
class RunFacts:
    """Facts known before decoding begins: what is run (`plan.json`, `run.json` in earlier versions)."""

    label: str  # drafter on model, for titles
    structure: str  # registry name of the drafts' structure; `structure_label` gives its size in words
    structure_label: str
    single: bool  # drafts have one candidate for each position, as chains do
    depth_name: str  # what the depth of a draft is called in tables
    primary_gamma: int  # depth of the structure that was asked for, beside the other depths of the curves
    left_out: tuple[int, ...]  # values of `measurement.gammas` that are deeper than the drafter drafts
    deepest: int | None  # depth that the drafter drafts at most; None without a limit
    lossless: bool  # as the verifier declares
    deterministic: bool  # likewise
    greedy: bool  # the temperature is 0
    forced: bool  # the recorded text is committed whatever the target says
    simulated: bool  # times come from a cost model
    judge: str | None  # "target" or "original", the model whose law judges the outputs; None where nothing is judged
    target_flops: float  # per token, as those of the drafter
    drafter_flops: float
    predicted: dict[int, float]  # speedup by gamma that `specdec.advise` predicted for this run; empty without advice
    notes: tuple[str, ...] = ()  # sentences that a reader must not miss: how much of a recording is replayed
    drafter: str = ""  # the method of its rounds in every table; empty in runs of earlier versions
    batch_size: int = 1  # sequences that every method decodes at once, at most
    beside: "Mapping[str, RunFacts]" = field(default_factory=dict)  # of the session's other drafters, by their method

    def title(self, environment: Mapping[str, Any], *, shape: bool = True) -> str:
        """Name drafter, model, dtype and hardware by `environment.json`, or say that time was simulated: the title of
        figures. `shape`: with that of drafts which are no chains; a study has many shapes.
        """
        model = environment.get("model", {})
        about = f"{self.label}, {self.structure_label}" if shape and not self.single else self.label
        if self.simulated:
            return f"Simulated time ({model['cost_model']}): {about}"
        hardware = environment.get("gpu", {}).get("name") or environment.get("cpu", {}).get("model", "")
        return f"{about} ({model.get('dtype', 'float64')}), {hardware}"


@dataclass(frozen=True)
class ImportFacts:
    """Facts about a folder that was made of a foreign file, in its `plan.json`."""

    name: str  # what tells the data set apart from others, with the drafter where the file has several
    source: str  # the file
    kind: str  # its format
    gamma: int  # the one that a report is about
    longest: int | None  # the most draft tokens that any length by position accepts; None for other sources
    ordered: bool  # True if the order of a text's rounds is known; without it no analysis may look at neighbours
    totals_only: bool  # there is no rounds table, only tokens and rounds of whole texts
    notes: tuple[str, ...]  # sentences on what the source does not contain and what was assumed


@dataclass(frozen=True)
class SessionFacts:
    """Facts that decoding left besides the tables (`session.json`, written when the last prompt is done)."""

    compared: int  # outputs of the drafter that were compared with the baseline's; `identical` of them are the same
    identical: int
    unexplained: int  # outputs that differ from the baseline's without a near-tie to explain it (`divergences.json`)
    cache_bytes: int  # size of the target's largest key-value cache
    peak_mb: float  # largest memory of the process so far: the allocator's on a GPU, the resident set on a CPU
    drafter: str = ""  # the method that these counts are about; empty in runs of earlier versions
    left_out: tuple[str, ...] = ()  # ids of the prompts that the time budget left out, once for each repeat
    beside: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # counts of the other drafters, by method
    doubt: str = ""  # why outputs cannot be trusted, in a sentence: calls disagree with plain passes; else ""

    @property
    def refuted(self) -> str:
        """Why outputs are not the target's own, in a sentence; "" where nothing speaks against them."""
        if self.unexplained:
            return (
                f"Outputs refuted: {self.unexplained} of {self.compared} differ from the baseline's without a near-tie "
                "that rounding could explain, so what was measured is no lossless decoding."
            )
        return f"Outputs refuted: {self.doubt}" if self.doubt else ""


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run, and its end (`status.json`, replaced as a whole). A process that is killed by force leaves
    "running" behind; a run is resumed unless it is "finished".
    """

    status: Standing
    sentence: str  # why the run ended early, or left prompts out, in one sentence; else empty
    prompts_done: int  # prompts that are on disk by every method; a prompt counts once for each turn and repeat
    prompts: int  # prompts that the whole run was asked to decode, counted in the same way
    left_out: int = 0  # prompts of these that its time budget left out: it is finished without them

    @property
    def partial(self) -> bool:
        """True if prompts are missing that another sitting of the run would decode."""
        return self.prompts_done + self.left_out < self.prompts

    @property
    def part(self) -> str:
        """The part that was measured, `partial: 7 of 20 prompts`; "" where nothing is missing."""
        return f"partial: {self.prompts_done} of {self.prompts} prompts" if self.partial else ""

    @property
    def note(self) -> str:
        """The first sentence on the figures of some of the prompts; "" where none is missing."""
        if not self.partial:
            return self.sentence if self.left_out else ""
        return f"{self.part[:1].upper()}{self.part[1:]}. {self.sentence}".strip()

    @classmethod
    def read(cls, folder: Path) -> "RunStatus | None":
        """Read the status of the run in `folder`; None without one of ours, as in runs of earlier versions."""
        try:
            return cls(**json.loads((folder / STATUS_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def unsettled(folder: Path) -> bool:
    """Return True if the run of a folder decoded prompts and ended, or was killed, before it was analysed."""
    status = RunStatus.read(folder)
    standing = status.status if status is not None and status.prompts else ""
    return standing == "running" or standing == "killed" and not (folder / "summary.json").is_file()


class Kind(StrEnum):
    """The fate of a token in its round. The last three are the target's own, at most one of them in a round."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CORRECTION = "correction"
    BONUS = "bonus"
    PLAIN = "plain"  # nothing was drafted


@dataclass(frozen=True)
class Piece:
    """One token of a round."""

    kind: Kind
    token: int
    text: str  # what the token adds to the text; never empty
    strategy: str = ""  # what proposed a draft token; "" for tokens of the target
    rank: int = 0  # as its choice 0, 1, ...


@dataclass(frozen=True)
class TraceLine:
    """One round."""

    number: int
    so_far: str  # the end of the output that was committed before the round
    pieces: tuple[Piece, ...]
    offered: int
    accepted: int
    unused: int  # draft tokens neither accepted nor rejected: behind the rejection, behind a cut, or on other branches
    end: str  # "end_token", "limit" or "": what ended the text in this round
    disturbed: bool = False  # other work on the machine disturbed the round


@dataclass(frozen=True)
class Trace:
    """One generation that is shown round by round, and what its header says."""

    prompt: str
    drafter: str
    structure: str  # the draft asked for in every round, in words: "gamma 4", "10 rows of 10"
    lossless: bool  # what the verifier declares
    prompt_end: str  # the end of the prompt, as text
    tokens: int  # number of tokens written
    lines: tuple[TraceLine, ...]

    @property
    def summary(self) -> str:
        """The header in words, unescaped."""
        rounds = len(self.lines)
        rate = f"{self.tokens / rounds:.2f}" if rounds else "no"
        counts = f"{rate} tokens per round ({self.tokens} tokens, {rounds} rounds)"
        return f"drafter {self.drafter} · {self.structure} · {counts} · {'' if self.lossless else 'not '}lossless"

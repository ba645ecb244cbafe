"""The drafter whose speedup was measured, as far as flags depend on it, and the flags as every engine gives them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ..intervals import Interval

POCKET = "pocket"
MODEL, DRAFT = "MODEL", "DRAFT_MODEL"  # stand in a command where the pocket models were measured


@dataclass(frozen=True)
class Alone:
    """Facts from one sequence at a time that tell of several at once."""

    calls: Mapping[int, float]  # tokens of a call of the target -> its time, in any unit
    tokens: float  # per round, the target's own token included
    offered: float  # draft tokens per round
    prompt: float  # mean tokens of a prompt
    output: float  # mean tokens of an output


@dataclass(frozen=True)
class Measured:
    """A drafter at one depth of its drafts, with the speedup that it gave there."""

    params: Mapping[str, str]  # the flattened configuration, values as text (`Run.params`)
    depth: int  # levels of a draft: gamma of a chain
    nodes: int  # the most tokens that a draft offers; `depth` for a chain
    speedup: Interval  # over plain decoding, with its interval
    format: str = ""  # the published one of its checkpoint; empty for weights that were trained here
    predicted: bool = False  # the speedup is that of `specdec.advise`, not of a run
    simulated: bool = False  # times come from a cost model
    lossless: bool = True  # the verifier's rule keeps the target's law
    machine: str = ""  # hardware that it was measured on; empty where it was not recorded
    alone: Alone | None = None  # where one sequence at a time was decoded

    def value(self, key: str) -> Any:
        """Return a value of the configuration: a number, text, a list or True; None for null and for an absent key."""
        text = self.params.get(key, "None")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            return text  # a name that YAML reads otherwise
        return None if text == "None" else value if isinstance(value, int | float | list) else text

    @property
    def name(self) -> str:
        return self.params.get("drafter.name", "")

    @property
    def chain(self) -> bool:
        return self.params.get("structure.name", "chain") == "chain"

    @property
    def shape(self) -> str:
        """The drafts in words: `drafts of 4 tokens`, `trees of 8 nodes and 4 levels`."""
        if self.chain:
            return f"drafts of {self.depth} token{'s' * (self.depth != 1)}"
        kind = "rows" if self.params.get("structure.name") == "rows" else "trees"
        return f"{kind} of {self.nodes} nodes and {self.depth} levels"

    def chains_only(self, engine: str) -> list[str]:
        """Return a remark on what an engine loses that verifies chains only; none for a chain."""
        lost = f"{engine} verifies chains only; {self.shape} were measured, so expect fewer tokens per round."
        return [] if self.chain else [lost]

    @property
    def branching(self) -> int | None:
        """The children of a draft's root; None for a tree whose configuration does not say it."""
        structure = self.params.get("structure.name", "chain")
        if structure == "tree":
            parents = self.value("structure.parents")
            return parents.count(-1) if isinstance(parents, list) else None
        key = {"rows": "structure.k", "dynamic": "structure.branching", "expansion": "structure.widths"}.get(structure)
        value = self.value(key) if key else 1
        value = value[0] if isinstance(value, list) else value
        return value if isinstance(value, int) else None

    @property
    def match_lengths(self) -> tuple[int, int]:
        """The longest and the shortest match that the context n-gram drafter looked up, in tokens."""
        q = self.value("drafter.q")
        if isinstance(q, int):
            return q, q
        if q == "auto" and not self.chain:
            return 1, 1
        return int(self.value("drafter.order_max")), int(self.value("drafter.order_min"))

    @property
    def temperature(self) -> float:
        return float(self.value("sampling.temperature") or 0.0)

    @property
    def sampled(self) -> bool:
        """True if draft tokens were drawn from the drafter's own law, as they are only at a temperature above 0."""
        drafts = self.value("drafter.drafts") or self.value("drafter.of.drafts") or self.value("drafter.children")
        return self.temperature > 0 and drafts == "sampled"

    @property
    def block(self) -> bool:
        """True if drafted chains were judged as a whole (`verifier=block`), which differs only where they are drawn."""
        return self.params.get("verifier.name") == "block" and self.chain and self.sampled

    @property
    def in_target(self) -> bool:
        """True if the drafter's weights are those of the target's own checkpoint."""
        return self.name == "mtp" and self.value("drafter.model") is None

    @property
    def served(self) -> str:
        """The target's folder or hub id, as a command names it."""
        model = self.params.get("target.model", POCKET)
        return MODEL if model == POCKET else model

    def drafting(self, key: str = "drafter.model") -> str:
        """Return the folder or hub id of the drafter's model, or of the only one of a list."""
        value = self.value(key)
        model = str(value[0]) if isinstance(value, list) else self.params.get(key, POCKET)
        return DRAFT if model == POCKET else model


@dataclass(frozen=True)
class Configuration:
    """The flags with which an engine drafts as it was measured."""

    engine: str  # its name and the version whose format this is
    command: str = ""  # one line to paste; empty where the engine has no such method
    before: tuple[str, ...] = ()  # commands that make the files of `command`, in their order
    remarks: tuple[str, ...] = ()  # sentences: what differs from what was measured, or why there is no command

    @property
    def line(self) -> str:
        """The command, or else why there is none."""
        return f"{self.engine}: {self.command or ' '.join(self.remarks)}"


def unreadable(measured: Measured, formats: Collection[str] | None) -> str:
    """Say why an engine, which reads these `formats` of this kind of drafter, cannot read its checkpoint; "" where it
    can, or where the drafter has no checkpoint of a published format (None).
    """
    if formats is None or measured.format in formats:
        return ""
    readable = ", ".join(formats)
    if measured.format:
        return f"No: the checkpoint has the format {measured.format}, and this engine reads {readable}."
    return (
        "No: the weights were trained here and are in specdec's own file, which nothing exports; this engine reads "
        f"published checkpoints ({readable})."
    )

"""The target without some of its layers as a drafter (Draft & Verify 2309.08168; SWIFT 2410.06916), and the search for
the layers that it can best do without, whose result is kept in a file.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import drafters
from specdec.drafters.base.calibration import CalibrationText, CalibrationTextConfig, Worth, own_model
from specdec.drafters.base.network_drafter import Drafts, DrawnConfig
from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.models.decoder import Decoder
from specdec.models.partial import KINDS, ModelPart, block_parts, blocks_of, parse_parts, partial_model, written_parts
from specdec.progress import stage
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.tree_building.siblings import Siblings

Units = Literal["blocks", "parts"]
Skipped = frozenset[ModelPart]

_FORMAT = "specdec skipped layers 1"


@typed
class LayerSkipConfig(CalibrationTextConfig, DrawnConfig):
    skip: Annotated[list[int | str], Field(min_length=1)] | Literal["auto"]
    units: Units
    evaluations: AtLeastOne

    @field_validator("skip")
    @classmethod
    def _skip_names_parts(cls, skip: list[int | str] | Literal["auto"]) -> list[int | str] | Literal["auto"]:
        if skip != "auto":
            parse_parts(skip)
        return skip


@dataclass(frozen=True)
class SkippedParts:
    """Parts to leave out, and what is known about the drafter that is left."""

    parts: Skipped
    by: Literal["config", "search"]  # given, or found, now or in an earlier run
    worth: Worth | None = None  # on the calibration text; None where the parts were given
    compared: int = 0  # number of sets


@drafters.register("layer_skip")
class LayerSkip(SmallModel):
    """Drafts with the target's own model without a set of attentions and MLPs (Draft & Verify 2309.08168, section 3).

    q is the law of that model (see `NetworkDrafter`). Chains, rows and trees are made as `small_model` makes them; the
    weights are the target's own. A draft of gamma tokens takes gamma calls of the layers that are left.

    Behind the first skipped layer, keys and values are not the target's, so the drafter has a cache of its own for the
    layers that are left, and prefills it. It is rolled back to the committed text as that of any model that drafts.
    (The paper's code lets the drafter read the target's cache, so that a proposal depends on where the round began.)
    """

    capabilities = replace(SmallModel.capabilities, runs_target=True)
    strategy = "layer_skip"

    def __init__(self, target: Causal, skipped: SkippedParts, drafts: Drafts, siblings: Siblings) -> None:
        """Raises UsageError: see `partial_model`; ModelLoadError: a model that does not work without these layers."""
        self.skipped = skipped
        model = partial_model(target.model, skipped.parts, target.name)
        decoder = Decoder(model, target.name, target.decoder.prefill_chunk)
        super().__init__(model, target, decoder=decoder, drafts=drafts, siblings=siblings)

    @classmethod
    def from_config(cls, config: LayerSkipConfig, target: Target) -> "LayerSkip":  # type: ignore[override]
        """Raises UsageError: see `CalibrationText`, `search` and `made_once`."""
        whole = own_model(target, "layer_skip")

        def write(skipped: SkippedParts) -> dict[str, Any]:
            assert skipped.worth is not None
            return {"skip": written_parts(skipped.parts), "compared": skipped.compared, "worth": asdict(skipped.worth)}

        def read(values: dict[str, Any]) -> SkippedParts:
            return SkippedParts(parse_parts(values["skip"]), "search", Worth(**values["worth"]), values["compared"])

        if config.skip == "auto":
            calibration = CalibrationText(config, whole)
            settings = {"format": _FORMAT, "units": config.units, "evaluations": config.evaluations}
            make = partial(search, calibration, config.units, config.evaluations)
            found = calibration.once("set of skipped layers", settings, make, write, read)
        else:
            found = SkippedParts(parse_parts(config.skip), "config")
        return cls(whole, found, config.drafts, config.siblings)

    def describe(self) -> dict[str, Any]:
        found = self.skipped
        known = {} if found.worth is None else {"calibration": asdict(found.worth), "sets_compared": found.compared}
        return {**super().describe(), "skip": written_parts(found.parts), "skip_by": found.by, **known}


def search(calibration: CalibrationText, units: Units, evaluations: int) -> SkippedParts:
    """Return the set of parts with the largest Omega / (1 + gamma c) along the calibration text.

    In the manner of Draft & Verify (2309.08168), whose Bayesian search is replaced by a plain one without random
    numbers, so that it finds the same set every time:

    1. all early exits, the latest first: the last n blocks left out;
    2. from the whole model, one unit after the other is left out, each time the one that costs least (best remaining
       value), down to a single attention;
    3. from the best set so far, the best change of one unit (left out, put back, or one exchanged for another), again
       and again, until none is better.

    It ends early after `evaluations` sets. Raises UsageError: a model of fewer than two blocks; see `blocks_of`.
    """
    model, name = calibration.model, calibration.name
    blocks = range(len(blocks_of(model, name)))
    if len(blocks) < 2:
        raise UsageError(
            f"Bad value drafter=layer_skip: model {name} has {len(blocks)} layer, so there is nothing to skip; use "
            "another drafter."
        )
    parts = [frozenset({ModelPart(block, kind)}) for block in blocks for kind in KINDS]
    each_unit: list[Skipped] = parts if units == "parts" else [block_parts([block]) for block in blocks]
    attentions = frozenset(ModelPart(block, "attention") for block in blocks)
    known: dict[Skipped, Worth] = {}

    def rank(skipped: Skipped) -> tuple[float, int, list[int]]:
        """Return what the best has most of; among equals the one that leaves out most, then the first blocks."""
        return known[skipped].speedup, len(skipped), [-part.block for part in sorted(skipped)]

    _ = calibration.text  # first: it is no part of the first set's time
    shorter = "the drafter's key evaluations=N compares N sets at most, skip=[...] names the layers"
    with stage("searching layers to skip", total=evaluations, told=False, shorter=shorter) as under_way:

        def compare(sets: Iterable[Skipped]) -> Skipped | None:
            """Evaluate sets, and return the best of them; None if there is none to evaluate, or no evaluation left."""
            able = [each for each in sets if each and not attentions <= each]
            for skipped in able:
                if skipped not in known:
                    if len(known) == evaluations:
                        return None
                    known[skipped] = calibration.worth(partial_model(model, skipped, name))
                    under_way.advance()
            return max(able, key=rank, default=None)

        # The latest exits first: they take about as long as the sets of step 2, and so tell what all will take.
        compare(block_parts(range(first, len(blocks))) for first in range(len(blocks) - 1, 0, -1))
        present: Skipped | None = frozenset()
        while present is not None:
            present = compare(present | unit for unit in each_unit if not unit <= present)
        best, before = max(known, key=rank, default=None), None
        while best is not None and best != before:
            inside = [unit for unit in each_unit if unit <= best]
            outside = [unit for unit in each_unit if not unit <= best]
            exchanged = ((best - old) | new for old in inside for new in outside)
            compare([*(best | unit for unit in outside), *(best - unit for unit in inside), *exchanged])
            best, before = max(known, key=rank, default=None), best
    assert best is not None  # an early exit, if nothing else
    return SkippedParts(best, "search", known[best], len(known))

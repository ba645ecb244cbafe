"""The target without some of its layers as a drafter (Draft & Verify 2309.08168; SWIFT 2410.06916)."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.network_drafter import Drafts
from specdec.drafters.small_model import SmallModel
from specdec.models.decoder import Decoder
from specdec.models.partial import parse_parts, partial_model, written_parts
from specdec.self_speculation.calibration import CalibrationText, CalibrationTextConfig, own_model
from specdec.self_speculation.skip_search import SkippedParts, Units, kept_search
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.tree_building.siblings import Siblings


@typed
class LayerSkipConfig(CalibrationTextConfig):
    name: Literal["layer_skip"]
    skip: Annotated[list[int | str], Field(min_length=1)] | Literal["auto"]
    units: Units
    evaluations: AtLeastOne
    drafts: Drafts
    siblings: Siblings
    cache_dir: Annotated[str, Field(min_length=1)] | None

    @field_validator("skip")
    @classmethod
    def _skip_names_parts(cls, skip: list[int | str] | Literal["auto"]) -> list[int | str] | Literal["auto"]:
        if skip != "auto":
            parse_parts(skip)
        return skip


@drafters.register("layer_skip")
class LayerSkip(SmallModel):
    """Drafts with the target's own model without a set of attentions and MLPs (Draft & Verify 2309.08168, section 3).

    q is the law of that model, standardised by the target's own sampling, and each token is drawn from it; under a
    greedy target, or with `drafts=greedy`, each token is the most likely one, a point mass. Chains, rows and trees are
    made as `small_model` makes them; the weights are the target's own. A draft of gamma tokens takes gamma calls of the
    layers that are left.

    Behind the first skipped layer, keys and values are not the target's, so the drafter has a cache of its own for the
    layers that are left, and prefills it. It is rolled back to the committed text as that of any model that drafts.
    (The paper's code lets the drafter read the target's cache, which makes what is proposed depend on where the round
    began.) So a proposal depends on the text alone, and the replay is position-wise.

    Attributes:
        skipped: the parts that are left out, and how they were chosen.
    """

    capabilities = DrafterCapabilities(
        fills=EVERY_STRUCTURE, runs_target=True, reports_confidence=True, replay="position"
    )
    strategy = "layer_skip"

    def __init__(
        self,
        target: Causal,
        skipped: SkippedParts,
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
    ) -> None:
        """
        Raises:
            UsageError: see `partial_model`.
            ModelLoadError: a model that does not work without these layers.
        """
        self.skipped = skipped
        model = partial_model(target.model, skipped.parts, target.name)
        decoder = Decoder(model, target.name, target.decoder.prefill_chunk)
        super().__init__(model, target, decoder=decoder, drafts=drafts, siblings=siblings)

    @classmethod
    def from_config(cls, config: LayerSkipConfig, target: Target) -> "LayerSkip":  # type: ignore[override]
        whole = own_model(target, "layer_skip")
        if config.skip != "auto":
            return cls(whole, SkippedParts(parse_parts(config.skip), "config"), config.drafts, config.siblings)
        calibration = CalibrationText(config, whole)
        skipped = kept_search(config.cache_dir, whole.hidden.identity, calibration, config.units, config.evaluations)
        return cls(whole, skipped, config.drafts, config.siblings)

    def describe(self) -> dict[str, Any]:
        found = self.skipped
        known = {} if found.worth is None else {"calibration": asdict(found.worth), "sets_compared": found.compared}
        return {**super().describe(), "skip": written_parts(found.parts), "skip_by": found.by, **known}

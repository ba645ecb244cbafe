"""Trees of one or several small models, merged into one draft (SpecInfer 2305.09781, section 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from specdec.config import typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.nested import Composite, described
from specdec.drafters.base.network_drafter import NetworkDrafter
from specdec.drafters.small_model import DraftModelConfig, SmallModel, SmallModelConfig, draft_tree
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import growing


@typed
class SpecTreeConfig(DraftModelConfig):
    models: Annotated[list[str], Field(min_length=1)]
    children: Literal["sampled", "ranked"]


@drafters.register("spec_tree")
class SpecTree(Composite, NetworkDrafter):
    """Drafts rows and trees with one or several small models, which share out the children of every node (see `grow`):
    the child of rank j of a node of model m comes from model m + j. SpecInfer lets each model grow a tree of its own
    and merges them; here a model also adds children to the nodes of the others, and no two siblings are alike.

    `sampled`: each child is drawn from its own model's law, standardised by the target's own sampling, without the
    tokens of the siblings before it; q is that law. Multi-round rejection tests siblings in the order in which they
    were drawn, each with its q, whoever drew it; so it is exact for several models as it is for one (Sequoia 2402.12374
    and RSD 2402.14160 for one, SpecInfer's Algorithm 2 for independent draws of several, which are not made here).
    `ranked`, and every draft under a greedy target: the most likely tokens, point masses.

    A draft takes a call of each model for every level. All models need the target's tokenizer; decoder-only. Where a
    text is longer than a model's context, the others draft without it.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"rows", "tree"}), replay="copying")
    not_finite = (
        "The logits of a model of drafter.models are not finite: the run stops here. Try drafter.dtype=float32, or "
        "check the models."
    )

    def __init__(
        self, models: Mapping[str, SmallModel], target: Target, children: Literal["sampled", "ranked"]
    ) -> None:
        """Make a drafter of at least one model, made for `target`, by the names in `Source`."""
        super().__init__(target, "greedy" if children == "ranked" else "sampled", "without_replacement")
        self.models = dict(models)
        self.nested = {f"models.{name}": model for name, model in models.items()}
        self.capabilities = replace(self.capabilities, vocab_size=target.vocab_size)
        self._begin(None)

    @classmethod
    def from_config(cls, config: SpecTreeConfig, target: Target) -> "SpecTree":
        models = dict[str, SmallModel]()
        shared: dict[str, Any] = {key: getattr(config, key) for key in ("dtype", "attention", "prefill_chunk")}
        shared |= {"siblings": "without_replacement", "translate": False, "revision": None}
        shared["drafts"] = "greedy" if config.children == "ranked" else "sampled"
        for name in config.models:
            model = SmallModel.from_config(SmallModelConfig(name="small_model", model=name, **shared), target)
            if model.model.config.is_encoder_decoder:
                raise UsageError(
                    f"Bad value drafter.models={name}: an encoder-decoder drafts chains only; use +drafter=small_model."
                )
            size = model.capabilities.vocab_size
            if size not in (None, target.vocab_size):
                raise UsageError(
                    f"Bad value drafter.models={name}: it was made for a vocabulary of {size} tokens, the target has "
                    f"{target.vocab_size}; use a model with the target's own tokenizer."
                )
            label, number = Path(name).name, 2
            while label in models:
                label, number = f"{Path(name).name}_{number}", number + 1
            models[label] = model
        return cls(models, target, config.children)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin(text.generator)
        super().start(text, states)

    def draft(self, structure: Structure) -> Draft:
        reach = {name: model.reach(structure.gamma) for name, model in self.models.items()}
        able = [name for name, levels in reach.items() if levels > 0]
        if not able:
            return EMPTY
        shape = structure.clamped(min(reach[name] for name in able))
        models = [self.models[name].tree_model(shape) for name in able]
        return self.checked(draft_tree(models, growing(shape, self.how(shape), able, self.generator)))

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        NetworkDrafter.commit(self, tokens)
        super().commit(tokens, states)

    def describe(self) -> dict[str, Any]:
        return described(self.models)

    @property
    def flops_per_token(self) -> float:
        """Operations of one evaluated token by all models, each of which reads every node."""
        return sum(model.flops_per_token for model in self.models.values())

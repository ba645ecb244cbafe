"""MLP speculators ("accelerators") as IBM publishes them: stages that read one state and one token each."""

from specdec.config import NonEmpty, typed
from specdec.drafters.base import drafters
from specdec.drafters.base.heads import HeadsDrafter
from specdec.drafters.base.network_drafter import DrawnConfig
from specdec.errors import UsageError
from specdec.published.network_files import load_published
from specdec.targets.base import Target


@typed
class MlpSpeculatorConfig(DrawnConfig):
    model: NonEmpty | None


@drafters.register("mlp_speculator")
class MlpSpeculator(HeadsDrafter):
    """Continues each path of a draft by one more stage, which reads the path's last token (Wertheimer et al.
    2404.19124). q is the stage's law; one pass for each level.

    The reference ranks chains of the product of each stage's best tokens; here `structure` says what is drafted.
    """

    strategy, grounded = "mlp_speculator", True

    @classmethod
    def from_config(cls, config: MlpSpeculatorConfig, target: Target) -> "MlpSpeculator":  # type: ignore[override]
        if config.model is None:
            raise UsageError(
                "Missing value drafter.model: give the folder or hub id of an MLP speculator that was made for the "
                "target, such as ibm-ai-platform/llama3-8b-accelerator; none comes with specdec."
            )
        heads, about = load_published(config.model, target, cls.strategy)
        return cls(heads, target, about, config.drafts, config.siblings)

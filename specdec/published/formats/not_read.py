"""Formats that are recognised and not read, each with what is missing."""

from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles
from specdec.published.recognise import CheckpointFormat, formats


@formats.register("EAGLE-3 with mask tokens")
class LooseParallelEagle(CheckpointFormat):
    refusal = (
        "its config is established in the speculators format only (speculators_model_type=peagle, a mask_token_id, the "
        "decoder's config apart)"
    )

    def matches(self, files: CheckpointFiles) -> bool:
        return SPECULATORS not in files.config and "mask_hidden" in files.tensors


@formats.register("assistant over shared keys")
class SharedKeysAssistant(CheckpointFormat):
    refusal = (
        "its layers have no keys and values and attend to those of the target's last layers of each kind, which a "
        "target does not give to a drafter here"
    )

    def matches(self, files: CheckpointFiles) -> bool:
        return str(files.config.get("model_type", "")).endswith("_assistant")


@formats.register("EAGLE-3 with latent attention")
class LatentEagle(CheckpointFormat):
    refusal = "its attention compresses keys and values, and the equations of that layer are not made"

    def matches(self, files: CheckpointFiles) -> bool:
        return "fc.weight" in files.tensors and any("kv_a_proj" in name for name in files.tensors)


@formats.register("speculators of another type")
class OtherSpeculators(CheckpointFormat):
    refusal = "no published file of this type is known, so its tensors are not established"

    def matches(self, files: CheckpointFiles) -> bool:
        kind = files.config.get(SPECULATORS)
        return kind is not None and kind not in ("eagle", "eagle3", "peagle", "dflash", "dspark", "mtp", "mlp")

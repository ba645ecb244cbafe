"""DFlash, and DSpark, which adds a Markov head to it: as their authors, DeepSpec, SpecForge and ModelOpt publish them,
and as speculators writes them.
"""

import logging
from collections.abc import Sequence
from typing import Any

from specdec.eagle.eagle_network import FeatureNetwork
from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles
from specdec.published.formats.eagle_published import EagleFormat, Reading
from specdec.published.recognise import check_target, formats
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

# Options of other readers that change the attention or the embeddings, and the values that leave them as they are.
_PLAIN: dict[str, tuple[Any, ...]] = {"projector_type": (None, "dflash", "dspark")}
_PLAIN |= dict.fromkeys(("causal", "is_causal", "use_swa", "use_sliding_window", "shift_label"), (None, False))


class BlockFormat(EagleFormat):
    """A block of mask tokens over the target's features. Layer numbers are inputs of blocks as speculators writes them,
    where maybe some of the target's tokens are drafted; elsewhere they are outputs of blocks.
    """

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        if SPECULATORS in files.config:
            reading = Reading(files, files.setting("transformer_layer_config", dict))
            inputs = files.setting("aux_hidden_state_layer_ids", list) if layers is None else list(layers)
            return _network(reading, target, files.config, inputs)
        inner = files.setting("dflash_config", dict, {})
        reading = Reading(files, files.config)
        depth = target.hidden.layers
        check_target(files, target, layers=files.config.get("num_target_layers"))
        joined, width = reading.shape("fc.weight")[1], reading.number("hidden_size")
        numbers = inner.get("target_layer_ids", files.config.get("target_layer_ids"))
        if numbers is None:  # outputs of the middle block, or evenly from 1 to depth - 3
            count = joined // width
            evenly = (round(1 + place * (depth - 4) / (count - 1)) for place in range(count))
            numbers = [depth // 2] if count == 1 else list(evenly)
        whole_numbers = isinstance(numbers, list) and all(type(number) is int for number in numbers)
        files.refuse_if(not whole_numbers, f"has target_layer_ids={numbers!r}: they should be a list of whole numbers.")
        boundaries = [number + 1 for number in numbers] if layers is None else list(layers)
        return _network(reading, target, {**files.config, **inner}, boundaries)


@formats.register("DFlash")
class DFlash(BlockFormat):
    """A block whose slots do not read each other's tokens."""

    def matches(self, files: CheckpointFiles) -> bool:
        ours = {"fc.weight", "hidden_norm.weight"} <= files.tensors.keys() and "mask_hidden" not in files.tensors
        return SPECULATORS not in files.config and ours and not _says_dspark(files)


@formats.register("speculators dflash")
class SpeculatorsDFlash(BlockFormat):
    speculators = "dflash"


@formats.register("DSpark")
class DSpark(BlockFormat):
    """A block with a Markov head (2607.05147); told by the head's tensors or its rank, which is 0 without one."""

    def matches(self, files: CheckpointFiles) -> bool:
        latent = any("kv_a_proj" in name for name in files.tensors)
        return SPECULATORS not in files.config and _says_dspark(files) and not latent


@formats.register("speculators dspark")
class SpeculatorsDSpark(BlockFormat):
    speculators = "dspark"


def _says_dspark(files: CheckpointFiles) -> bool:
    inner = files.config.get("dflash_config")
    keys = files.config.keys() | (inner.keys() if isinstance(inner, dict) else set())
    return "markov_rank" in keys or any(name.startswith("markov_head.") for name in files.tensors)


def _network(reading: Reading, target: Target, options: dict[str, Any], boundaries: list[int]) -> FeatureNetwork:
    files = reading.files
    for key, plain in _PLAIN.items():
        unread = options.get(key, reading.config.get(key)) not in plain
        files.refuse_if(unread, f"sets {key}, which is not read: its effect is not established.")
    sliding = "sliding_attention" in (reading.config.get("layer_types") or ())
    files.refuse_if(sliding, "has layers of sliding attention, which are not read: readers mask them differently.")
    files.refuse_if(
        reading.rotary("rope_theta") is None, "has no rope_theta in its config.json: write the target's there."
    )
    gemma = target.model is not None and target.model.config.model_type.startswith("gemma")
    files.refuse_if(gemma, "drafts for a Gemma, whose scaled embeddings and capped logits it would lack.")
    values, size = reading.decoder(), len(target.hidden.output_layer)
    block, token = options.get("block_size"), options.get("mask_token_id")
    if type(block) is not int or block < 2 or type(token) is not int or not 0 <= token < size:
        raise ModelLoadError(
            f"{files} has block_size={block!r} and mask_token_id={token!r}: they should be a whole number from 2 on, "
            f"and a token below {size}."
        )
    files.refuse_if(
        reading.shape("fc.weight")[1] != len(boundaries) * values["hidden"],
        f"names the {len(boundaries)} layers {boundaries}, and its fc reads another number.",
    )
    dspark = files.config.get(SPECULATORS) == "dspark" or _says_dspark(files)
    rank, kind = options.get("markov_rank"), options.get("markov_head_type", "vanilla")
    if dspark and rank is None:
        rank = reading.shape("markov_head.markov_w1.weight")[1]
    files.refuse_if(
        (rank is not None and type(rank) is not int) or kind not in ("vanilla", "gated", "rnn"),
        f"has markov_rank={rank!r} and markov_head_type={kind!r}: they should be a whole number, 0 for no Markov head, "
        "and vanilla, gated or rnn.",
    )
    confidence = [name for name in reading.places if name.startswith("confidence_head.proj.")]
    if confidence:
        logger.info("%s has a confidence head, which is not read: `structure` says how long a draft is.", files)
    own_output = "lm_head.weight" in reading.places
    drafted = reading.shape("lm_head.weight")[0] if own_output else size
    values |= {
        "form": "dflash",
        "layers": reading.number("num_hidden_layers"),
        "boundaries": boundaries,
        "target_hidden": values["hidden"],
        "draft_vocabulary": drafted if drafted != size else None,
        "own_output": own_output,
        "own_embedding": "embed_tokens.weight" in reading.places,
        "block": block,
        "mask_token": token,
        "shifted": options.get("sample_from_anchor", dspark),
        "markov": kind if rank else None,
        "markov_rank": rank or None,
    }
    return reading.network(target, values, [*confidence, *([] if drafted != size else ["d2t", "t2d"])])

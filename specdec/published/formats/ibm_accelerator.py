"""MLP speculators ("accelerators") of IBM: small stages that read a state and one token each."""

import torch

from specdec.errors import ModelLoadError
from specdec.heads.draft_heads import DraftHeads
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles
from specdec.published.recognise import CheckpointFormat, NetworkFormat, check_target, fill, formats, weights_of
from specdec.published.staged_mlp import StagedMlp, StagedSizes
from specdec.targets.base import Target

_PREFIX = "speculator."
_SHARED = 16  # stages for each tensor that tied ones share, far above any published speculator


@formats.register("MLP speculator")
class MlpSpeculatorFormat(NetworkFormat):
    """Tensors `emb.{i}`, `proj.{i}`, `ln.{i}` and `head.{i}`, with or without `speculator.` before them.

    Stages that are tied have one embedding, norm and output layer and one projection from stage 1 on; a file holds each
    once, or again for every stage.
    """

    drafters = ("mlp_speculator",)

    def matches(self, files: CheckpointFiles) -> bool:
        return files.config.get("model_type") == "mlp_speculator"

    def load(self, files: CheckpointFiles, target: Target) -> DraftHeads:
        size = files.setting("emb_dim", int)
        sizes = StagedSizes(
            stages=files.setting("n_predict", int),
            inner=files.setting("inner_dim", int, 0) or size,
            size=size,
            vocabulary=files.setting("vocab_size", int),
            tied=files.setting("tie_weights", bool, False),
            scaled=files.setting("scale_input", bool, False),
        )
        if min(sizes.stages, sizes.inner, sizes.size, sizes.vocabulary) < 1:
            raise ModelLoadError(f"{files} has a size below 1 in its config.json.")
        # Tied stages share their tensors, and a file of a published one has five stages at most.
        files.check_parts("n_predict", sizes.stages // _SHARED if sizes.tied else sizes.stages)
        check_target(files, target, width=size, vocabulary=sizes.vocabulary)
        with torch.device("meta"):
            heads = StagedMlp(sizes)
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in files.tensors) else ""
        own = {name: tuple(weight.shape) for name, weight in heads.state_dict().items()}
        copies: dict[str, str] = {}  # tensors that tied stages may repeat, and which each repeats
        for name in own if sizes.tied else ():
            module, stage, part = name.split(".")
            if int(stage) == (min(sizes.stages, 2) - 1 if module == "proj" else 0):
                copies |= {f"{module}.{other}.{part}": name for other in range(int(stage) + 1, sizes.stages)}
        optional = {prefix + copy: own[name] for copy, name in copies.items()}
        weights = weights_of(files, heads, prefix.__add__, optional=optional)
        for copy, name in copies.items():
            if prefix + copy in files.tensors and not torch.equal(files.tensor(prefix + copy), weights[name]):
                raise ModelLoadError(f"{files} says tie_weights, and its {copy} differs from its {name}.")
        fill(heads, weights, target)
        return heads


@formats.register("speculators MLP")
class SpeculatorsMlp(CheckpointFormat):
    """MLP speculators in the config of the library `speculators`."""

    refusal = "no published file has it, and the library itself dropped it; give the original with its own config.json"

    def matches(self, files: CheckpointFiles) -> bool:
        return files.config.get(SPECULATORS) == "mlp"

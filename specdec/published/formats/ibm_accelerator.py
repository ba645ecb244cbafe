"""MLP speculators ("accelerators") of IBM: n stages, each of which reads the state of the one before and one token."""

from math import sqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.heads.network import DraftHeads
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.recognise import CheckpointFormat, NetworkFormat, check_target, fill, formats, weights_of
from specdec.targets.base import Target

_PREFIX = "speculator."
_SHARED = 16  # stages for each tensor that tied ones share, far above any published speculator
_EPSILON = 1e-6


class StagedSizes(NamedTuple):
    stages: int  # n, tokens that it drafts at most
    inner: int  # width of a state between stages, I
    size: int  # D, of the target
    vocabulary: int  # V
    tied: bool  # all stages have one embedding, norm and output layer, and all but the first one projection
    scaled: bool  # h_t is normalised first


class StagedMlp(DraftHeads):
    """Stage i makes s = GELU(norm(P_i s + (w_e/w_s) e_i(x_{t+i}))), beginning with s = h_t; its head predicts
    x_{t+i+1}. The norm divides by the root of the mean square; w_s = 0.5^(0.5/n), w_e = sqrt((1 - w_s^2) I/2).

    The modules have the names of the published tensors.
    """

    grounded = True

    def __init__(self, sizes: StagedSizes) -> None:
        super().__init__()
        self.sizes, self.hidden_size, self.vocab_size = sizes, sizes.size, sizes.vocabulary
        stages, inner = sizes.stages, sizes.inner
        own = 1 if sizes.tied else stages
        self.emb = nn.ModuleList(nn.Embedding(sizes.vocabulary, inner) for _ in range(own))
        self.proj = nn.ModuleList(
            nn.Linear(inner if stage else sizes.size, inner, bias=False)
            for stage in range(min(stages, 2) if sizes.tied else stages)
        )
        self.ln = nn.ModuleList(_ScaledAndShifted(inner) for _ in range(own))
        self.head = nn.ModuleList(nn.Linear(inner, sizes.vocabulary, bias=False) for _ in range(own))
        state = 0.5 ** (0.5 / stages)
        self._token_weight = sqrt((1 - state**2) * inner / 2) / state

    def __len__(self) -> int:
        return self.sizes.stages

    def draft_features(self, k: int, state: Tensor, drafted: Tensor) -> Tensor:
        s = state.expand(len(drafted), -1)
        if self.sizes.scaled:
            s = F.rms_norm(s, [self.sizes.size], eps=_EPSILON) / sqrt(2)
        for stage, tokens in enumerate(drafted.unbind(1)):
            embedded = _of_stage(self.emb, stage)(tokens)
            s = _of_stage(self.proj, stage)(s) + self._token_weight * embedded
            s = F.gelu(_of_stage(self.ln, stage)(s))
        return s

    def output_layer(self, k: int) -> Tensor:
        return _of_stage(self.head, k - 1).weight

    @property
    def flops_per_token(self) -> float:
        # The stages before are computed again for every token.
        stages, inner = self.sizes.stages, self.sizes.inner
        mixed = self.sizes.size * inner + inner * inner * (stages - 1) / 2
        return 2.0 * (mixed + self.vocab_size * inner)

    def describe(self) -> dict[str, Any]:
        return {"count": len(self), "grounded": True, **self.sizes._asdict()}


class _ScaledAndShifted(nn.RMSNorm):
    """The norm between stages."""

    def __init__(self, size: int) -> None:
        super().__init__(size, eps=_EPSILON)
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias


def _of_stage(modules: nn.ModuleList, stage: int) -> Any:
    """Return the module of a stage; tied stages share the last one."""
    return modules[min(stage, len(modules) - 1)]


@formats.register("MLP speculator")
class MlpSpeculatorFormat(NetworkFormat):
    """Tensors `emb.{i}`, `proj.{i}`, `ln.{i}` and `head.{i}`, with or without `speculator.` before them. A file holds
    what tied stages share (see `StagedSizes`) once, or again for every stage.
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
        smallest = min(sizes.stages, sizes.inner, sizes.size, sizes.vocabulary)
        files.refuse_if(smallest < 1, "has a size below 1 in its config.json.")
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
            differs = prefix + copy in files.tensors and not torch.equal(files.tensor(prefix + copy), weights[name])
            files.refuse_if(differs, f"says tie_weights, and its {copy} differs from its {name}.")
        return fill(heads, weights, target)


@formats.register("speculators MLP")
class SpeculatorsMlp(CheckpointFormat):
    refusal = "no published file has it, and the library itself dropped it; give the original with its own config.json"
    speculators = "mlp"

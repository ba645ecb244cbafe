"""The target's own multi-token-prediction heads as a drafter (MTP; DeepSeek-V3 2412.19437, section 2.2)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from specdec.config import Named, NonEmpty, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.calibration import own_model
from specdec.drafters.base.network_drafter import Along, Drafts, FeatureDrafter
from specdec.eagle.mtp_network import MtpNetwork, MtpText, drafts_along
from specdec.errors import UsageError
from specdec.models.load import content_hash, describe_weights
from specdec.models.model_files import is_gguf
from specdec.published.checkpoint_files import open_checkpoint
from specdec.published.formats.mtp_module import MtpModule
from specdec.targets.base import Target


@typed
class MtpConfig(Named):
    model: NonEmpty | None
    drafts: Drafts


@drafters.register("mtp")
class Mtp(FeatureDrafter):
    """Drafts chains with the target's own multi-token-prediction heads (DeepSeek-V3 2412.19437, section 2.2). The first
    reads the target's last state of each token with the next token; each further head reads the state that the one
    before left. A draft of gamma tokens takes gamma passes of a head and of the output layer.

    With fewer heads than tokens, step k takes head k modulo their number, which reads the state behind the norm of the
    head before, as the engines do. The heads have keys and values of their own, of committed tokens only: whatever was
    accepted or rejected, these rows are made of the target's states and of what the heads make of them.

    q is the law of the step's head (see `NetworkDrafter`), from which each token is drawn.
    """

    capabilities = DrafterCapabilities(
        fills=frozenset({"chain"}), reads_states=True, runs_target=True, reports_confidence=True, replay="start"
    )

    network: MtpNetwork
    strategy = "mtp"
    rows_of = MtpText
    not_finite = "The MTP heads' logits are not finite: the run stops here. Try target.dtype=float32."

    def __init__(self, config: MtpConfig, target: Target) -> None:
        """Raises UsageError: a target without a decoder, a GGUF file, a checkpoint without MTP weights, or with others
        than the target's (see `MtpModule.load`).
        """
        own = own_model(target, "mtp")
        name = config.model or own.name
        if is_gguf(name):
            raise UsageError(
                f"Bad value drafter.model={config.model or 'null'}: MTP weights of a GGUF file ({name}) are not read; "
                "give the checkpoint that it was made from."
            )
        files = open_checkpoint(name, None if config.model else getattr(own.model.config, "_commit_hash", None))
        network = MtpModule().load(files, own).eval().requires_grad_(False)
        super().__init__(target, network, (0,), config.drafts, "without_replacement")
        sha256, width = content_hash(str(Path(name).expanduser())), network.output_layer.shape[1]
        self._about = {"format": "MTP module", "commit": files.commit, "sha256": sha256}
        self.capabilities = replace(self.capabilities, vocab_size=target.vocab_size, state_width=width)
        self._begin(None)

    def drafts_along(self, tokens: Tensor, features: Tensor, first: int, depth: int) -> Along:
        """See `FeatureDrafter.drafts_along`: chains from all places of a piece at once, each behind the root that its
        row reads.
        """
        padded = pad(tokens, (0, depth))
        for root, draft in drafts_along(self.network, tokens, features, first + 1):
            logits = draft.first
            for k in range(depth):
                logits = draft.next(padded[root + k :][: len(logits)]) if k else logits
                yield root - 1, k, logits

    @property
    def notes(self) -> tuple[str, ...]:
        count = len(self.network.heads)
        heads = "one MTP head" if count == 1 else f"{count} MTP heads"
        return (
            f"The checkpoint has {heads}: from draft token {count + 1} on, a head is used again, on states that it may "
            "not have been trained for.",
        )

    def describe(self) -> dict[str, Any]:
        return {**describe_weights(self.network), "heads": len(self.network.heads), **self._about}

    @property
    def flops_per_token(self) -> float:
        """Operations of one head, all its experts counted, and of the output layer. The rows of the tokens of the round
        before, and those that a further head makes again, are left out.
        """
        head = sum(weight.numel() for weight in self.network.heads[0].parameters())
        return 2.0 * (head + self.network.output_layer.numel())

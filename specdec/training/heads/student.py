"""The modules that a training of heads changes: the heads and, if it is trained too, the backbone."""

from dataclasses import asdict

import torch
from torch import Tensor, nn

from specdec.heads.checkpoint import read_heads
from specdec.heads.network import Heads
from specdec.targets.base import Target
from specdec.training.heads.backbone import Backbone, backbone_loss
from specdec.training.heads.head_loss import heads_loss
from specdec.training.heads.head_recipe import HeadOptimizerConfig, HeadTrainConfig
from specdec.training.state_training import check_first


class Student(nn.Module):
    """The heads, and the backbone if it is trained."""

    def __init__(self, heads: Heads, backbone: Backbone | None, config: HeadTrainConfig) -> None:
        super().__init__()
        self.heads, self.backbone, self.loss = heads, backbone, config.loss

    def forward(
        self, tokens: Tensor, scored: Tensor, scales: list[float], states: Tensor | None, teacher: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the heads' loss and the backbone's, each weighted.

        Args:
            tokens, scored: [B, S].
            scales: the factors on the summed losses of the backbone and of heads 1, ..., K.
            states: [B, S, D] of a frozen target.
            teacher: [B, S, V] its logits, if the heads' loss has a share against them.
        """
        own = tokens.new_zeros((), dtype=torch.float32)
        if self.backbone is not None:
            moving = scales[0] > 0
            with torch.set_grad_enabled(moving):
                states, logits = self.backbone(tokens)
            ends = self.backbone.ends()  # heads read both, and must not move them either while the backbone stands
            self.heads.rebind(*(ends if moving else (weight.detach() for weight in ends)))
            if self.loss.teacher or (moving and self.loss.self_distillation):
                teacher = self.backbone.original_logits(tokens)
            if moving:
                original = teacher if self.loss.self_distillation else None
                own = scales[0] * backbone_loss(logits, tokens, scored, original, self.loss.self_distillation)
        assert states is not None
        teacher = teacher if self.loss.teacher else None
        return heads_loss(self.heads, states.float(), tokens, scored, scales[1:], teacher, self.loss.teacher), own


def first_heads(config: HeadTrainConfig, target: Target) -> Heads:
    """Return fresh heads in float32, or those of `init`.

    Raises:
        UsageError: the heads of the file are of another kind, or were trained on other weights.
    """
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        heads = Heads(config.heads, target.hidden.embedding.detach(), target.hidden.output_layer.detach()).float()
    if config.init is None:
        return heads
    stored = read_heads(config.init, key="init")
    check_first(
        "file of heads", config.init, stored.target, asdict(stored.config), "heads", asdict(config.heads), target
    )
    heads.load_state_dict(stored.weights)
    return heads


def build_optimizer(student: Student, config: HeadOptimizerConfig) -> torch.optim.Optimizer:
    """Build an optimizer with two groups, the heads and the trained backbone; each keeps its `base_lr`."""
    rates = {"heads": config.learning_rate * config.heads_multiplier, "backbone": config.learning_rate}
    groups = [
        {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate, "base_lr": rate, "part": part}
        for part, rate in rates.items()
        if (module := getattr(student, part)) is not None
    ]
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(groups, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay, fused=True)

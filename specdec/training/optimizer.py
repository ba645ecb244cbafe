"""The optimizers and their rates: Muon for the hidden matrices and AdamW for the rest, or Adam for heads."""

import math
from collections import defaultdict

import torch
from torch import nn

from specdec.training.recipes import OptimizerConfig, RateConfig


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Build Muon over every 2-D parameter of the decoder layers and of what fuses features, and AdamW over embeddings,
    output layers and norms.
    """
    matrices: dict[float, list[nn.Parameter]] = defaultdict(list)  # by factor on the learning rate
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim == 2 and any(part in f".{name}" for part in (".layers.", ".h.", ".fc.")):
            # Muon's own factor sqrt(max(1, out/in)) reads a shape as [out, in]; GPT-2's weights lie as [in, out], and
            # a factor sqrt(out/in) turns one into the other.
            factor = (parameter.shape[1] / parameter.shape[0]) ** 0.5 if ".h." in name else 1.0
            matrices[factor].append(parameter)
        else:
            others.append(parameter)
    muon = torch.optim.Muon(
        [{"params": group, "lr": config.muon_lr * factor} for factor, group in matrices.items()],
        lr=config.muon_lr,
        momentum=config.muon_momentum,
        weight_decay=config.weight_decay,
        adjust_lr_fn="original",
    )
    adamw = torch.optim.AdamW(
        others, lr=config.adam_lr, betas=(config.adam_beta1, config.adam_beta2), weight_decay=0.0, fused=True
    )
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return [muon, adamw]


def schedule(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the factor on every learning rate at step 0..steps-1: linear warm-up, flat, linear to zero."""
    warmup = max(config.warmup_share * steps, 1.0)
    decay = max(config.decay_share * steps, 1.0)
    return min(1.0, (step + 1) / warmup, (steps - step) / decay)


def warm_up(step: int, warmup_steps: int) -> float:
    """Return the factor on the learning rate after `step` steps of warming up."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


def rate_factor(step: int, steps: int, config: RateConfig) -> float:
    """Return the factor on every learning rate at step 0..steps-1."""
    if step < config.warmup_steps:
        return warm_up(step, config.warmup_steps)
    if config.schedule == "cosine":
        rest = max(steps - config.warmup_steps, 1)
        return 0.5 * (1.0 + math.cos(math.pi * (step - config.warmup_steps) / rest))
    if config.schedule == "trapezoid":
        return min(1.0, (steps - step) / max(config.decay_share * steps, 1.0))
    return 1.0

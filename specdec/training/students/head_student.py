"""Heads on a target's hidden states, with the target frozen (Medusa-1), or trained together with them, whole or by
adapters (Medusa-2; 2401.10774, section 2.2).
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec.errors import UsageError, in_one_line
from specdec.heads.network import Heads
from specdec.published.network_files import TRAINED_HEADS
from specdec.targets.causal import Causal
from specdec.training.data.sequences import Batch
from specdec.training.recipes import HeadLossConfig, HeadTrainConfig, LoraConfig
from specdec.training.student import rate_factor, warm_up
from specdec.training.students.loss_and_accuracy import ChunkedCrossEntropy, HeadAccuracy, positions, score_target
from specdec.training.students.state_student import StateStudent, per_position


class Backbone(nn.Module):
    """The target's model that is trained with its heads, taken out of the target, whose weights change with it; or, if
    it is `adapted`, low-rank adapters on it, and its own weights stay.
    """

    def __init__(self, target: Causal, offset: int, lora: LoraConfig | None, seed: int) -> None:
        """Take the model whose layer `offset`, counted down from the last, the heads read; `seed` is that of the
        adapters' first weights. Raises UsageError: adapters without peft, or on layers that the model does not have.
        """
        super().__init__()
        self.offset, self.adapted = offset, lora is not None
        self._dtype, self._tokenizer = target.model.dtype, target.tokenizer
        if lora is None:
            self.model: Any = target.model.float().requires_grad_(True)
            return
        try:
            import peft
        except ImportError:
            raise UsageError(
                "Adapters (lora) need peft, which is not installed: pip install 'specdec-workbench[lora]', or set lora "
                "to null to train all weights."
            ) from None
        config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=lora.targets,
            task_type=peft.TaskType.CAUSAL_LM,
        )
        with torch.random.fork_rng(), warnings.catch_warnings():
            # peft asks transformers for a property by its former name, whatever it is called with.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            torch.manual_seed(seed)
            try:
                self.model = peft.get_peft_model(target.model, config)
            except ValueError as error:
                raise UsageError(f"Bad value lora.targets={lora.targets}: {in_one_line(error)}.") from None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states [B, S, D] and logits [B, S, V] of tokens [B, S]."""
        output = self.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        return output.hidden_states[-1 - self.offset], output.logits

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the trained weights [V, D] of the input embeddings and of the output layer."""
        return self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight

    @torch.no_grad()
    def original_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, S, V] of an adapted model without its adapters, as it was before the training."""
        with self.model.disable_adapter():
            training = self.model.training
            self.model.eval()
            logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
            self.model.train(training)
        return logits

    def save(self, folder: Path) -> None:
        """Write model and tokenizer as `from_pretrained` reads them, adapters merged, in the model's original dtype."""
        model = self.model.merge_and_unload() if self.adapted else self.model
        model.to(self._dtype).save_pretrained(folder)
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(folder)


class HeadLosses(nn.Module):
    """The heads, and the backbone if it is trained."""

    def __init__(self, heads: Heads, backbone: Backbone | None, loss: HeadLossConfig) -> None:
        super().__init__()
        self.heads, self.backbone, self.loss = heads, backbone, loss

    def forward(
        self, tokens: Tensor, scored: Tensor, scales: list[float], states: Tensor | None, teacher: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the heads' loss (Medusa 2401.10774, eq. 1) and the backbone's, each weighted, see
        `StateStudent.losses_module`; `scales` are the factors on the summed losses of the backbone and of heads 1, ...,
        K: the weight of each, divided by the number of positions that it is averaged over.
        """
        own, share = tokens.new_zeros((), dtype=torch.float32), self.loss.self_distillation
        if self.backbone is not None:
            moving = scales[0] > 0
            with torch.set_grad_enabled(moving):
                states, logits = self.backbone(tokens)
            ends = self.backbone.ends()  # heads read both, and must not move them either while the backbone stands
            self.heads.rebind(*(ends if moving else (weight.detach() for weight in ends)))
            if self.loss.teacher or (moving and share):
                teacher = self.backbone.original_logits(tokens)
            if moving:  # (1 - s) CE(token) + s CE(original's law) of the next token, summed, in nats
                where = positions(tokens, scored, 0)
                law = logits.flatten(0, 1)[where.laws].float().log_softmax(-1)
                own = -law.gather(-1, where.targets.unsqueeze(-1)).sum()
                if share and teacher is not None:
                    soft = teacher.flatten(0, 1)[where.laws].float().softmax(-1)
                    own = (1.0 - share) * own - share * (soft * law).sum()
                own = scales[0] * own
            states = states.float()
        assert states is not None
        total = states.new_zeros(())
        laws = teacher.flatten(0, 1) if teacher is not None and self.loss.teacher else None
        for k, features in enumerate(self.heads.features(states, tokens), start=1):
            where = positions(tokens, scored, k)
            chosen, output = where.select(features), self.heads.output_layer(k)
            total = total + scales[k] * ChunkedCrossEntropy.apply(chosen, output, where, laws, self.loss.teacher)
        return total, own


class HeadStudent(StateStudent):
    """One set of heads, to their file, the backbone beside it if it was trained, and a summary."""

    kind, unit, noun = "heads", "head", "file of heads"
    watched = "heldout/head_1.top1"
    rates = "optimizer.learning_rate"
    files = TRAINED_HEADS
    bounded = True

    config: HeadTrainConfig

    @property
    def units(self) -> int:
        return self.config.heads.count

    @property
    def drafter(self) -> str:
        """The drafter for heads of this kind: those of Stern et al. are like Medusa's, under another name."""
        heads = self.config.heads
        return "grounded" if heads.grounded else "blockwise" if heads.name == "blockwise" else "medusa"

    def untrained(self) -> Heads:
        hidden = self.target.hidden
        return Heads(self.config.heads, hidden.embedding.detach(), hidden.output_layer.detach())

    def losses_module(self) -> "HeadLosses":
        config, target = self.config, self.target
        if config.backbone == "joint":
            if not isinstance(target, Causal):
                raise UsageError(f"Target {type(target).__name__} is no model that can be trained: use target=causal.")
            self.before = score_target(target, self.heldout_parts(None))
            self.backbone = Backbone(target, config.heads.offset_of(target.hidden.layers), config.lora, config.seed)
            self.network.rebind(*self.backbone.ends())
            self.losses = ("train/heads_loss", "train/backbone_loss")
        self.backbone_start = config.loss.backbone.first_step(self.steps) or 0
        return HeadLosses(self.network, self.backbone, config.loss)

    def built_optimizers(self) -> list[torch.optim.Optimizer]:
        config = self.config.optimizer
        parts = [("heads", self.network, config.learning_rate * config.heads_multiplier)]
        parts += [] if self.backbone is None else [("backbone", self.backbone, config.learning_rate)]
        groups = [
            {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate, "base_lr": rate, "part": part}
            for part, module, rate in parts
        ]
        kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
        return [kind(groups, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay, fused=True)]

    def offsets(self) -> tuple[int, ...]:
        return (self.config.heads.offset_of(self.target.hidden.layers),)

    def scales(self, batch: Batch, step: int) -> list[float]:
        loss = self.config.loss
        heads, backbone = loss.heads.at(step, self.steps), loss.backbone.at(step, self.steps)
        return per_position([backbone, *(heads * loss.decay**k for k in range(1, self.units + 1))], batch)

    def set_rates(self, step: int) -> float:
        rate, start = self.config.optimizer.rate, self.backbone_start
        factor = rate_factor(step, self.steps, rate)
        later = warm_up(max(step - start, 0), rate.warmup_steps) if start else 1.0
        groups = self.optimizers[0].param_groups
        for group in groups:
            group["lr"] = group["base_lr"] * factor * (later if group["part"] == "backbone" else 1.0)
        return float(groups[0]["lr"])

    @staticmethod
    def count(accuracy: HeadAccuracy, network: Heads, states: Tensor, tokens: Tensor, scored: Tensor) -> None:
        features = enumerate(network.features(states, tokens), start=1)
        accuracy.add(((own, network.output_layer(k)) for k, own in features), scored, tokens)

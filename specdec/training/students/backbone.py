"""A target's model, trained together with its heads (Medusa-2, 2401.10774, section 2.2), whole or by adapters."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec.errors import UsageError
from specdec.targets.causal import Causal
from specdec.training.recipes import LoraConfig
from specdec.training.students.head_loss import positions


class Backbone(nn.Module):
    """The model, taken out of its target, whose weights change with it from now on.

    Attributes:
        adapted: low-rank adapters are trained, and the model's own weights stay.
    """

    def __init__(self, target: Causal, offset: int, lora: LoraConfig | None, seed: int) -> None:
        """
        Args:
            offset: the layer that the heads read, counted down from the last.
            seed: the seed of the adapters' first weights.
        Raises:
            UsageError: adapters without peft, or on layers that the model does not have.
        """
        super().__init__()
        self.offset, self.adapted = offset, lora is not None
        self._dtype = target.model.dtype
        self._tokenizer = target.tokenizer
        if lora is None:
            self.model: Any = target.model.float().requires_grad_(True)
        else:
            self.model = _with_adapters(target.model, lora, seed)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states [B, S, D] and logits [B, S, V] of tokens [B, S]."""
        output = self.model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        return output.hidden_states[-1 - self.offset], output.logits

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the trained weights [V, D] of the input embeddings and of the output layer."""
        return self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight

    @torch.no_grad()
    def original_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, S, V] of the model without its adapters, as it was before the training."""
        with self.model.disable_adapter() if self.adapted else nullcontext():
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


def backbone_loss(
    logits: Tensor, tokens: Tensor, scored: Tensor, original: Tensor | None, self_distillation: float
) -> Tensor:
    """Return the summed cross entropy of the next token in nats: (1 - s) CE(token) + s CE(original's law).

    Args:
        logits: [B, S, V].
        tokens, scored: [B, S].
        original: [B, S, V] the original's logits; needed if s > 0.
        self_distillation: s.
    """
    where = positions(tokens, scored, 0)
    law = logits.flatten(0, 1)[where.laws].float().log_softmax(-1)
    hard = -law.gather(-1, where.targets.unsqueeze(-1)).sum()
    if original is None:
        return hard
    soft = original.flatten(0, 1)[where.laws].float().softmax(-1)
    return (1.0 - self_distillation) * hard - self_distillation * (soft * law).sum()


def _with_adapters(model: Any, lora: LoraConfig, seed: int) -> Any:
    try:
        import peft
    except ImportError:
        raise UsageError(
            "Adapters (lora) need peft, which is not installed: pip install 'specdec-workbench[lora]', or set lora to "
            "null to train all weights."
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
            return peft.get_peft_model(model, config)
        except ValueError as error:
            raise UsageError(f"Bad value lora.targets={lora.targets}: {' '.join(str(error).split())}") from None

"""Training of whole models: batches in, bfloat16 safetensors out.

It knows models and batches; not Hydra, not MLflow (it is handed a log), not where text comes from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from specdec.errors import ModelLoadError, NumericsError, UsageError
from specdec.training.batches import Batches, TokenizedCorpus, write_atomically
from specdec.training.models.optimizer import build_optimizers, schedule, set_learning_rates
from specdec.training.models.recipe import ModelConfig, TrainConfig, training_fingerprint
from specdec.training.models.scoring import HeldOutLoss, evenly_spaced_slice, heldout_loss, token_losses
from specdec.training.models.tokenizer import bytes_per_token
from specdec.training.resumable import Outcome, ResumableTraining, hardware

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


def llama_config(config: ModelConfig, **tokens: int) -> PretrainedConfig:
    """Llama with tied embeddings."""
    from transformers import LlamaConfig

    return LlamaConfig(
        **tokens,
        hidden_size=config.hidden_size,
        intermediate_size=config.mlp_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
    )


def gpt2_config(config: ModelConfig, **tokens: int) -> PretrainedConfig:
    """GPT-2 without dropout, its embeddings not tied: only so are the sizes of 2211.17192, section 4.1, met."""
    from transformers import GPT2Config

    return GPT2Config(
        **tokens,
        n_embd=config.hidden_size,
        n_inner=config.mlp_size,
        n_layer=config.layers,
        n_head=config.heads,
        n_positions=config.context,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
    )


ARCHITECTURES = {"llama": llama_config, "gpt2": gpt2_config}
INTO_RESIDUAL = ("o_proj.weight", "down_proj.weight", "c_proj.weight")


def build_model(config: ModelConfig, vocabulary: int, end_of_text: int, seed: int) -> PreTrainedModel:
    """A fresh float32 decoder on the CPU; projections into the residual stream start at zero."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    end = {name: end_of_text for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    shape = ARCHITECTURES[config.architecture](config, vocab_size=vocabulary, **end)
    model = AutoModelForCausalLM.from_config(shape).float()
    for name, parameter in model.named_parameters():
        if name.endswith(INTO_RESIDUAL):
            nn.init.zeros_(parameter)
    return model


def training_device(name: str) -> torch.device:
    """`auto` takes the GPU where there is one. Raises UsageError for a GPU that is not there."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("Bad value device=cuda: no CUDA device is available; use device=cpu.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def export_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The model in bfloat16 safetensors with its tokenizer, as `from_pretrained` reads them."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_exported(folder: Path) -> PreTrainedModel:
    """An exported model in float32; raises ModelLoadError when weights are missing or not finite."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True
    )
    if info["missing_keys"] or info["mismatched_keys"]:
        raise ModelLoadError(f"{folder} lacks weights: {sorted(info['missing_keys'])[:3]}.")
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise ModelLoadError(f"{folder} has weights that are not finite.")
    return model.eval()


class Trainer(ResumableTraining):
    """One training of a whole model, to its export and its summary."""

    origin = "another recipe, seed or corpus"
    watched = "heldout.nats_per_token"
    scores = ("heldout.nats_per_token", "heldout.bits_per_byte")

    def __init__(self, config: TrainConfig, corpus: TokenizedCorpus) -> None:
        super().__init__(config.recipe.monitor)
        recipe = config.recipe
        self.name = recipe.name
        self.config, self.recipe, self.corpus = config, recipe, corpus
        self.folder = Path(config.output_dir or f"models/{recipe.name}")
        self.tokenizer = corpus.tokenizer
        self.end_of_text = int(corpus.tokenizer.eos_token_id)
        self.token_bytes = bytes_per_token(corpus.tokenizer)
        self.batches = Batches(corpus, recipe.data, config.seed)
        self.steps, self.step_tokens = self.batches.steps, recipe.data.batch_tokens
        self.device = training_device(config.device)
        model = build_model(recipe.model, len(corpus.tokenizer), self.end_of_text, config.seed)
        self.model = model.to(self.device)
        self.optimizers = build_optimizers(self.model, recipe.optimizer)
        self.fingerprint = training_fingerprint(config, corpus.manifest["sha256"])
        watched = next(iter(corpus.heldout.values()))
        self.heldout = evenly_spaced_slice(watched, recipe.monitor.heldout_tokens, recipe.monitor.heldout_window)
        self.loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor] = token_losses

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    # --- steps

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        if self.recipe.compile:
            if self.device.type == "cpu":
                self.model.set_attn_implementation("eager")  # compiled, it beats the fused kernel there
            # Each stage's shape compiles once.
            self.loss_of = torch.compile(token_losses, dynamic=False)
        super().train(log, display)

    def take_step(self, step: int) -> dict[str, float]:
        """One optimizer step: the mean loss of its tokens, and Muon's learning rate."""
        sequences = torch.from_numpy(self.batches(step)).to(self.device)
        rows = max(1, self.recipe.data.micro_batch_tokens // (sequences.shape[1] - 1))
        count = sequences.shape[0] * (sequences.shape[1] - 1)
        total = 0.0
        for micro in sequences.split(rows):
            with self.arithmetic():
                loss = self.loss_of(self.model, micro).sum() / count
            loss.backward()
            total += loss.item()
        if not np.isfinite(total):
            raise NumericsError(f"The training loss is {total} at step {step}.")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.grad_clip)
        factor = schedule(step, self.batches.steps, self.recipe.optimizer)
        set_learning_rates(self.optimizers, factor)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"train_loss": total, "lr": self.recipe.optimizer.muon_lr * factor}

    def arithmetic(self) -> AbstractContextManager[Any]:
        """bfloat16 autocast where the recipe asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.recipe.bfloat16 else nullcontext()

    def score(self) -> dict[str, float]:
        """The held-out slice, in the arithmetic of training: a monitor, not the reported figure."""
        with self.arithmetic():
            scored = heldout_loss(
                self.model,
                self.heldout,
                self.token_bytes,
                self.end_of_text,
                self.recipe.monitor.heldout_window,
            )
        return dict(zip(self.scores, (scored.nats_per_token, scored.bits_per_byte), strict=True))

    # --- the end

    def finish(self) -> Outcome:
        """Export, score the exported weights in float32 on all held-out text, and write `summary.json`."""
        folder = self.folder / "model"
        export_model(self.model, self.tokenizer, folder)
        exported = load_exported(folder).to(self.device)
        scores = {
            name: heldout_loss(exported, stream, self.token_bytes, self.end_of_text, self.recipe.model.context, rows=1)
            for name, stream in self.corpus.heldout.items()
        }
        scores["all"] = sum(scores.values(), HeldOutLoss(0.0, 0, 0))
        summary = {
            "recipe": asdict(self.recipe),
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "corpus_sha256": self.corpus.manifest["sha256"],
            "parameters": sum(p.numel() for p in exported.parameters()),
            "bytes": sum(f.stat().st_size for f in folder.iterdir()),
            "steps": self.progress.step,
            "tokens": self.progress.step * self.recipe.data.batch_tokens,
            "seconds": round(self.progress.seconds, 1),
            "date": time.strftime("%Y-%m-%d"),
            "hardware": hardware(self.device),
            "heldout": {
                name: asdict(score) | {"nats_per_token": score.nats_per_token, "bits_per_byte": score.bits_per_byte}
                for name, score in scores.items()
            },
        }
        write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        corpus_json = json.dumps(self.corpus.manifest, indent=1) + "\n"
        write_atomically(self.folder / "corpus.json", corpus_json)
        metrics = {
            f"heldout.final.{part}.{unit}": float(getattr(score, unit))
            for part, score in scores.items()
            for unit in ("nats_per_token", "bits_per_byte")
        }
        loss = scores["all"]
        sentence = (
            f"held-out {loss.nats_per_token:.4f} nats per token, {loss.bits_per_byte:.4f} bits per byte; "
            f"exported to {folder}"
        )
        return Outcome(self.folder, summary, metrics, sentence)

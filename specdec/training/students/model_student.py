"""A whole model, trained from nothing on a text in tokens of its own: batches in, bfloat16 safetensors out, scored in
nats per token and bits per byte; and what students have in common whose model is there already and goes on learning.
"""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from specdec.errors import UsageError
from specdec.models.load import content_hash, load_model, load_tokenizer, model_path
from specdec.progress import stage
from specdec.text.writing import write_json
from specdec.training.data.head_data import text_sequences
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.data.tokenized_corpus import Batches, TokenizedCorpus, bytes_per_token, load_corpus
from specdec.training.recipes import AdaptationConfig, ModelConfig, ModelTrainConfig, model_fingerprint
from specdec.training.student import FinishedTraining, SequenceStudent, Student, build_optimizers, training_device

logger = logging.getLogger(__name__)

INTO_RESIDUAL = ("o_proj.weight", "down_proj.weight", "c_proj.weight")


@dataclass(frozen=True)
class HeldOutLoss:
    """Sums over scored tokens."""

    nats: float
    tokens: int
    bytes: int

    @property
    def ratios(self) -> dict[str, float]:
        """The figures that are reported, by their unit."""
        bits = self.nats / math.log(2)
        return {"nats_per_token": self.nats / max(self.tokens, 1), "bits_per_byte": bits / max(self.bytes, 1)}

    def __add__(self, other: "HeldOutLoss") -> "HeldOutLoss":
        return HeldOutLoss(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes)


def token_losses(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each next token in nats, [B, S] float32, for sequences [B, S + 1]."""
    logits = model(input_ids=sequences[:, :-1], use_cache=False).logits
    targets = sequences[:, 1:]
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


@torch.inference_mode()
def heldout_loss(
    model: nn.Module, stream: np.ndarray, tokenizer: PreTrainedTokenizerFast, window: int, at_once: int = 4
) -> HeldOutLoss:
    """Score documents between end-of-text tokens, in sequences of `window` tokens at most, `at_once` in a pass."""
    device = next(model.parameters()).device
    sizes = torch.tensor(bytes_per_token(tokenizer), device=device)
    starts = range(0, len(stream) - 1, window)
    pieces = [torch.from_numpy(stream[s : s + window + 1].astype(np.int64)) for s in starts]
    full = [piece for piece in pieces if len(piece) == window + 1]
    batches = [torch.stack(full[i : i + at_once]) for i in range(0, len(full), at_once)]
    batches += [piece[None] for piece in pieces if len(piece) != window + 1]
    total = HeldOutLoss(0.0, 0, 0)
    with stage("scoring held-out text", total=len(batches), told=False) as under_way:
        for batch in batches:
            batch = batch.to(device)
            losses, targets = token_losses(model, batch), batch[:, 1:]
            scored = targets != tokenizer.eos_token_id
            tokens, size = int(scored.sum()), int(sizes[targets[scored]].sum())
            total += HeldOutLoss(float(losses[scored].double().sum()), tokens, size)
            under_way.advance()
    return total


class ModelStudent(Student):
    """A fresh model, to its export and its summary."""

    origin = "another recipe, seed or corpus"
    watched = "heldout/nats_per_token"
    rates = "the learning rates of recipe.optimizer"
    shorter = "recipe.data.tokens=N reads N tokens"
    scores = ("heldout/nats_per_token", "heldout/bits_per_byte")

    module: PreTrainedModel

    def __init__(self, config: ModelTrainConfig, corpus: TokenizedCorpus) -> None:
        self.config, self.recipe, self.corpus = config, config.recipe, corpus
        self.pace, recipe, tokenizer = config.recipe.monitor, config.recipe, corpus.tokenizer
        self.device, self.dtype = training_device(config.device, recipe.bfloat16)
        self.name, self.folder = recipe.name, Path(config.output_dir or f"models/{recipe.name}")
        self.batches = Batches(corpus, recipe.data, config.seed)
        self.steps, self.step_tokens = self.batches.steps, recipe.data.batch_tokens
        self.module = build_model(recipe.model, len(tokenizer), tokenizer.eos_token_id, config.seed).to(self.device)
        self.optimizer, self.optimizers = recipe.optimizer, build_optimizers(self.module, recipe.optimizer)
        self.fingerprint = model_fingerprint(config, corpus.manifest["sha256"])
        # What is watched: about so many tokens of the held-out text, in pieces from evenly spaced places.
        stream, window = next(iter(corpus.heldout.values())), recipe.monitor.heldout_window
        count = max(1, min(recipe.monitor.heldout_tokens, len(stream) - 1) // window)
        starts = np.linspace(0, max(len(stream) - window - 1, 0), count).astype(int)
        self.heldout = np.concatenate([stream[start : start + window] for start in starts])
        self.loss_of: Callable[[nn.Module, Tensor], Tensor] = token_losses
        if recipe.compile:
            if self.device.type == "cpu":
                self.module.set_attn_implementation("eager")  # compiled, it beats the fused kernel there
            self.loss_of = torch.compile(token_losses, dynamic=False)  # each stage's shape compiles once

    @classmethod
    def open(cls, config: ModelTrainConfig) -> "ModelStudent":
        logger.info("Reading the corpus")
        return cls(config, load_corpus(config.recipe.corpus, config.recipe.model.context, Path(config.corpus_dir)))

    def part_losses(self, step: int) -> Iterator[Tensor]:
        sequences = torch.from_numpy(self.batches(step)).to(self.device)
        at_once = max(1, self.recipe.data.micro_batch_tokens // (sequences.shape[1] - 1))
        count = sequences.shape[0] * (sequences.shape[1] - 1)
        for micro in sequences.split(at_once):
            with self.arithmetic():
                loss = self.loss_of(self.module, micro).sum() / count
            yield loss[None]

    def score(self) -> dict[str, float]:
        """Score the held-out slice in the arithmetic of training: a monitor, not the reported figure."""
        with self.arithmetic():
            window = self.recipe.monitor.heldout_window
            scored = heldout_loss(self.module, self.heldout, self.corpus.tokenizer, window)
        return {f"heldout/{unit}": value for unit, value in scored.ratios.items()}

    def export(self, effort: dict[str, Any]) -> FinishedTraining:
        folder, tokenizer = self.folder / "model", self.corpus.tokenizer
        exported = export_model(self.module, tokenizer, folder)
        scores = {
            name: heldout_loss(exported, stream, tokenizer, self.recipe.model.context, at_once=1)
            for name, stream in self.corpus.heldout.items()
        }
        scores["all"] = sum(scores.values(), HeldOutLoss(0.0, 0, 0))
        summary = {
            "recipe": asdict(self.recipe),
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "corpus_sha256": self.corpus.manifest["sha256"],
            "parameters": sum(weight.numel() for weight in self.module.parameters()),
            "bytes": folder_bytes(folder),
            **effort,
            "heldout": {name: asdict(score) | score.ratios for name, score in scores.items()},
        }
        write_json(self.folder / "corpus.json", self.corpus.manifest)
        metrics = {
            f"heldout/final.{part}.{unit}": value
            for part, score in scores.items()
            for unit, value in score.ratios.items()
        }
        nats, bits = scores["all"].ratios.values()
        sentence = f"held-out {nats:.4f} nats per token, {bits:.4f} bits per byte; exported to {folder}"
        part = "+drafter=small_model drafter" if self.recipe.role == "drafter" else "+drafter=ngram target"
        return self.finished(summary, metrics, sentence, f"{part}.model={folder}".split(" ", 1))


class AdaptedStudent(SequenceStudent):
    """A student of all weights of one model."""

    origin = "another recipe, seed, model or text"
    role: ClassVar[str]  # the pocket model that is meant by pocket, target or drafter
    loss_of: Callable[..., Any]  # the loss of a micro-batch, which a recipe may have compiled

    config: AdaptationConfig
    module: Any

    def __init__(self, config: AdaptationConfig, model: Any, tokenizer: Any, sequences: Sequences) -> None:
        self.tokenizer, self.original = tokenizer, model.name_or_path  # a folder or hub id
        self.device, self.dtype = training_device(config.device, config.bfloat16)
        identity = content_hash(self.original) or str(getattr(model.config, "_commit_hash", None))
        super().__init__(config, sequences, identity)
        self.module = model.to(self.device)
        self.optimizer, self.optimizers = config.optimizer, build_optimizers(self.module, config.optimizer)
        if config.compile:
            self.loss_of = torch.compile(type(self).loss_of, dynamic=False)

    @classmethod
    def open(cls, config: Any) -> "AdaptedStudent":
        name, length = model_path(config.target.model, cls.role), config.data.sequence_length
        model = load_model(name, dtype=torch.float32, device=torch.device("cpu"), attention="auto", kind="causal")
        tokenizer = load_tokenizer(name)
        if tokenizer is None or not getattr(tokenizer, "is_fast", False):
            raise UsageError(
                f"Model target.model={config.target.model} has no fast tokenizer, and it is trained on text: give a "
                "folder with a tokenizer.json."
            )
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if context is not None and length > context:
            raise UsageError(
                f"Bad value data.sequence_length={length}: the context of target.model={config.target.model} has "
                f"{context} tokens."
            )
        # It stays in evaluation mode: dropout, where a model has any, would make a resumed training another one.
        sequences = text_sequences(config.data, tokenizer, config.seed)
        return cls(config, model.requires_grad_(True), tokenizer, sequences)

    def score(self) -> dict[str, float]:
        """Score a part of the held-out text, in the arithmetic of training: a monitor."""
        return self.scored_by(self.module, self.sequences.heldout(self.config.monitor.heldout_batches))

    def exported(self) -> Any:
        """Write the model, and return what was written; from now on all is computed in float32."""
        self.dtype, self.loss_of = torch.float32, type(self).loss_of
        return export_model(self.module, self.tokenizer, self.folder / "model")

    def summary(self, effort: dict[str, Any], exported: nn.Module) -> dict[str, Any]:
        summary = super().summary(effort, exported) | {"bytes": folder_bytes(self.folder / "model")}
        del summary["recipe"]["data"]["folder"]  # a place on this machine
        return summary

    @abstractmethod
    def scored_by(self, model: Any, batches: Iterable[Batch]) -> dict[str, float]:
        """Score a model on held-out text."""


def build_model(config: ModelConfig, vocabulary: int, end_of_text: int, seed: int) -> PreTrainedModel:
    """Build a fresh float32 decoder on the CPU: a Llama with tied embeddings, or a GPT-2 without dropout and with
    embeddings of its own at both ends, so that the sizes are those of 2211.17192, section 4.1. Projections into the
    residual stream start at zero.
    """
    torch.manual_seed(seed)
    common = {
        "vocab_size": vocabulary,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end_of_text),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.architecture == "llama",
    }
    if config.architecture == "llama":
        shape: LlamaConfig | GPT2Config = LlamaConfig(
            **common, intermediate_size=config.mlp_size, num_key_value_heads=config.heads
        )
    else:
        shape = GPT2Config(**common, n_inner=config.mlp_size, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, trust_remote_code=False).float()
    for name, parameter in model.named_parameters():
        if name.endswith(INTO_RESIDUAL):
            nn.init.zeros_(parameter)
    return model


def export_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Any:
    """Write the model in bfloat16 safetensors with its tokenizer, as `from_pretrained` reads them; return what was
    written, loaded in float32 on the model's device.
    """
    copy = type(model)(model.config)  # on the CPU, whatever room the model's device has left
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(str(folder), dtype=torch.float32, device=model.device, attention="auto", kind="causal")


def folder_bytes(folder: Path) -> int:
    """Return the size of the files of an exported model."""
    return sum(file.stat().st_size for file in folder.iterdir())

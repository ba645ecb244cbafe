"""The training loop: batches in, bfloat16 safetensors out; resumable to the bit on a CPU.

It knows models and batches; not Hydra, not MLflow (it is handed a log), not where text comes from.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from specdec.errors import Interrupted, ModelLoadError, NumericsError, UsageError
from specdec.training.data import Batches, TokenizedCorpus, write_atomically
from specdec.training.optimizer import build_optimizers, schedule, set_learning_rates
from specdec.training.recipe import ModelConfig, TrainConfig, training_fingerprint
from specdec.training.scoring import HeldOutLoss, evenly_spaced_slice, heldout_loss, token_losses
from specdec.training.tokenizer import bytes_per_token

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

CHECKPOINT = "checkpoint.pt"
HISTORY = "history.csv"
COLUMNS = ("step", "tokens", "train_loss", "heldout_nats_per_token", "heldout_bits_per_byte", "lr", "seconds")


@dataclass
class Progress:
    """What a checkpoint holds besides tensors. `seconds` are of training, all sittings together."""

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What `summary.json` keeps of a finished training."""

    folder: Path
    summary: dict[str, Any]


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


class Trainer:
    """One training, from its last checkpoint when there is one, to an exported model and its summary."""

    def __init__(self, config: TrainConfig, corpus: TokenizedCorpus) -> None:
        recipe = config.recipe
        self.config, self.recipe, self.corpus = config, recipe, corpus
        self.folder = Path(config.output_dir or f"models/{recipe.name}")
        self.tokenizer = corpus.tokenizer
        self.end_of_text = int(corpus.tokenizer.eos_token_id)
        self.token_bytes = bytes_per_token(corpus.tokenizer)
        self.batches = Batches(corpus, recipe.data, config.seed)
        self.device = training_device(config.device)
        model = build_model(recipe.model, len(corpus.tokenizer), self.end_of_text, config.seed)
        self.model = model.to(self.device)
        self.optimizers = build_optimizers(self.model, recipe.optimizer)
        self.progress = Progress()
        self.fingerprint = training_fingerprint(config, corpus.manifest["sha256"])
        watched = next(iter(corpus.heldout.values()))
        self.heldout = evenly_spaced_slice(watched, recipe.monitor.heldout_tokens, recipe.monitor.heldout_window)
        self.loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor] = token_losses

    # --- checkpoints

    def restore(self) -> bool:
        """Go on from the folder's checkpoint. Raises UsageError when it belongs to another recipe."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return False
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["fingerprint"] != self.fingerprint:
            raise UsageError(
                f"{path} was written by another recipe, seed or corpus "
                f"({state['fingerprint'][:12]}, this is {self.fingerprint[:12]}): "
                "choose another output_dir, or delete it to start again."
            )
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        self.progress = Progress(**state["progress"])
        return True

    def save(self) -> None:
        """Write the checkpoint and the history, each complete or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "fingerprint": self.fingerprint,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": torch.get_rng_state(),
            "progress": asdict(self.progress),
        }
        part = self.folder / (CHECKPOINT + ".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.folder / CHECKPOINT)
        write_atomically(self.folder / HISTORY, history_csv(self.progress.history))

    # --- steps

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        """Take the remaining steps. A signal ends it after the step at hand, with a checkpoint (Interrupted).

        Args:
            log: takes metrics and their step, every `log_every_steps`.
            display: takes the history's row of every step.
        """
        if self.recipe.compile:
            if self.device.type == "cpu":
                self.model.set_attn_implementation("eager")  # compiled, it beats the fused kernel there
            # Each stage's shape compiles once.
            self.loss_of = torch.compile(token_losses, dynamic=False)
        monitor, steps = self.recipe.monitor, self.batches.steps
        began, saved = time.perf_counter(), time.monotonic()
        before = self.progress.seconds
        pending: dict[str, float] = {}
        with stop_requests() as stopped:
            while self.progress.step < steps and not stopped:
                loss, lr = self.take_step(self.progress.step)
                self.progress.step += 1
                step = self.progress.step
                self.progress.seconds = before + time.perf_counter() - began
                row: dict[str, float | None] = dict.fromkeys(COLUMNS)
                tokens = step * self.recipe.data.batch_tokens
                row |= {"step": step, "tokens": tokens, "train_loss": loss, "lr": lr}
                if step % monitor.heldout_every_steps == 0 or step == steps:
                    scored = self.score_slice()
                    row["heldout_nats_per_token"] = scored.nats_per_token
                    row["heldout_bits_per_byte"] = scored.bits_per_byte
                    pending |= {"heldout.nats_per_token": scored.nats_per_token}
                    pending |= {"heldout.bits_per_byte": scored.bits_per_byte}
                row["seconds"] = round(self.progress.seconds, 2)
                self.progress.history.append(row)
                display({k: v for k, v in row.items() if v is not None})
                if step % monitor.log_every_steps == 0 or step == steps:
                    recent = [r["train_loss"] for r in self.progress.history[-monitor.log_every_steps :]]
                    pending |= {"train.loss": float(np.mean([r for r in recent if r is not None]))}
                    pending |= {"train.lr": lr, "train.tokens": float(tokens)}
                    log(pending, step)
                    pending = {}
                if time.monotonic() - saved > monitor.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
        self.save()
        if stopped:
            raise Interrupted(
                f"Stopped at step {self.progress.step} of {steps}; the checkpoint is in {self.folder} "
                "and the same command goes on from there.",
                128 + stopped[0],
            )

    def take_step(self, step: int) -> tuple[float, float]:
        """One optimizer step; returns the mean loss of its tokens in nats, and Muon's learning rate."""
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
        return total, self.recipe.optimizer.muon_lr * factor

    def arithmetic(self) -> AbstractContextManager[Any]:
        """bfloat16 autocast where the recipe asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.recipe.bfloat16 else nullcontext()

    def score_slice(self) -> HeldOutLoss:
        """The held-out slice, in the arithmetic of training: a monitor, not the reported figure."""
        with self.arithmetic():
            return heldout_loss(
                self.model,
                self.heldout,
                self.token_bytes,
                self.end_of_text,
                self.recipe.monitor.heldout_window,
            )

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
        return Outcome(self.folder, summary)


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM append their number to, instead of interrupting the step."""
    received: list[int] = []
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, lambda signum, frame: received.append(signum))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def history_csv(history: list[dict[str, float | None]]) -> str:
    """One line per step; the held-out columns are empty where nothing was scored."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in history:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def hardware(device: torch.device) -> dict[str, Any]:
    """Processor, GPU where one was used, and versions; no host name."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        **gpu,
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }

"""Training of heads on a target's hidden states, with the target frozen or trained too.

Built on accelerate: several processes share a step's sequences, and only the first writes. Knows neither Hydra nor
MLflow.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs

from specdec.config import validated
from specdec.errors import NumericsError, UsageError
from specdec.heads.checkpoint import load_heads, save_heads, state_offset
from specdec.sampling import SamplingConfig
from specdec.targets.base import Target, targets
from specdec.targets.causal import Causal
from specdec.text.writing import write_atomically
from specdec.training.heads.backbone import Backbone
from specdec.training.heads.head_accuracy import HeadAccuracy, TargetScore, score_heads
from specdec.training.heads.head_data import open_sequences
from specdec.training.heads.head_recipe import HeadTrainConfig, head_fingerprint
from specdec.training.heads.hidden_states import StateSource
from specdec.training.heads.sequences import Batch, Sequences
from specdec.training.heads.student import Student, build_optimizer, first_heads
from specdec.training.resumable import FinishedTraining, ResumableTraining, column, training_device
from specdec.training.schedules import rate_factor, warm_up
from specdec.training.sitting import prepare, sit

HEADS_FILE = "heads.safetensors"
BACKBONE_FOLDER = "backbone"
# Only the target's logits are read, before any sampling.
_SAMPLING = SamplingConfig(name="greedy", temperature=0.0, top_k=None, top_p=None, min_p=None)


class HeadTraining(ResumableTraining):
    """The training of one set of heads, to their file, the backbone beside it if it was trained, and a summary."""

    origin = "another recipe, seed, target or data"
    watched = "heldout.head_1.top1"

    def __init__(
        self,
        config: HeadTrainConfig,
        accelerator: Accelerator,
        target: Target,
        sequences: Sequences,
        source: StateSource,
    ) -> None:
        """
        Args:
            source: the states of the frozen target; not read if the backbone is trained.
        Raises:
            UsageError: heads to go on from that are of another kind or target; more processes than sequences; a target
                that cannot be trained.
        """
        super().__init__(config.monitor)
        self.config, self.accelerator, self.target = config, accelerator, target
        self.sequences, self.source = sequences, source
        self.name = config.heads.name
        self.folder = Path(config.output_dir or f"models/heads/{config.heads.name}")
        self.writes = accelerator.is_main_process
        self.steps, self.step_tokens = sequences.steps, sequences.batch_size * sequences.length
        self.target_identity = target.hidden.identity
        self.fingerprint = head_fingerprint(config, self.target_identity, sequences.fingerprint)
        parts = sequences.batch_size // config.micro_batch
        if parts % accelerator.num_processes:
            raise UsageError(
                f"{accelerator.num_processes} processes cannot share a step of data.batch={sequences.batch_size} in "
                f"parts of micro_batch={config.micro_batch}: make the first a multiple of the second times the "
                "processes."
            )
        heads = first_heads(config, target)
        backbone = None
        self.before = {}
        if config.backbone == "joint":
            if not isinstance(target, Causal):
                raise UsageError(f"Target {type(target).__name__} is no model that can be trained: use target=causal.")
            self.before = self._target_score(None)
            backbone = Backbone(target, state_offset(config.heads, target), config.lora, config.seed)
            heads.rebind(*backbone.ends())
        self.student = Student(heads, backbone, config).to(accelerator.device)
        self.wrapped = accelerator.prepare(self.student)
        self.optimizer = build_optimizer(self.student, config.optimizer)
        self.backbone_start = config.loss.backbone.first_step(self.steps)
        self._reference: dict[str, float] | None = None
        self.losses = ("train.heads_loss", "train.backbone_loss") if backbone is not None else ()
        self.scores = (*HeadAccuracy(config.heads.count).metrics(), *TargetScore().metrics())

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        backbone = self.student.backbone
        return {
            "heads": self.student.heads.state_dict(),
            "backbone": {} if backbone is None else backbone.trained_state(),
            "optimizer": self.optimizer.state_dict(),
            "before": self.before,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.student.heads.load_state_dict(state["heads"])
        if self.student.backbone is not None:
            self.student.backbone.load_trained_state(state["backbone"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.before = state["before"]

    # --- steps

    def take_step(self, step: int) -> dict[str, float]:
        batch = self.sequences.train(step)
        scales = self._scales(batch, step)
        self._set_rates(step)
        accelerator, processes = self.accelerator, self.accelerator.num_processes
        # Adapters drop at random: seeded by the step alone, so that a resumed training drops the same.
        torch.manual_seed(self.config.seed + (step * processes + accelerator.process_index) * 0x9E3779B1 % 2**31)
        self.student.train()
        parts = list(batch.split(self.config.micro_batch))[accelerator.process_index :: processes]
        losses = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
        for number, part in enumerate(parts, start=1):
            states, teacher = (None, None) if self.student.backbone is not None else self.source.states(part)
            tokens, scored = part.on(accelerator.device)
            # Gradients are averaged over the processes once a step, after its last part.
            with nullcontext() if number == len(parts) else accelerator.no_sync(self.wrapped):
                theirs, own = self.wrapped(tokens, scored, scales, states, teacher)
                # Processes average their gradients, and each has its part of a sum.
                accelerator.backward((theirs + own) * processes)
            losses += torch.stack([theirs.detach().double(), own.detach().double()])
        heads, backbone = accelerator.reduce(losses, "sum").tolist()
        total = heads + backbone
        norm = torch.nn.utils.clip_grad_norm_(self.student.parameters(), self.config.optimizer.grad_clip)
        if not (torch.isfinite(norm) and abs(total) < float("inf")):
            raise NumericsError(
                f"The training loss is {total}, its gradient {float(norm)}, at step {step}: lower "
                "optimizer.learning_rate."
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        taken = {"train_loss": total, "lr": self.optimizer.param_groups[0]["lr"]}
        return taken | {column(name): loss for name, loss in zip(self.losses, (heads, backbone), strict=False)}

    def _scales(self, batch: Batch, step: int) -> list[float]:
        """Return the factor on each summed loss: its weight over the number of positions in the whole step."""
        loss = self.config.loss
        heads, backbone = loss.heads.at(step, self.steps), loss.backbone.at(step, self.steps)
        weights = [backbone, *(heads * loss.decay**k for k in range(1, self.config.heads.count + 1))]
        seen = [int(batch.scored[:, k + 1 :].sum()) for k in range(len(weights))]
        return [weight / max(positions, 1) for weight, positions in zip(weights, seen, strict=True)]

    def _set_rates(self, step: int) -> None:
        rate = self.config.optimizer.rate
        factor = rate_factor(step, self.steps, rate)
        start = self.backbone_start or 0
        later = warm_up(max(step - start, 0), rate.warmup_steps) if start else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor * (later if group["part"] == "backbone" else 1.0)

    def agreed(self, stopped: bool) -> bool:
        if self.accelerator.num_processes == 1:
            return stopped
        flag = torch.tensor(float(stopped), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum") > 0)

    # --- held-out text

    @torch.no_grad()
    def score(self) -> dict[str, float]:
        """Score the heads on a part of the held-out text, in the arithmetic of training: a monitor."""
        if not self.writes:
            return {}
        self.student.eval()
        accuracy, own = HeadAccuracy(self.config.heads.count), TargetScore()
        backbone = self.student.backbone
        for batch in islice(self.sequences.heldout(), self.config.monitor.heldout_batches):
            for part in batch.split(self.config.micro_batch):
                tokens, scored = part.on(self.accelerator.device)
                with self.accelerator.autocast():
                    states, logits = self.source.states(part) if backbone is None else backbone(tokens)
                    accuracy.add(self.student.heads, states.float(), tokens, scored)
                if backbone is not None and logits is not None:
                    own.add(logits, tokens, scored)
        if backbone is None:  # a frozen target's own figures are the same every time
            self._reference = self._reference or self._target_score(self.config.monitor.heldout_batches)
            return accuracy.metrics() | self._reference
        return accuracy.metrics() | own.metrics()

    def _target_score(self, limit: int | None) -> dict[str, float]:
        """Score the target's own next token, in its own arithmetic, on at most `limit` batches."""
        return score_heads(None, self.target, islice(self.sequences.heldout(), limit), self.config.micro_batch)

    # --- the end

    def finish(self) -> FinishedTraining:
        """Write heads (and backbone), score the written files on all held-out text, and write `summary.json`."""
        path = self.folder / HEADS_FILE
        summary = {
            "recipe": {key: value for key, value in asdict(self.config).items() if key in _RECIPE},
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "data": self.sequences.manifest,
            "data_fingerprint": self.sequences.fingerprint,
            "parameters": sum(weight.numel() for weight in self.student.heads.parameters()),
            "processes": self.accelerator.num_processes,
            **self.effort(self.accelerator.device),
        }
        heads = self.student.heads.to(getattr(torch, self.config.save_dtype))
        if self.student.backbone is None:
            target = self.target
        else:
            folder = self.folder / BACKBONE_FOLDER
            self.student.backbone.save(folder)
            target = load_target(self.config.target | {"model": str(folder)}, self.accelerator.device)
            summary["target_before"] = {"sha256": self.target_identity} | self.before
        summary["target"] = target.hidden.identity
        save_heads(heads, path, target.hidden.identity, summary)
        metrics = score_heads(load_heads(path, target), target, self.sequences.heldout(), self.config.micro_batch)
        if self.before:
            metrics |= {name.replace("heldout.", "heldout.before."): value for name, value in self.before.items()}
        save_heads(heads, path, target.hidden.identity, summary | {"heldout": metrics})
        summary |= {"bytes": path.stat().st_size, "heldout": metrics}
        write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        final = {name.replace("heldout.", "heldout.final.", 1): value for name, value in metrics.items()}
        return FinishedTraining(self.folder, summary, final, self._sentence(metrics, path))

    def _sentence(self, metrics: dict[str, float], path: Path) -> str:
        tops = ", ".join(f"{metrics[f'heldout.head_{k + 1}.top1']:.3f}" for k in range(self.config.heads.count))
        own, loss = f"the target's own {metrics['heldout.target.top1']:.3f}", ""
        if self.before:
            name = "heldout.target.nats_per_token"
            loss = f"; the backbone's held-out loss was {self.before[name]:.4f} and is {metrics[name]:.4f} nats"
        return f"held-out top-1 accuracy of the heads {tops}, {own}{loss}; saved to {path}"


_RECIPE = (
    "heads", "target", "data", "loss", "optimizer", "backbone", "lora", "init", "micro_batch", "bfloat16", "save_dtype",
)  # fmt: skip


def open_training(config: HeadTrainConfig) -> HeadTraining:
    """Open target, sequences and states of a recipe, first in the main process and then in the others.

    Raises:
        UsageError: one of them is missing or does not fit.
    """
    training_device(config.device)  # refuses a GPU that is not there
    accelerator = Accelerator(
        cpu=config.device == "cpu",
        mixed_precision="bf16" if config.bfloat16 else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=config.backbone == "joint")],
    )
    target = load_target(config.target, accelerator.device)
    with accelerator.main_process_first():
        sequences = open_sequences(config.data, target, config.seed)
        offset = state_offset(config.heads, target)
        source = StateSource(target, (offset,), sequences, config.data.states, teacher=config.loss.teacher > 0)
        if config.backbone == "frozen":
            source.prepare()
    return HeadTraining(config, accelerator, target, sequences, source)


def load_target(values: dict[str, Any], device: torch.device) -> Target:
    """Load the target of a recipe to the device of this process."""
    return targets.build({**values, "device": str(device)}, sampling=_SAMPLING)


def run(values: Mapping[str, Any]) -> FinishedTraining | None:
    """Train the heads of a recipe, or go on training them.

    Args:
        values: the configuration, plain data from YAML.
    Returns:
        None in all processes but the first.
    Raises:
        UsageError: bad values, files or targets; a checkpoint of another recipe.
        Interrupted: after a signal.
    """
    config = validated(HeadTrainConfig, values)
    prepare(config)
    return sit(open_training(config), config.tracking, asdict(config))

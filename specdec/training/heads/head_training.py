"""Training of heads on a target's hidden states, the target frozen or trained with them.

Built on accelerate: several processes share a step's sequences, and only the first writes. It knows neither Hydra nor
MLflow, and not where sequences and states come from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from specdec.config import validated
from specdec.errors import NumericsError, UsageError
from specdec.heads.files import load_heads, read_heads, save_heads, state_offset
from specdec.heads.model import Heads
from specdec.sampling import SamplingConfig
from specdec.targets.base import Target, targets
from specdec.tracking.writer import check_store
from specdec.training.batches import write_atomically
from specdec.training.heads.backbone import Backbone, backbone_loss
from specdec.training.heads.head_data import Batch, Sequences, open_sequences
from specdec.training.heads.head_loss import HeadAccuracy, TargetScore, heads_loss
from specdec.training.heads.head_recipe import HeadOptimizerConfig, HeadTrainConfig, head_fingerprint
from specdec.training.heads.hidden_states import StateSource
from specdec.training.resumable import Outcome, ResumableTraining, column, hardware
from specdec.training.schedules import rate_factor, warm_up
from specdec.training.session import keep_freed_memory, sit

if TYPE_CHECKING:
    from specdec.targets.causal import Causal

HEADS_FILE = "heads.safetensors"
BACKBONE_FOLDER = "backbone"
HELDOUT = "heldout"  # prefix of the metrics
# Logits are read as they are, before any sampling.
_SAMPLING = SamplingConfig(name="greedy", temperature=0.0, top_k=None, top_p=None, min_p=None)


class Student(nn.Module):
    """All that is trained: the heads, and the backbone where it is."""

    def __init__(self, heads: Heads, backbone: Backbone | None, config: HeadTrainConfig) -> None:
        super().__init__()
        self.heads, self.backbone, self.loss = heads, backbone, config.loss

    def forward(
        self,
        tokens: Tensor,
        scored: Tensor,
        scales: list[float],
        states: Tensor | None,
        teacher: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The heads' loss and the backbone's, each weighted.

        Args:
            tokens, scored: [B, S].
            scales: of the backbone's summed loss, and of those of heads 1, ..., K.
            states: [B, S, D] of a frozen target.
            teacher: [B, S, V] its logits, where the heads' loss asks for them.
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
        theirs = heads_loss(
            self.heads, states.float(), tokens, scored, scales[1:], teacher if self.loss.teacher else None,
            self.loss.teacher,
        )  # fmt: skip
        return theirs, own


class HeadTraining(ResumableTraining):
    """One training of heads, to their file, the backbone beside them where it was trained, and a summary."""

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
            source: of the target's states; where the backbone is trained, of the original's on held-out text.
        Raises:
            UsageError: heads to go on from that are of another kind or target; more processes than sequences.
        """
        super().__init__(config.monitor)
        self.config, self.accelerator, self.target = config, accelerator, target
        self.sequences, self.source = sequences, source
        self.name = config.heads.name
        self.folder = output_folder(config)
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
            self.before = self._target_score(all_batches=True)
            backbone = Backbone(_causal(target), state_offset(config.heads, target), config.lora, config.seed)
            heads.rebind(*backbone.ends())
        self.student = Student(heads, backbone, config).to(accelerator.device)
        self.wrapped = accelerator.prepare(self.student)
        self.optimizer = build_optimizer(self.student, config.optimizer)
        self.backbone_start = config.loss.backbone.first_step(self.steps)
        self._reference: dict[str, float] | None = None
        count = config.heads.count
        self.losses = ("train.heads_loss", "train.backbone_loss") if backbone is not None else ()
        self.scores = (*HeadAccuracy(count).metrics(HELDOUT), *TargetScore().metrics(HELDOUT))

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
        # Adapters drop at random: by the step alone, so that a resumed training drops the same.
        torch.manual_seed(self.config.seed + (step * processes + accelerator.process_index) * 0x9E3779B1 % 2**31)
        self.student.train()
        parts = list(batch.split(self.config.micro_batch))[accelerator.process_index :: processes]
        losses = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
        for number, part in enumerate(parts, start=1):
            states, teacher = self._states(part)
            tokens, scored = part.tokens.to(accelerator.device), part.scored.to(accelerator.device)
            with self._synchronised(number == len(parts)):
                theirs, own = self.wrapped(tokens, scored, scales, states, teacher)
                # Processes average their gradients; each has its part of a sum.
                accelerator.backward((theirs + own) * processes)
            losses += torch.stack([theirs.detach().double(), own.detach().double()])
        heads, backbone = accelerator.reduce(losses, "sum").tolist()
        total = heads + backbone
        norm = torch.nn.utils.clip_grad_norm_(self.student.parameters(), self.config.optimizer.grad_clip)
        if not (torch.isfinite(norm) and abs(total) < float("inf")):
            raise NumericsError(f"The training loss is {total}, its gradient {float(norm)}, at step {step}.")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        taken = {"train_loss": total, "lr": self.optimizer.param_groups[0]["lr"]}
        return taken | ({column(name): loss for name, loss in zip(self.losses, (heads, backbone), strict=False)})

    def _scales(self, batch: Batch, step: int) -> list[float]:
        """What each summed loss is multiplied with: its weight over the positions of the whole step."""
        loss = self.config.loss
        heads, backbone = loss.heads.at(step, self.steps), loss.backbone.at(step, self.steps)
        weights = [backbone, *(heads * loss.decay**k for k in range(1, self.config.heads.count + 1))]
        seen = [int(batch.scored[:, k + 1 :].sum()) for k in range(len(weights))]
        return [weight / max(positions, 1) for weight, positions in zip(weights, seen, strict=True)]

    def _set_rates(self, step: int) -> None:
        rate = self.config.optimizer.rate
        factor = rate_factor(step, self.steps, rate)
        for group in self.optimizer.param_groups:
            later = 1.0
            if group["part"] == "backbone" and self.backbone_start is not None:
                later = warm_up(max(step - self.backbone_start, 0), rate.warmup_steps) if self.backbone_start else 1.0
            group["lr"] = group["base_lr"] * factor * later

    def _states(self, part: Batch) -> tuple[Tensor | None, Tensor | None]:
        if self.student.backbone is not None:
            return None, None
        states, teacher = self.source.states(part)
        return states, teacher if self.config.loss.teacher else None

    @contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        """Gradients are averaged over the processes once a step."""
        if last:
            yield
        else:
            with self.accelerator.no_sync(self.wrapped):
                yield

    def agreed(self, stopped: bool) -> bool:
        if self.accelerator.num_processes == 1:
            return stopped
        flag = torch.tensor(float(stopped), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum") > 0)

    # --- held-out text

    @torch.no_grad()
    def score(self) -> dict[str, float]:
        """Accuracies on a part of the held-out text, in the arithmetic of training: a monitor."""
        if not self.writes:
            return {}
        self.student.eval()
        accuracy, own = HeadAccuracy(self.config.heads.count), TargetScore()
        backbone = self.student.backbone
        for batch in islice(self.sequences.heldout(), self.config.monitor.heldout_batches):
            for part in batch.split(self.config.micro_batch):
                tokens, scored = part.tokens.to(self.accelerator.device), part.scored.to(self.accelerator.device)
                with self.accelerator.autocast():
                    states, logits = self.source.states(part) if backbone is None else backbone(tokens)
                    accuracy.add(self.student.heads, states.float(), tokens, scored)
                if backbone is not None and logits is not None:
                    own.add(logits, tokens, scored)
        if backbone is None:  # a frozen target's own figures are the same every time
            self._reference = self._reference or self._target_score(all_batches=False)
            return accuracy.metrics(HELDOUT) | self._reference
        return accuracy.metrics(HELDOUT) | own.metrics(HELDOUT)

    def _target_score(self, all_batches: bool) -> dict[str, float]:
        """The target's own next token, in its own arithmetic."""
        limit = None if all_batches else self.config.monitor.heldout_batches
        return target_score(self.target, islice(self.sequences.heldout(), limit), self.config.micro_batch).metrics(
            HELDOUT
        )

    # --- the end

    def finish(self) -> Outcome:
        """Write heads (and backbone), score what was written on all held-out text, and write `summary.json`."""
        path = self.folder / HEADS_FILE
        summary = {
            "recipe": {key: value for key, value in asdict(self.config).items() if key in _RECIPE},
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "data": self.sequences.manifest,
            "data_fingerprint": self.sequences.fingerprint,
            "parameters": sum(weight.numel() for weight in self.student.heads.parameters()),
            "steps": self.progress.step,
            "tokens": self.progress.step * self.step_tokens,
            "seconds": round(self.progress.seconds, 1),
            "date": time.strftime("%Y-%m-%d"),
            "processes": self.accelerator.num_processes,
            "hardware": hardware(self.accelerator.device),
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
        return Outcome(self.folder, summary, final, self._sentence(metrics, path))

    def _sentence(self, metrics: dict[str, float], path: Path) -> str:
        heads = range(1, self.config.heads.count + 1)
        tops = ", ".join(f"{metrics[f'heldout.head_{k}.top1']:.3f}" for k in heads)
        own = f"the target's own {metrics['heldout.target.top1']:.3f}"
        loss = ""
        if self.before:
            name = "heldout.target.nats_per_token"
            loss = f"; the backbone's held-out loss was {self.before[name]:.4f} and is {metrics[name]:.4f} nats"
        return f"held-out top-1 accuracy of the heads {tops}, {own}{loss}; saved to {path}"


_RECIPE = (
    "heads", "target", "data", "loss", "optimizer", "backbone", "lora", "init", "micro_batch", "bfloat16", "save_dtype",
)  # fmt: skip


def open_training(config: HeadTrainConfig) -> HeadTraining:
    """Target, sequences and states of a recipe, opened by the first process and then by the others.

    Raises:
        UsageError: whatever of them is missing or does not fit; nothing has run by then.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("Bad value device=cuda: no CUDA device is available; use device=cpu.")
    accelerator = Accelerator(
        cpu=config.device == "cpu",
        mixed_precision="bf16" if config.bfloat16 else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=config.backbone == "joint")],
    )
    target = load_target(config.target, accelerator.device)
    with accelerator.main_process_first():
        sequences = open_sequences(config.data, target, config.seed)
        offset = state_offset(config.heads, target)
        source = StateSource(target, offset, sequences, config.data.states, teacher=config.loss.teacher > 0)
        if config.backbone == "frozen":
            source.prepare()
    return HeadTraining(config, accelerator, target, sequences, source)


def load_target(values: dict[str, Any], device: torch.device) -> Target:
    """The target of a recipe on the device of this process."""
    return targets.build({**values, "device": str(device)}, sampling=_SAMPLING)


def output_folder(config: HeadTrainConfig) -> Path:
    """Where a training's files go."""
    return Path(config.output_dir or f"models/heads/{config.heads.name}")


def first_heads(config: HeadTrainConfig, target: Target) -> Heads:
    """Fresh heads in float32, or those of `init`.

    Raises:
        UsageError: the file's heads are of another kind, or were trained on other weights; both are named.
    """
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        heads = Heads(config.heads, target.hidden.embedding.detach(), target.hidden.output_layer.detach()).float()
    if config.init is None:
        return heads
    stored = read_heads(config.init, key="init")
    if stored.target != target.hidden.identity:
        raise UsageError(
            f"The heads init={config.init} were trained on a target whose weights have the hash {stored.target[:16]}; "
            f"this one's have {target.hidden.identity[:16]}: go on with the target that they were trained on."
        )
    mine, theirs = asdict(config.heads), asdict(stored.config)
    other = [key for key in mine if key != "name" and mine[key] != theirs[key]]
    if other:
        raise UsageError(
            f"The heads init={config.init} have "
            f"{', '.join(f'{key}={theirs[key]}' for key in other)} and the recipe has "
            f"{', '.join(f'heads.{key}={mine[key]}' for key in other)}: make them the same."
        )
    heads.load_state_dict(stored.weights)
    return heads


def build_optimizer(student: Student, config: HeadOptimizerConfig) -> torch.optim.Optimizer:
    """Two groups, the heads and what of the backbone is trained; each keeps its `base_lr`."""
    groups: list[tuple[str, nn.Module, float]] = [
        ("heads", student.heads, config.learning_rate * config.heads_multiplier)
    ]
    if student.backbone is not None:
        groups.append(("backbone", student.backbone, config.learning_rate))
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(
        [
            {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate, "base_lr": rate, "part": part}
            for part, module, rate in groups
        ],
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )


def target_score(target: Target, batches: Iterable[Batch], micro_batch: int) -> TargetScore:
    """The target's own next token on batches of text, in its own arithmetic."""
    score = TargetScore()
    for batch in batches:
        for part in batch.split(micro_batch):
            tokens, scored = part.tokens.to(target.device), part.scored.to(target.device)
            score.add(target.hidden.sequence(tokens, 0)[1], tokens, scored)
    return score


def score_heads(heads: Heads, target: Target, batches: Iterable[Batch], micro_batch: int) -> dict[str, float]:
    """Accuracy of heads on their target's states of batches of text, and the target's own, in its arithmetic."""
    accuracy, own = HeadAccuracy(len(heads)), TargetScore()
    for batch in batches:
        for part in batch.split(micro_batch):
            tokens, scored = part.tokens.to(target.device), part.scored.to(target.device)
            states, logits = target.hidden.sequence(tokens, state_offset(heads.config, target))
            accuracy.add(heads, states, tokens, scored)
            own.add(logits, tokens, scored)
    return accuracy.metrics(HELDOUT) | own.metrics(HELDOUT)


def _causal(target: Target) -> Causal:
    from specdec.targets.causal import Causal

    if not isinstance(target, Causal):
        raise UsageError(f"Target {type(target).__name__} is no model that can be trained: use target=causal.")
    return target


def run(values: Mapping[str, Any]) -> Outcome | None:
    """Train, or go on training, the heads that `values` (plain data from YAML) say.

    Returns:
        None in all processes but the first.

    Raises:
        UsageError: bad values, files or targets; a checkpoint of another recipe. Interrupted after a signal.
    """
    config = validated(HeadTrainConfig, values)
    check_store(config.tracking, Path.cwd())
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return sit(open_training(config), config.tracking, asdict(config))

"""Modules that learn to read a target's hidden states: what students of that kind share.

Built on accelerate: several processes share a step's sequences, and only the first writes. Knows no module and no loss.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from specdec.clock import clock_for
from specdec.errors import UsageError
from specdec.models.arithmetic import ARITHMETIC
from specdec.models.load import POCKET
from specdec.plan.compositions import composed_parts
from specdec.progress import LONG_S, duration, stage, tell
from specdec.published.network_files import TrainedKind
from specdec.sampling import GREEDY
from specdec.structures import structures
from specdec.targets.base import Target, targets
from specdec.training.data.head_data import open_sequences
from specdec.training.data.hidden_states import StateSource
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.recipes import StateTrainConfig
from specdec.training.student import FinishedTraining, SequenceStudent, build_optimizers, training_device
from specdec.training.students.loss_and_accuracy import HeadAccuracy, TargetScore, score_target

logger = logging.getLogger(__name__)

BACKBONE_FOLDER = "backbone"


class StateStudent(SequenceStudent):
    """A student of the states of a target, to a file of what was trained and a summary."""

    origin = "another recipe, seed, target or data"
    unit: ClassVar[str]  # each of several parts of the network, in the metrics' names and in messages: head or step
    noun: ClassVar[str]  # the content of a network's file, for messages
    files: ClassVar[TrainedKind]
    bounded: ClassVar[bool] = False  # a draft has no more levels than the network has units

    config: Any
    network: Any  # goes into the file; `module` computes its loss
    backbone: Any = None  # the target's own model (`head_student.Backbone`), if it is trained too
    before: Mapping[str, float] = MappingProxyType({})  # the target's own figures before that

    def __init__(
        self, config: StateTrainConfig, accelerator: Accelerator, target: Target, sequences: Sequences
    ) -> None:
        """Learn from the states of a target, or train it too. Raises UsageError: more processes than sequences; a
        target without states or without one of the layers, or one that cannot be trained; a network that does not fit
        it, or one to go on from that is of another kind or target.
        """
        self.accelerator, self.target = accelerator, target
        self.device, self.processes = accelerator.device, accelerator.num_processes
        self.dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
        self.writes = accelerator.is_main_process
        self.target_identity = target.hidden.identity  # as the weights were at the beginning
        rounded = config.data.states.dtype
        super().__init__(config, sequences, rounded, config.target.get("dtype"), self.target_identity)
        if sequences.batch_size // config.micro_batch % self.processes:
            raise UsageError(
                f"{self.processes} processes cannot share a step of data.batch={sequences.batch_size} in parts of "
                f"micro_batch={config.micro_batch}: make the first a multiple of the second times the processes."
            )
        teacher = self.config.loss.teacher > 0
        self.source = StateSource(target, self.offsets(), sequences, config.data.states, teacher)
        self._reference: dict[str, float] | None = None
        self.optimizer = self.config.optimizer
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.network = self.untrained().float()
        if config.init is not None:
            stored = self.files.read(config.init, "init")
            if stored.target != self.target_identity:
                raise UsageError(
                    f"The {self.noun} init={config.init} was trained on a target whose weights have the hash "
                    f"{stored.target[:16]}; this one's have {self.target_identity[:16]}: go on with the target that it "
                    "was trained on."
                )
            own, wanted = asdict(stored.config), asdict(self.network.config)
            other = [name for name in wanted if name != "name" and wanted[name] != own[name]]
            if other:
                raise UsageError(
                    f"The {self.noun} init={config.init} has {', '.join(f'{name}={own[name]}' for name in other)} and "
                    f"the recipe has {', '.join(f'{self.kind}.{name}={wanted[name]}' for name in other)}: make them "
                    "the same."
                )
            self.network.load_state_dict(stored.weights)
        self.module = self.losses_module().to(self.device)
        self.wrapped = accelerator.prepare(self.module)
        self.optimizers = self.built_optimizers()
        self.scores = (*HeadAccuracy(self.units, self.unit).metrics(), *TargetScore().metrics())

    @classmethod
    def open(cls, config: Any) -> "StateStudent":
        """Open target, sequences and states of a recipe, first in the main process and then in the others."""
        _, dtype = training_device(config.device, config.bfloat16)  # refuses a GPU that is not there
        frozen = getattr(config, "backbone", "frozen") == "frozen"
        accelerator = Accelerator(
            cpu=config.device == "cpu",
            mixed_precision="bf16" if dtype == torch.bfloat16 else "no",
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=not frozen)],
        )
        target = load_target(config.target, accelerator.device)
        alone = frozen and accelerator.num_processes == 1  # one of several processes cannot take a step alone

        def foretell_with(likely: Sequences) -> None:
            cls(config, accelerator, target, likely).foretell()
            accelerator.free_memory()

        with accelerator.main_process_first():
            sequences = open_sequences(config.data, target, config.seed, foretell_with if alone else None)
        student = cls(config, accelerator, target, sequences)
        source = student.source
        if frozen:  # its states may be kept on disk
            with accelerator.main_process_first():
                source.prepare(student.foretell() if alone and source.kept and source.missing() else None)
        return student

    def foretell(self) -> float:
        """Say how long a frozen target's states and the training will take, if long, from a step that is tried and
        forgotten: on a CPU of one sequence, elsewhere of a micro-batch. Return the seconds of the states of a sequence.
        """
        config, source, sequences, device = self.config, self.source, self.sequences, self.target.device
        size, clock = 1 if device.type == "cpu" else config.micro_batch, clock_for(device)
        with stage("Try a step", "of the training", told=False), torch.random.fork_rng():
            batch = sequences.batch("train", np.arange(size))
            scales = self.scales(batch, sequences.steps - 1)  # some parts of a loss join late
            for _ in range(2):  # the first warms up
                begun = clock.mark()
                states, teacher = source.states(batch)
                called = clock.mark()
                losses = self.wrapped(*batch.on(self.device), scales, states.float(), teacher)
                torch.stack(losses).sum().backward()
                done = clock.mark()
            clock.synchronize()
        self.module.zero_grad()
        call, step = clock.seconds(begun, called) / size, clock.seconds(called, done) / size
        prior = sum(sequences.counts.values()) * call if source.kept else 0.0
        step += call if not source.kept or source.needs_logits else 0.0
        training = sequences.steps * sequences.batch_size * step
        if prior + training >= LONG_S:
            first = f"the target's states take up to about {duration(prior)} and " if source.kept else ""
            key = "steps" if config.data.passes is None else "passes"
            tell(
                f"With the text complete, {first}the training takes up to about {duration(training)} (data.sequences=N "
                f"and data.{key}=N make that shorter)."
            )
        return call

    @property
    @abstractmethod
    def units(self) -> int:
        """The number of heads or steps that are scored."""

    @property
    def drafter(self) -> str:
        """The name of the drafter that uses the file."""
        return self.kind

    @abstractmethod
    def untrained(self) -> nn.Module:
        """Return a fresh network, drawn from the global generator."""

    @abstractmethod
    def losses_module(self) -> nn.Module:
        """Return the module that gives the weighted losses of a micro-batch, as many as `losses` has names or more. It
        is called with tokens [B, S], scored [B, S], `scales`, the states of a frozen target [B, S, n * D] and, if a
        loss has a share against them, its logits [B, S, V].
        """

    def built_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers of the module's weights."""
        return build_optimizers(self.module, self.config.optimizer)

    @abstractmethod
    def offsets(self) -> tuple[int, ...]:
        """Return the layers of the target whose states are read, counted down from the last."""

    @abstractmethod
    def scales(self, batch: Batch, step: int) -> list[float]:
        """Return the factor on each summed loss of a step: its weight over the number of positions in the batch."""

    @staticmethod
    @abstractmethod
    def count(accuracy: HeadAccuracy, network: Any, states: Tensor, tokens: Tensor, scored: Tensor) -> None:
        """Count how often a network is right on a batch of text: tokens and scored [B, S]."""

    def part_losses(self, step: int) -> Iterator[Tensor]:
        batch = self.sequences.train(step)
        scales, accelerator = self.scales(batch, step), self.accelerator
        # Random dropping and noise are seeded by the step alone, so that a resumed training does the same.
        place = step * self.processes + accelerator.process_index
        torch.manual_seed(self.config.seed + place * 0x9E3779B1 % 2**31)
        self.module.train()
        parts = list(batch.split(self.config.micro_batch))[accelerator.process_index :: self.processes]
        for number, part in enumerate(parts, start=1):
            # Gradients are averaged over the processes once a step, after its last part.
            with nullcontext() if number == len(parts) else accelerator.no_sync(self.wrapped):
                states, teacher = self.source.states(part) if self.backbone is None else (None, None)
                floats = None if states is None else states.float()
                losses = self.wrapped(*part.on(self.device), scales, floats, teacher)
                yield torch.stack(losses[: max(len(self.losses), 1)])

    def summed(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, "sum")

    @torch.no_grad()
    def score(self) -> dict[str, float]:
        """Score a part of the held-out text, in the arithmetic of training: a monitor."""
        if not self.writes:
            return {}
        self.module.eval()
        accuracy, own = HeadAccuracy(self.units, self.unit), TargetScore()
        watched = self.config.monitor.heldout_batches
        with self.accelerator.autocast():
            for part in self.heldout_parts(watched):
                tokens, scored = part.on(self.device)
                states, logits = self.source.states(part) if self.backbone is None else self.backbone(tokens)
                self.count(accuracy, self.network, states.float(), tokens, scored)
                if self.backbone is not None and logits is not None:
                    own.add(logits, tokens, scored)
        if self.backbone is None and self._reference is None:  # a frozen target has the same figures every time
            self._reference = score_target(self.target, self.heldout_parts(watched))
        return accuracy.metrics() | (self._reference or own.metrics())

    def heldout_parts(self, limit: int | None) -> Iterator[Batch]:
        """Yield the held-out sequences, of at most `limit` batches, in micro-batches."""
        for batch in self.sequences.heldout(limit):
            yield from batch.split(self.config.micro_batch)

    @torch.no_grad()
    def scored_by(self, network: Any, target: Target, parts: Iterable[Batch]) -> dict[str, float]:
        """Return the accuracy of a network on its target's states of text, and the target's own."""
        accuracy, own = HeadAccuracy(self.units, self.unit), TargetScore()
        for part in parts:
            tokens, scored = part.on(target.device)
            states, logits = target.hidden.sequence(tokens, *self.offsets())
            self.count(accuracy, network, states.clone(), tokens, scored)
            own.add(logits, tokens, scored)
        return accuracy.metrics() | own.metrics()

    def export(self, effort: dict[str, Any]) -> FinishedTraining:
        path, target = self.folder / f"{self.kind}.safetensors", self.target
        summary = self.summary(effort, self.network) | {
            "processes": self.processes,
            "target_dtype": str(target.hidden.output_layer.dtype).removeprefix("torch."),
        }
        network = self.network.to(getattr(torch, self.config.save_dtype))
        if self.backbone is not None:
            folder = self.folder / BACKBONE_FOLDER
            self.backbone.save(folder)
            target = load_target(self.config.target | {"model": str(folder)}, self.device)
            summary["target_before"] = {"sha256": self.target_identity, **self.before}
        identity = target.hidden.identity
        summary["target"] = identity
        self.files.write(network, path, identity, summary)
        metrics = self.scored_by(self.files.load(path, target), target, self.heldout_parts(None))
        loss, nats = "", "heldout/target.nats_per_token"
        if self.before:
            metrics |= {name.replace("heldout/", "heldout/before."): value for name, value in self.before.items()}
            loss = f"; the backbone's held-out loss was {self.before[nats]:.4f} and is {metrics[nats]:.4f} nats"
        self.files.write(network, path, identity, summary | {"heldout": metrics})
        summary |= {"bytes": path.stat().st_size, "heldout": metrics}
        tops = ", ".join(f"{metrics[f'heldout/{self.unit}_{number + 1}.top1']:.3f}" for number in range(self.units))
        final = {name.replace("heldout/", "heldout/final.", 1): value for name, value in metrics.items()}
        sentence = (
            f"held-out top-1 accuracy of the {self.unit}s {tops}, the target's own "
            f"{metrics['heldout/target.top1']:.3f}{loss}; saved to {path}"
        )
        # The run that drafts with the file, on the target that it is for.
        asked, use = self.config.target, [f"+drafter={self.drafter}", f"drafter.model={path}"]
        if self.backbone is not None:
            use += [f"target.model={self.folder / BACKBONE_FOLDER}", f"measurement.original={asked['model']}"]
        else:
            own = {key: asked.get(key) for key in ("model", "revision")}
            use += [f"target.{key}={value}" for key, value in own.items() if value not in (None, POCKET)]
        if self.bounded and structures.build(composed_parts(self.drafter)["structure"]).gamma > self.units:
            use += ["structure=chain", f"structure.gamma={self.units}"]
        return self.finished(summary, final, sentence, use)


def per_position(weights: Sequence[float], batch: Batch) -> list[float]:
    """Return each weight over the number of positions at which the token that many places after the next is scored."""
    seen = [int(batch.scored[:, k + 1 :].sum()) for k in range(len(weights))]
    return [weight / max(positions, 1) for weight, positions in zip(weights, seen, strict=True)]


def load_target(values: dict[str, Any], device: torch.device) -> Target:
    """Load the target of a recipe to the device of this process. One sentence says where that computes in another dtype
    than was asked for, or slowly: the states of all training text are computed.
    """
    target = targets.build({**values, "device": str(device)}, sampling=GREEDY)  # only logits are read
    arithmetic = ARITHMETIC.get(target.model)
    if arithmetic is not None and arithmetic.sentence:
        logger.info("The target's states: %s", arithmetic.sentence)
    return target

"""A training of modules that read a target's hidden states, whatever they are: steps, held-out scores, the end.

Built on accelerate: several processes share a step's sequences, and only the first writes. Knows neither the modules
nor their loss.
"""

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from typing import Any, ClassVar

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from specdec.errors import NumericsError, UsageError
from specdec.models.arithmetic import arithmetic_of
from specdec.sampling import SamplingConfig
from specdec.targets.base import Target, targets
from specdec.text.writing import write_atomically
from specdec.training.heads.head_accuracy import score_target
from specdec.training.heads.head_data import open_sequences
from specdec.training.heads.hidden_states import StateSource
from specdec.training.heads.sequences import Batch, Sequences
from specdec.training.resumable import FinishedTraining, ResumableTraining, column, training_device, training_dtype
from specdec.training.state_recipe import StateTrainConfig

logger = logging.getLogger(__name__)

# Only the target's logits are read, before any sampling.
_SAMPLING = SamplingConfig(name="greedy", temperature=0.0, top_k=None, top_p=None, min_p=None, typical_p=None)


class StateTraining(ResumableTraining):
    """A training on the states of a target, to a file of what was trained and a summary.

    Class attributes:
        file_name: the file of what is trained, in the training's folder.
        recipe_keys: the keys of the recipe that the summary repeats.
    """

    origin = "another recipe, seed, target or data"
    file_name: ClassVar[str]
    recipe_keys: ClassVar[tuple[str, ...]]

    student: nn.Module

    def __init__(
        self,
        config: StateTrainConfig,
        name: str,
        grad_clip: float,
        accelerator: Accelerator,
        target: Target,
        sequences: Sequences,
        source: StateSource,
    ) -> None:
        """
        Args:
            name: the name of the recipe.
            grad_clip: the largest norm of the whole gradient.
            source: the states of the target; not read if the target itself is trained.
        Raises:
            UsageError: more processes than sequences.
        """
        super().__init__(config.monitor)
        self.accelerator, self.target, self.sequences, self.source = accelerator, target, sequences, source
        self.common, self.name, self.grad_clip = config, name, grad_clip
        self.dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
        self.writes = accelerator.is_main_process
        self.steps, self.step_tokens = sequences.steps, sequences.batch_size * sequences.length
        self.target_identity = target.hidden.identity
        parts = sequences.batch_size // config.micro_batch
        if parts % accelerator.num_processes:
            raise UsageError(
                f"{accelerator.num_processes} processes cannot share a step of data.batch={sequences.batch_size} in "
                f"parts of micro_batch={config.micro_batch}: make the first a multiple of the second times the "
                "processes."
            )
        self._reference: dict[str, float] | None = None

    def adopt(self, student: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        """Train `student` from now on, by the optimizers of its parameters."""
        self.student = student.to(self.accelerator.device)
        self.wrapped = self.accelerator.prepare(self.student)
        self.optimizers = optimizers

    @abstractmethod
    def set_rates(self, step: int) -> None:
        """Set the learning rates of a step."""

    @abstractmethod
    def scales(self, batch: Batch, step: int) -> list[float]:
        """Return the factor on each summed loss of a step: its weight over the number of positions in the batch."""

    @abstractmethod
    def part_losses(self, part: Batch, scales: list[float]) -> Sequence[Tensor]:
        """Return the weighted losses of a micro-batch, as many as `losses` has names or one, from `wrapped`."""

    @abstractmethod
    def score_parts(self, parts: Iterable[Batch]) -> dict[str, float]:
        """Score micro-batches of held-out text, in the arithmetic of training."""

    # --- steps

    def take_step(self, step: int) -> dict[str, float]:
        batch = self.sequences.train(step)
        scales = self.scales(batch, step)
        self.set_rates(step)
        accelerator, processes = self.accelerator, self.accelerator.num_processes
        # Random dropping and noise are seeded by the step alone, so that a resumed training does the same.
        torch.manual_seed(self.common.seed + (step * processes + accelerator.process_index) * 0x9E3779B1 % 2**31)
        self.student.train()
        parts = list(batch.split(self.common.micro_batch))[accelerator.process_index :: processes]
        sums = torch.zeros(max(len(self.losses), 1), dtype=torch.float64, device=accelerator.device)
        for number, part in enumerate(parts, start=1):
            # Gradients are averaged over the processes once a step, after its last part.
            with nullcontext() if number == len(parts) else accelerator.no_sync(self.wrapped):
                losses = torch.stack(list(self.part_losses(part, scales)))
                # Processes average their gradients, and each has its part of a sum.
                accelerator.backward(losses.sum() * processes)
            sums += losses.detach().double()
        found = accelerator.reduce(sums, "sum").tolist()
        total = sum(found)
        norm = torch.nn.utils.clip_grad_norm_(self.student.parameters(), self.grad_clip)
        if not (torch.isfinite(norm) and abs(total) < float("inf")):
            raise NumericsError(
                f"The training loss is {total}, its gradient {float(norm)}, at step {step}: lower "
                "optimizer.learning_rate."
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        taken = {"train_loss": total, "lr": self.optimizers[0].param_groups[0]["lr"]}
        return taken | {column(name): loss for name, loss in zip(self.losses, found, strict=False)}

    def agreed(self, stopped: bool) -> bool:
        if self.accelerator.num_processes == 1:
            return stopped
        flag = torch.tensor(float(stopped), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum") > 0)

    # --- held-out text

    @torch.no_grad()
    def score(self) -> dict[str, float]:
        """Score a part of the held-out text: a monitor."""
        if not self.writes:
            return {}
        self.student.eval()
        with self.accelerator.autocast():
            return self.score_parts(self.heldout_parts(self.common.monitor.heldout_batches))

    def heldout_parts(self, limit: int | None) -> Iterator[Batch]:
        """Yield the held-out sequences, of at most `limit` batches, in micro-batches."""
        for batch in islice(self.sequences.heldout(), limit):
            yield from batch.split(self.common.micro_batch)

    def reference(self) -> dict[str, float]:
        """Return the figures of the frozen target on the watched text, which are the same every time."""
        if self._reference is None:
            self._reference = self.target_score(self.common.monitor.heldout_batches)
        return self._reference

    def target_score(self, limit: int | None) -> dict[str, float]:
        """Score the target's own next token, in its own arithmetic, on at most `limit` batches."""
        with torch.autocast(self.accelerator.device.type, enabled=False):
            return score_target(self.target, self.heldout_parts(limit))

    # --- the end

    def summary(self, trained: nn.Module) -> dict[str, Any]:
        """Return the lines of `summary.json` that all trainings have."""
        return {
            "recipe": {key: value for key, value in asdict(self.common).items() if key in self.recipe_keys},
            "seed": self.common.seed,
            "fingerprint": self.fingerprint,
            "data": self.sequences.manifest,
            "data_fingerprint": self.sequences.fingerprint,
            "parameters": sum(weight.numel() for weight in trained.parameters()),
            "processes": self.accelerator.num_processes,
            **self.effort(self.accelerator.device, self.dtype),
            "target_dtype": str(self.target.hidden.output_layer.dtype).removeprefix("torch."),
        }

    def finished(self, summary: dict[str, Any], metrics: dict[str, float], sentence: str) -> FinishedTraining:
        """Write `summary.json` with the final figures, and return the results."""
        summary |= {"bytes": (self.folder / self.file_name).stat().st_size, "heldout": metrics}
        write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        final = {name.replace("heldout/", "heldout/final.", 1): value for name, value in metrics.items()}
        return FinishedTraining(self.folder, summary, final, sentence)


def per_position(weights: Sequence[float], batch: Batch) -> list[float]:
    """Return each weight over the number of positions at which the token that many places after the next is scored."""
    seen = [int(batch.scored[:, k + 1 :].sum()) for k in range(len(weights))]
    return [weight / max(positions, 1) for weight, positions in zip(weights, seen, strict=True)]


def opened_parts(
    config: StateTrainConfig, offsets: Callable[[Target], tuple[int, ...]], teacher: bool, frozen: bool = True
) -> tuple[Accelerator, Target, Sequences, StateSource]:
    """Open what a training needs, first in the main process and then in the others.

    Args:
        offsets: the layers whose states are read.
        teacher: the target's own logits are read too.
        frozen: the target stays as it is, so its states may be kept on disk.
    Raises:
        UsageError: one of the parts is missing or does not fit.
    """
    device = training_device(config.device)  # refuses a GPU that is not there
    accelerator = Accelerator(
        cpu=config.device == "cpu",
        mixed_precision="bf16" if training_dtype(config.bfloat16, device) == torch.bfloat16 else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=not frozen)],
    )
    target = load_target(config.target, accelerator.device)
    with accelerator.main_process_first():
        sequences = open_sequences(config.data, target, config.seed)
        source = StateSource(target, offsets(target), sequences, config.data.states, teacher)
        if frozen:
            source.prepare()
    return accelerator, target, sequences, source


def check_first(
    noun: str, path: str, trained_on: str, stored: dict[str, Any], key: str, wanted: dict[str, Any], target: Target
) -> None:
    """Check that what a training goes on from is of the recipe's kind and of its target.

    Args:
        noun: what the file holds, for messages.
        path: value of `init`.
        trained_on: the hash of the target's weights in the file.
        stored, wanted: the config of the file, and that of the recipe, which stands at `key` there.
    Raises:
        UsageError: it is not.
    """
    if trained_on != target.hidden.identity:
        raise UsageError(
            f"The {noun} init={path} was trained on a target whose weights have the hash {trained_on[:16]}; this one's "
            f"have {target.hidden.identity[:16]}: go on with the target that it was trained on."
        )
    other = [name for name in wanted if name != "name" and wanted[name] != stored[name]]
    if other:
        raise UsageError(
            f"The {noun} init={path} has {', '.join(f'{name}={stored[name]}' for name in other)} and the recipe has "
            f"{', '.join(f'{key}.{name}={wanted[name]}' for name in other)}: make them the same."
        )


def load_target(values: dict[str, Any], device: torch.device) -> Target:
    """Load the target of a recipe to the device of this process.

    One sentence says where that computes in another dtype than was asked for, or slowly: the states of all training
    text are computed.
    """
    target = targets.build({**values, "device": str(device)}, sampling=_SAMPLING)
    arithmetic = arithmetic_of(target.model)
    if arithmetic is not None and arithmetic.sentence:
        logger.info("The target's states: %s", arithmetic.sentence)
    return target

"""The input of heads: the target's hidden states of sequences, from a cache on disk or computed in every step.

Both ways give the same numbers, rounded to the same dtype. Knows neither heads nor where text comes from.
"""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from specdec.errors import NumericsError, UsageError
from specdec.progress import stage
from specdec.targets.base import Target
from specdec.text.sources import Part
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.data_recipes import StatesConfig, fingerprint

logger = logging.getLogger(__name__)

GIB, MIB = 2**30, 2**20
_PROBE = 4  # tokens


class StateSource:
    """The hidden states of any batch of sequences and, for a teacher, the target's own logits."""

    cached = False  # they are read from disk; True after `prepare`

    def __init__(
        self, target: Target, offsets: tuple[int, ...], sequences: Sequences, config: StatesConfig, teacher: bool
    ) -> None:
        """Read the layers `offsets`, counted down from the last; their states stand side by side. For a `teacher`,
        `states` returns logits too. Raises UsageError: a target without states, or without one of the layers.
        """
        self.target, self.sequences, self.config, self.teacher = target, sequences, config, teacher
        hidden = target.hidden
        # The states of a few tokens show size and dtype.
        probe = sequences.batch("heldout", np.arange(1)).tokens[:, :_PROBE].to(target.device)
        last, logits = hidden.sequence(probe, 0)
        size, output = last.shape[-1], hidden.output_layer
        self.dtype = states_dtype(config, last.dtype)
        # Some models do more with their last states than one matrix product (a bias, a cap on the logits).
        error = torch.finfo(logits.dtype).eps * float(logits.abs().max())
        linear = torch.allclose(F.linear(last, output), logits, rtol=0, atol=error)
        # The teacher's logits are made of the last layer's states, which are kept too if they would not be rounded.
        kept_too = teacher and linear and 0 not in offsets and self.dtype == last.dtype
        self.offsets = (*offsets, 0) if kept_too else offsets  # of the layers whose states are kept
        self._asked = len(offsets) * size
        place = self.offsets.index(0) * size if linear and 0 in self.offsets else None
        self._last = None if place is None else slice(place, place + size)  # among the kept states
        self.needs_logits = teacher and self._last is None  # every step calls the target for them
        self._width = len(self.offsets) * size
        self._sequence_bytes = sequences.length * self._width * self.dtype.itemsize
        self.bytes = sum(sequences.counts.values()) * self._sequence_bytes
        self.kept = config.cache != "none" and self.bytes <= config.limit_gib * GIB  # on disk
        hidden.sequence(probe, *self.offsets)  # refuses a layer that is not there
        name = fingerprint(hidden.identity, *self.offsets, str(self.dtype), sequences.fingerprint, config.shard_mib)
        self.folder = Path(config.folder).expanduser() / name[:16]
        self._shard_size = max(1, config.shard_mib * MIB // self._sequence_bytes)  # sequences
        self._mapped: dict[Path, Tensor] = {}

    def prepare(self, seconds: float | None = None) -> None:
        """Fill the cache if there is one; states that it has already are kept. `seconds` is what those of a sequence
        take, if known. Raises UsageError: too little space on the disk, before anything is computed.
        """
        if not self.kept:
            if self.config.cache != "none":
                logger.info(
                    "The hidden states would take %.5g GiB, more than data.states.limit_gib=%g: they are computed in "
                    "every step instead", self.bytes / GIB, self.config.limit_gib,
                )  # fmt: skip
            return
        check_space(self.config, sum(self._sequence_bytes * len(numbers) for _, numbers in self.missing()))
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            self._write(self.missing(), seconds)
        self.cached = True

    def _write(self, missing: list[tuple[Part, range]], seconds: float | None) -> None:
        if not missing:
            return
        logger.info("Computing hidden states: %d files to %s", len(missing), self.folder)
        total, left = sum(self.sequences.counts.values()), sum(len(numbers) for _, numbers in missing)
        shorter = "data.sequences=N reads fewer, data.states.cache=none computes them in every step"
        expected = None if seconds is None else left * seconds
        with stage("hidden states", total=total, expected=expected, shorter=shorter) as under_way:
            under_way.go_on_from(total - left)
            for part, numbers in missing:
                _, path = self._shard(part, numbers.start)
                unfinished = path.with_name(path.name + ".part")
                with unfinished.open("wb") as file:
                    for first in range(0, len(numbers), self.config.batch):
                        batch = self.sequences.batch(part, np.array(numbers[first : first + self.config.batch]))
                        states, _ = self._call(batch)
                        states.cpu().contiguous().view(torch.uint8).numpy().tofile(file)
                        under_way.advance(len(batch))
                os.replace(unfinished, path)

    def _shard(self, part: Part, number: int) -> tuple[range, Path]:
        """Return the sequences of the file that holds one of them, and the file: its name has the first and the one
        after the last, because a longer training has another last file.
        """
        first = number // self._shard_size * self._shard_size
        numbers = range(first, min(first + self._shard_size, self.sequences.counts[part]))
        return numbers, self.folder / f"{part}_{numbers.start:07}_{numbers.stop:07}.bin"

    def missing(self) -> list[tuple[Part, range]]:
        """Return part and sequences of each file that is not there whole."""
        missing = []
        for part, count in self.sequences.counts.items():
            for first in range(0, count, self._shard_size):
                numbers, path = self._shard(part, first)
                if not path.exists() or path.stat().st_size != len(numbers) * self._sequence_bytes:
                    missing.append((part, numbers))
        return missing

    def _read(self, batch: Batch) -> Tensor:
        """Read the states [B, S, width] of sequences from files that are mapped, so that no more is read."""
        rows = []
        for number in map(int, batch.numbers):
            numbers, path = self._shard(batch.part, number)
            if path not in self._mapped:
                size = path.stat().st_size // self.dtype.itemsize
                flat = torch.from_file(str(path), shared=False, size=size, dtype=self.dtype)
                self._mapped[path] = flat.view(-1, self.sequences.length, self._width)
            rows.append(self._mapped[path][number - numbers.start])
        return torch.stack(rows).to(self.target.device)

    def states(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return states [B, S, n * D] of n layers on the target's device and, for a teacher, logits [B, S, V], computed
        from the last layer's states if these are kept and only the output layer comes after them; otherwise the target
        is called. Neither has a gradient. Raises NumericsError: states that are not finite in their dtype.
        """
        if self.cached:
            kept, logits = self._read(batch), self._call(batch)[1] if self.needs_logits else None
        else:
            kept, logits = self._call(batch)
        states = kept[..., : self._asked]
        if not self.teacher:
            return states, None
        if self._last is None:
            assert logits is not None
            return states, logits.clone()  # what inference mode returns cannot take part in training
        output = self.target.hidden.output_layer
        return states, F.linear(kept[..., self._last].to(output.dtype), output)

    def _call(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Call the target; return rounded states, and logits as they are."""
        exact, logits = self.target.hidden.sequence(batch.tokens.to(self.target.device), *self.offsets)
        states = exact.to(self.dtype, copy=True)  # see `clone` above
        if not bool(states.isfinite().all()):
            raise NumericsError(
                f"Hidden states of {batch.part} sequences from {int(batch.numbers[0])} on are not finite in "
                f"{self.dtype}: set data.states.dtype to bfloat16 or float32, or check the model."
            )
        return states, logits


def states_dtype(config: StatesConfig, own: torch.dtype) -> torch.dtype:
    """Return the dtype that states are rounded to; `own` is the target's."""
    return own if config.dtype == "auto" else getattr(torch, config.dtype)


def check_space(config: StatesConfig, needed: int) -> None:
    """Check that the disk has room for the states, `needed` bytes. Raises UsageError: it has not."""
    folder = Path(config.folder).expanduser().absolute()
    place = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise UsageError(
            f"The cache data.states.folder={config.folder} needs {needed:,} bytes for hidden states, and {free:,} are "
            "free there: choose another folder, read fewer data.sequences, or set data.states.cache=none to compute "
            "them in every step."
        )

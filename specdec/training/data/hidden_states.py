"""The input of heads: the target's hidden states of sequences, from a cache on disk or computed in every step.

Both ways give the same numbers, rounded to the same dtype. Knows neither heads nor where text comes from.
"""

import json
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
from specdec.progress import progress_bar
from specdec.targets.base import Target
from specdec.text.document_store import Part
from specdec.text.writing import write_atomically
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.data_recipes import StatesConfig, fingerprint

logger = logging.getLogger(__name__)

MANIFEST = "states.json"
GIB, MIB = 2**30, 2**20
_PROBE = 4  # tokens


class StateSource:
    """The hidden states of any batch of sequences and, for a teacher, the target's own logits.

    Attributes:
        offsets: the layers whose states are kept: those asked for and, where a teacher's logits are made of them, the
            last.
        bytes: the size of all states.
        cached: states are read from disk; True after `prepare` if they are kept there.
    """

    cached = False

    def __init__(
        self, target: Target, offsets: tuple[int, ...], sequences: Sequences, config: StatesConfig, teacher: bool
    ) -> None:
        """
        Args:
            offsets: the layers of the states, counted down from the last; their states stand side by side.
            teacher: `states` returns logits too.
        Raises:
            UsageError: a target without states, or without one of the layers.
        """
        self.target, self.sequences, self.config, self.teacher = target, sequences, config, teacher
        # The states of a few tokens show size and dtype.
        probe = sequences.batch("heldout", np.arange(1)).tokens[:, :_PROBE].to(target.device)
        last, logits = target.hidden.sequence(probe, 0)
        size, output = last.shape[-1], target.hidden.output_layer
        self.dtype = states_dtype(config, last.dtype)
        # Some models do more with their last states than one matrix product (a bias, a cap on the logits).
        error = torch.finfo(logits.dtype).eps * float(logits.abs().max())
        linear = torch.allclose(F.linear(last, output), logits, rtol=0, atol=error)
        # The teacher's logits are made of the last layer's states, which are kept too if they would not be rounded.
        kept_too = teacher and linear and 0 not in offsets and self.dtype == last.dtype
        self.offsets = (*offsets, 0) if kept_too else offsets
        self._asked = len(offsets) * size
        place = self.offsets.index(0) * size if linear and 0 in self.offsets else None
        self._last = None if place is None else slice(place, place + size)  # among the kept states
        self._width = len(self.offsets) * size
        self._sequence_bytes = sequences.length * self._width * self.dtype.itemsize
        self.bytes = sum(sequences.counts.values()) * self._sequence_bytes
        target.hidden.sequence(probe, *self.offsets)  # refuses a layer that is not there
        name = fingerprint(
            target.hidden.identity, *self.offsets, str(self.dtype), sequences.fingerprint, config.shard_mib
        )
        self.folder = Path(config.folder).expanduser() / name[:16]
        self._shard_size = max(1, config.shard_mib * MIB // self._sequence_bytes)  # sequences
        self._shards: dict[str, Tensor] = {}

    # --- the cache

    def prepare(self) -> None:
        """Fill the cache if there is one; states that an interrupted or another training left are kept.

        Raises:
            UsageError: too little space on the disk, before anything is computed.
        """
        if self.config.cache == "none":
            return
        if self.bytes > self.config.limit_gib * GIB:
            logger.info(
                "The hidden states would take %.5g GiB, more than data.states.limit_gib=%g: they are computed in every "
                "step instead", self.bytes / GIB, self.config.limit_gib,
            )  # fmt: skip
            return
        check_space(self.config, sum(self._sequence_bytes * (end - first) for _, first, end in self._missing()))
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            missing = self._missing()
            if missing:
                logger.info("Computing hidden states: %d files to %s", len(missing), self.folder)
                self._write(missing)
        self.cached = True

    def _write(self, missing: list[tuple[Part, int, int]]) -> None:
        total, left = sum(self.sequences.counts.values()), sum(end - first for _, first, end in missing)
        done = self._complete()
        with progress_bar() as progress:
            bar = progress.add_task("hidden states", total=total, completed=total - left)
            for part, first, end in missing:
                self._write_shard(part, first, end)
                done.add(_shard(part, first, end))
                write_atomically(self.folder / MANIFEST, json.dumps({"complete": sorted(done)}, indent=1) + "\n")
                progress.advance(bar, end - first)

    def _complete(self) -> set[str]:
        path = self.folder / MANIFEST
        return set(json.loads(path.read_text(encoding="utf-8"))["complete"]) if path.exists() else set()

    def _missing(self) -> list[tuple[Part, int, int]]:
        """Return (part, first sequence, sequence after the last) of each file that is not complete."""
        done, size = self._complete(), self._shard_size
        ranges = [
            (part, first, min(first + size, count))
            for part, count in self.sequences.counts.items()
            for first in range(0, count, size)
        ]
        return [each for each in ranges if _shard(*each) not in done or not (self.folder / _shard(*each)).exists()]

    def _write_shard(self, part: Part, first: int, end: int) -> None:
        path = self.folder / _shard(part, first, end)
        temporary = path.with_name(path.name + ".part")
        with temporary.open("wb") as file:
            for number in range(first, end, self.config.batch):
                batch = self.sequences.batch(part, np.arange(number, min(number + self.config.batch, end)))
                states, _ = self._call(batch)
                states.cpu().contiguous().view(torch.uint8).numpy().tofile(file)
        os.replace(temporary, path)

    def _read(self, batch: Batch) -> Tensor:
        found = []
        for number in map(int, batch.numbers):
            first = number // self._shard_size * self._shard_size
            end = min(first + self._shard_size, self.sequences.counts[batch.part])
            found.append(self._mapped(_shard(batch.part, first, end), end - first)[number - first])
        return torch.stack(found).to(self.target.device)

    def _mapped(self, name: str, count: int) -> Tensor:
        """Map a file as [count, S, width] without reading it."""
        if name not in self._shards:
            shape = (count, self.sequences.length, self._width)
            flat = torch.from_file(str(self.folder / name), shared=False, size=int(np.prod(shape)), dtype=self.dtype)
            self._shards[name] = flat.view(shape)
        return self._shards[name]

    # --- batches

    def states(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return states [B, S, n * D] of n layers on the target's device and, for a teacher, logits [B, S, V].

        Neither has a gradient.

        The teacher's logits are computed from the last layer's states if these are kept and only the output layer comes
        after them; otherwise the target is called. States from disk and computed ones are the same numbers.

        Raises:
            NumericsError: states that are not finite in their dtype.
        """
        if self.cached:
            needs_logits = self.teacher and self._last is None
            kept, logits = self._read(batch), self._call(batch)[1] if needs_logits else None
        else:
            kept, logits = self._call(batch)
        states = kept[..., : self._asked]
        if not self.teacher:
            return states, None
        if self._last is not None:
            output = self.target.hidden.output_layer
            return states, F.linear(kept[..., self._last].to(output.dtype), output)
        assert logits is not None
        return states, logits.clone()  # what inference mode returns cannot take part in training

    def _call(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Call the target; return rounded states, and logits as they are."""
        found, logits = self.target.hidden.sequence(batch.tokens.to(self.target.device), *self.offsets)
        states = found.to(self.dtype, copy=True)  # see `clone` above
        if not bool(states.isfinite().all()):
            raise NumericsError(
                f"Hidden states of {batch.part} sequences from {int(batch.numbers[0])} on are not finite in "
                f"{self.dtype}: set data.states.dtype to bfloat16 or float32, or check the model."
            )
        return states, logits


def _shard(part: Part, first: int, end: int) -> str:
    """Name a file by its first sequence and the one after its last: a longer training has another last file."""
    return f"{part}_{first:07}_{end:07}.bin"


def states_dtype(config: StatesConfig, own: torch.dtype) -> torch.dtype:
    """Return the dtype that states are rounded to; `own` is the target's."""
    chosen: torch.dtype = own if config.dtype == "auto" else getattr(torch, config.dtype)
    return chosen


def check_space(config: StatesConfig, needed: int) -> None:
    """Check that the disk has room for the states.

    Args:
        needed: bytes.
    Raises:
        UsageError: it has not.
    """
    folder = Path(config.folder).expanduser().absolute()
    place = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise UsageError(
            f"The cache data.states.folder={config.folder} needs {needed:,} bytes for hidden states, and {free:,} are "
            "free there: choose another folder, read fewer data.sequences, or set data.states.cache=none to compute "
            "them in every step."
        )

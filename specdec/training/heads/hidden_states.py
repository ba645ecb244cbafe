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
from specdec.training.heads.head_data_config import StatesConfig
from specdec.training.heads.sequences import Batch, Sequences
from specdec.training.recipe_parts import fingerprint

logger = logging.getLogger(__name__)

MANIFEST = "states.json"
GIB, MIB = 2**30, 2**20
_PROBE = 4  # tokens


class StateSource:
    """The hidden states of any batch of sequences and, for a teacher, the target's own logits.

    Attributes:
        bytes: the size of all states.
        cached: states are read from disk; True after `prepare` if they are kept there.
    """

    cached = False

    def __init__(self, target: Target, offset: int, sequences: Sequences, config: StatesConfig, teacher: bool) -> None:
        """
        Args:
            offset: the layer of the states, counted down from the last.
            teacher: `states` returns logits too.
        Raises:
            UsageError: a target without states, or without that layer.
        """
        self.target, self.offset, self.sequences, self.config, self.teacher = target, offset, sequences, config, teacher
        # The states of a few tokens show size and dtype.
        probe = sequences.batch("heldout", np.arange(1)).tokens[:, :_PROBE].to(target.device)
        states, logits = target.hidden.sequence(probe, offset)
        self.dtype, self.size = states_dtype(config, states.dtype), states.shape[-1]
        self._sequence_bytes = sequences.length * self.size * self.dtype.itemsize
        self.bytes = sum(sequences.counts.values()) * self._sequence_bytes
        # Some models do more with their last states than one matrix product (a bias, a cap on the logits).
        error = torch.finfo(logits.dtype).eps * float(logits.abs().max())
        self._linear_output = offset == 0 and torch.allclose(
            F.linear(states, target.hidden.output_layer), logits, rtol=0, atol=error
        )
        # The teacher's logits need the last layer's states: kept on disk too if they would not be rounded there.
        self._last: StateSource | None = None
        if teacher and offset and self.dtype == states.dtype:
            last = StateSource(target, 0, sequences, config, teacher=True)
            self._last = last if last._linear_output else None
        name = fingerprint(target.hidden.identity, offset, str(self.dtype), sequences.fingerprint, config.shard_mib)
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
        kept = [self] if self._last is None else [self._last, self]
        size = sum(source.bytes for source in kept)
        if size > self.config.limit_gib * GIB:
            logger.info(
                "The hidden states would take %.5g GiB, more than data.states.limit_gib=%g: they are computed in every "
                "step instead", size / GIB, self.config.limit_gib,
            )  # fmt: skip
            return
        missing = (source._sequence_bytes * (end - first) for source in kept for _, first, end in source._missing())
        check_space(self.config, sum(missing))
        for source in kept:
            source._fill()

    def _fill(self) -> None:
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
        """Map a file as [count, S, D] without reading it."""
        if name not in self._shards:
            shape = (count, self.sequences.length, self.size)
            flat = torch.from_file(str(self.folder / name), shared=False, size=int(np.prod(shape)), dtype=self.dtype)
            self._shards[name] = flat.view(shape)
        return self._shards[name]

    # --- batches

    def states(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return states [B, S, D] on the target's device and, for a teacher, logits [B, S, V]; neither has a gradient.

        The teacher's logits are computed from the last layer's states if only the output layer comes after them;
        otherwise the target is called. States from disk and computed ones are the same numbers.

        Raises:
            NumericsError: states that are not finite in their dtype.
        """
        if self.cached and (self._linear_output or not self.teacher):
            states, logits = self._read(batch), None
        elif self.cached:
            last = self._last
            logits = self._call(batch)[1] if last is None or not last.cached else last.states(batch)[1]
            states = self._read(batch)
        else:
            states, logits = self._call(batch)
        if not self.teacher:
            return states, None
        if self._linear_output:
            output = self.target.hidden.output_layer
            return states, F.linear(states.to(output.dtype), output)
        assert logits is not None
        return states, logits.clone()  # what inference mode returns cannot take part in training

    def _call(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Call the target; return rounded states, and logits as they are."""
        found, logits = self.target.hidden.sequence(batch.tokens.to(self.target.device), self.offset)
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

"""What one target call on n rows costs, t(n), and what one drafter step costs, measured apart from decoding."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from specdec.drafters.base import Drafter
from specdec.measurement.timers import Clock
from specdec.records import Draft, chain_tree
from specdec.structures.base import Structure
from specdec.targets.base import Target


@dataclass(frozen=True)
class Calibration:
    """Raw times of single calls, seconds.

    Attributes:
        context: tokens in the cache during the calls.
        calls: rows n -> times of one verification of n rows, from draft tokens to standardised p.
        draft: times of one draft of one token (empty when the drafter proposed nothing).
    """

    context: int
    calls: dict[int, list[float]]
    draft: list[float]

    def t(self, rows: int) -> float:
        """Median time of a call on `rows` rows, seconds."""
        return median(self.calls[rows])

    @property
    def draft_step(self) -> float:
        """Median time of one drafter step, seconds; 0 when none was seen."""
        return median(self.draft) if self.draft else 0.0

    def as_dict(self) -> dict[str, Any]:
        summary = {rows: {"median_s": self.t(rows), "ratio": self.t(rows) / self.t(1)} for rows in self.calls}
        return {**asdict(self), "t1_s": self.t(1), "draft_step_s": self.draft_step, "t_n": summary}


@torch.inference_mode()
def calibrate(
    target: Target,
    drafter: Drafter,
    structure: Structure,
    prompt: Sequence[int],
    rows: Sequence[int],
    repeats: int,
    clock: Clock,
    generator: torch.Generator,
) -> Calibration:
    """Time calls on chains of each size in `rows` (1 included), interleaved, on one prompt's context.

    The first two of each size warm up and are dropped.
    """
    sizes = sorted({1, *rows})
    capacity = len(prompt) + max(sizes) + 1
    # A drafter that reads a recorded text gets the prompt's own tokens: only the cost of a step matters here.
    drafter.start(prompt, capacity, generator, reference=prompt)
    target.start(prompt, capacity)
    marks: dict[int, list[tuple[object, object]]] = {size: [] for size in sizes}
    draft_marks: list[tuple[object, object]] = []
    tokens = torch.randint(target.vocab_size, (max(sizes),), generator=generator).to(target.device)
    single = structure.resized(1)
    for _ in range(repeats + 2):
        for size in sizes:
            draft = Draft(tokens[: size - 1], chain_tree(size - 1))
            start = clock.mark()
            target.verify(draft)
            marks[size].append((start, clock.mark()))
            target.discard()
        start = clock.mark()
        proposed = drafter.draft(single)
        if len(proposed):
            draft_marks.append((start, clock.mark()))
    clock.synchronize()
    return Calibration(
        context=len(prompt),
        calls={size: [clock.seconds(*pair) for pair in pairs[2:]] for size, pairs in marks.items()},
        draft=[clock.seconds(*pair) for pair in draft_marks[2:]],
    )

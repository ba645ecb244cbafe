"""How many threads to compute on where other work takes processors.

Threads that share a product wait for the slowest of them. One that shares its processor with other work keeps all the
others waiting, and as they spin they take the processor from it: a call may take ten times as long as with one thread
less, which leaves the other work a processor of its own.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Any

import torch

from specdec import ranks
from specdec.analysis.sections import counted
from specdec.disturbance import SHARE, Watch, affinity
from specdec.progress import detail, stage, tell
from specdec.records import Draft, TextStart, chain_tree
from specdec.targets.base import Target
from specdec.targets.base.model_target import ModelTarget

_LOOK_S = 0.3  # of a look at other work, before a run that does not say its threads
_TRIED_S, _PAIRS = 1.0, 3  # for calls by either number, and the fewest of each
_GAIN = 0.9  # of the time of a call by all threads, below which fewer are taken
_TOKENS, _CONTEXT = 5, 32  # of a call, that of a draft of four, and of what it attends to


def settle_threads(target: Target, tokens: Sequence[int], watch: Watch, chosen: bool) -> dict[str, Any]:
    """Compute on fewer threads from now on where other work takes processors and calls, timed on tokens of a prompt,
    are then faster. A number that was asked for (`chosen`) is kept, and only said to be too high.

    Return for `calibration.json`: `threads`; where a trial was made also `others`, the share of the processors that
    other work took, and `trial`, the median seconds of a call on five tokens by number of threads.
    """
    most = torch.get_num_threads()
    alone = most == 1 or target.device.type != "cpu" or not isinstance(target, ModelTarget) or ranks.count() > 1
    share = None if alone else watch.others(_LOOK_S)
    if share is None or share < SHARE:
        return {"threads": most}
    fewer = max(1, min(most - 1, most - ceil(share * len(affinity()))))
    with stage("Choose threads", f"other work takes {share:.0%} of the processors", told=False):
        trial = _trial(target, tokens, most, fewer)
    taken = (
        f"a call on {_TOKENS} tokens takes {1e3 * trial[fewer]:.0f} ms by {fewer}, {1e3 * trial[most]:.0f} by {most}"
    )
    said = f"Other work takes {share:.0%} of the processors"
    if trial[fewer] > _GAIN * trial[most]:
        detail(f"{said}, and fewer threads are not faster: {taken}.")
    elif chosen:
        tell(f"{said}: measurement.threads={fewer} is faster, {taken}.")
    else:
        torch.set_num_threads(fewer)
        tell(f"{said}, so that this run computes on {counted(fewer, 'thread')}: {taken}.")
    return {"threads": torch.get_num_threads(), "others": share, "trial": {str(n): trial[n] for n in (most, fewer)}}


@torch.inference_mode()
def _trial(target: Target, tokens: Sequence[int], *numbers: int) -> dict[int, float]:
    """Return the median seconds of a call by each number of threads, in turn."""
    tree = chain_tree(_TOKENS - 1)
    tokens = tokens[:_CONTEXT]
    target.start(TextStart(tokens, len(tokens) + target.room(tree)))
    draft = Draft(torch.zeros(len(tree), dtype=torch.long, device=target.device), tree)
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    most, began = torch.get_num_threads(), time.perf_counter()
    try:
        while len(seconds[numbers[0]]) <= _PAIRS or time.perf_counter() - began < _TRIED_S:
            for number in numbers:
                torch.set_num_threads(number)
                start = time.perf_counter()
                target.verify(draft)
                target.discard()
                seconds[number].append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(most)
    return {number: median(taken[1:]) for number, taken in seconds.items()}

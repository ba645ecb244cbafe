"""Names of metrics: those of runs that older versions logged, with a dot after the family, become those of today.

A slash after the family makes a section of MLflow's chart view: `account/verify`, `category/code/speedup`.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

FAMILIES = (
    "ablation", "account", "all_drafters", "batching", "budget", "cost", "grid", "heldout", "iid", "lenience",
    "lossless", "memory", "mt_bench", "operations", "peer", "prompts", "quality", "repetition", "serving", "throughput",
    "topk", "train", "transition", "tree_search", "typical_acceptance",
)  # fmt: skip
# Names of categories may have dots of their own, so that a name of today's has to follow.
_CATEGORY = re.compile(
    r"category\.(.+?)\.((?:speedup|tokens_per_round|alpha|accepted_per_offered|acceleration_rate|step_overhead"
    r"|compression_ratio|throughput|draft_length)(?:\..+)?)"
)
_DRAFTER = re.compile(r"drafter\.([^./]+)\.(.+)")
_CURVE = re.compile(r"(curve|sweep)\.([^./]+)(?:\.(.+))?")


def current_name(name: str) -> str:
    """Return the name that a metric has today; one of today's is returned as it is."""
    if parts := _CATEGORY.fullmatch(name):
        return f"category/{parts[1]}/{current_name(parts[2])}"
    if parts := _DRAFTER.fullmatch(name):
        return f"drafter/{parts[1]}/{current_name(parts[2])}"
    if parts := _CURVE.fullmatch(name):
        family, first, rest = parts.groups()
        if rest is None:
            return f"{family}/{first}"
        # The bounds of a curve, and of the key that lines share, stay beside it.
        return f"{family}/{first}{'.' if rest in ('ci_low', 'ci_high') else '/'}{rest}"
    family, dot, rest = name.partition(".")
    return f"{family}/{rest}" if dot and family in FAMILIES else name


def current_names(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return metrics or curves by the names of today."""
    return {current_name(name): value for name, value in values.items()}

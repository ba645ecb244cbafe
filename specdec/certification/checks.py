"""One line of a certificate: what was compared with what, how often, and whether it held."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specdec.errors import SpecdecError, is_out_of_memory

logger = logging.getLogger(__name__)

Level = Literal["exact", "statistical", "greedy"]
Verdict = Literal["passed", "FAILED", "not applicable"]


@dataclass(frozen=True)
class Check:
    """A check after it was made.

    Attributes:
        level: "exact" enumerates or compares token by token in float64; "statistical" draws on the user's own parts;
            "greedy" compares whole outputs of the user's own parts, differences scored again in float32.
        name, compared: what was checked, and with what it was compared.
        draws: outcomes that were enumerated, tokens that were drawn, or outputs that were compared.
        statistic: the number that decides, in words ("largest error 2e-16").
        p_value: chance of a statistic at least as large under a lossless combination; None where nothing is random.
        detail: a sentence on a failure, or on why the check does not apply.
        facts: further numbers for `certificate.json`.
    """

    level: Level
    name: str
    compared: str
    draws: int
    statistic: str
    verdict: Verdict
    p_value: float | None = None
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def not_applicable(level: Level, name: str, why: str) -> Check:
    """Return the line of a check that says nothing about this combination."""
    return Check(level, name, "", 0, "", "not applicable", detail=why)


def attempted(level: Level, name: str, check: Callable[[], Check]) -> Check:
    """Make a check; an error that is raised within is a failure of the combination, and its sentence the detail.

    Raises:
        SpecdecError: a fault that is not the combination's: a bad value, a signal, the environment.
    """
    try:
        return check()
    except SpecdecError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        logger.debug("The check %r raised an error.", name, exc_info=True)
        first = (str(error).splitlines() or [""])[0]
        return Check(level, name, "", 0, "", "FAILED", detail=f"it raised {type(error).__name__}: {first}")

"""Drafters made of other drafters: what a part says of its keys, said of where they stand."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from specdec.errors import UsageError


@contextmanager
def named_below(place: str) -> Iterator[None]:
    """A part speaks of its keys as `drafter.model`; in a drafter that has it at `place` they are
    `drafter.PLACE.model`.

    Raises:
        UsageError: the one that was raised within, so named.
    """
    try:
        yield
    except UsageError as error:
        own_key = rf"(?<![\w./-])drafter\.(?!{place}\.)(?=\w)"
        raise type(error)(re.sub(own_key, f"drafter.{place}.", str(error))) from None

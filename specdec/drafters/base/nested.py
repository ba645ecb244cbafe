"""Drafters made of other drafters: errors of a part name its keys where these stand in the configuration."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from specdec.errors import UsageError


@contextmanager
def named_below(place: str) -> Iterator[None]:
    """Rename the keys in errors of a part: what it calls `drafter.model` is `drafter.PLACE.model` in the drafter with
    that part at `place`.

    Raises:
        UsageError: the one raised within, with the keys renamed.
    """
    try:
        yield
    except UsageError as error:
        own_key = rf"(?<![\w./-])drafter\.(?!{place}\.)(?=\w)"
        raise type(error)(re.sub(own_key, f"drafter.{place}.", str(error))) from None

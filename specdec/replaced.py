"""Other values for names of somebody else's module, for as long as a call into it takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def replaced(owner: ModuleType | type, **values: Any) -> Iterator[None]:
    """Give names of a module or a class other values within the block."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)

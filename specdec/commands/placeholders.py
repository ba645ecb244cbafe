"""Placeholders for packages that take seconds to import, for a process that only reads configurations.

Our own modules are imported over them as they stand, with the types of their configurations and what their classes
declare. A placeholder stands where a module is loaded, in annotations, base classes and decorators; a question about
its value is a TypeError, so that nothing is ever concluded from one.
"""

import sys
from abc import ABCMeta
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

OWN = "specdec"
_MARK = "a placeholder"  # in place of the module's name, in the classes that are placeholders themselves

_VALUES = (str, bytes, int, float, complex)  # `typing` compares with other things, as annotations, all the time


def _no_value(cls: type, *_: object) -> NoReturn:
    raise TypeError(f"{cls.__name__} is a placeholder and has no value")


class _Attribute(ABCMeta):
    """The type of placeholders, and of our classes that inherit from one: those are classes like any other."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != _MARK:
            return super().__call__(*args, **kwargs)
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(name)

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __bool__(cls) -> bool:
        return True if cls.__module__ != _MARK else _no_value(cls)

    def __eq__(cls, other: object) -> bool:
        asked = isinstance(other, _VALUES) or isinstance(other, _Attribute) and other.__module__ == _MARK
        return _no_value(cls) if asked and cls is not other and cls.__module__ == _MARK else cls is other

    def __hash__(cls) -> int:
        return super().__hash__()

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) if cls.__module__ != _MARK else _no_value(cls)

    __lt__ = __le__ = __gt__ = __ge__ = __iter__ = __len__ = __contains__ = _no_value


def _placeholder(name: str) -> Any:
    return _Attribute(name, (), {"__module__": _MARK})


class _Module(ModuleType):
    """A module that has every attribute, and is a package with every submodule."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, made := _placeholder(name))
        return made


class _Finder(MetaPathFinder, Loader):
    """Answers every import of a package that is neither ours, nor Python's, nor loaded already."""

    def __init__(self, real: frozenset[str]) -> None:
        self._real = real

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in self._real else ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing: a placeholder has no code."""


def import_placeholders(*real: str) -> None:
    """Have this process import placeholders from now on. It cannot be undone: it is for a process that then ends.

    Args:
        real: packages that are imported as they are, beside ours, those of Python and those loaded already.
    """
    loaded = {name.partition(".")[0] for name in sys.modules}
    sys.meta_path.insert(0, _Finder(frozenset({OWN, *real, *loaded, *sys.stdlib_module_names})))

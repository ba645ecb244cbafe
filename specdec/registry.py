"""Name -> class, one registry per family. `@drafters.register("ngram")` is all a new drafter needs.

A class is made by its `from_config(config, ...)`, or by its constructor where that takes the config itself; the
annotation of that `config` argument says what configures it. A class made by `typed` is its own config. A class with
none of these has no settings but its name.
"""

import importlib
import logging
import pkgutil
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from pydantic.dataclasses import is_pydantic_dataclass

from specdec.config import Named, validated
from specdec.errors import UsageError, near_misses

T = TypeVar("T")
logger = logging.getLogger(__name__)


def _config_type(cls: type) -> type:
    if is_pydantic_dataclass(cls):
        return cls
    if not any({"__init__", "from_config"} & vars(base).keys() for base in cls.__mro__[:-1]):
        return Named
    maker = getattr(getattr(cls, "from_config", None), "__func__", None) or vars(cls).get("__init__")
    annotation = getattr(maker, "__annotations__", {}).get("config")
    if annotation is None:
        raise TypeError(
            f"{cls.__qualname__} needs a classmethod `from_config`, or a constructor, with `config: ITS_CONFIG`, a "
            "class made by `typed`"
        )
    return getattr(sys.modules[maker.__module__], annotation) if isinstance(annotation, str) else annotation


class Registry(Generic[T]):
    """The classes of one family (`drafters`), filled by importing the family's package and its entry points.

    Another distribution adds members through the entry-point group `specdec.<family>`. One that cannot be imported is
    left out with a warning, and named where its member is asked for: the others work without it.
    """

    def __init__(self, family: str, group: str) -> None:
        self.family, self.group = family, group
        self._classes: dict[str, type[T]] = {}
        self._settings: dict[str, str] = {}  # name of a setting of a class -> the class's own name
        self._broken: dict[str, str] = {}  # entry point -> what its import raised
        self._loaded = False

    def register(self, name: str, *settings: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that adds the class; it raises ValueError if another class has one of the names.
        What is made under the name of one of its `settings` that has a YAML (`bigram`) is called that everywhere.
        """

        def add(cls: type[T]) -> type[T]:
            for each in (name, *settings):
                taken = self._classes.get(self._settings.get(each, each))
                if taken is not None and taken.__qualname__ != cls.__qualname__:
                    raise ValueError(f"{self.family} already has {each!r}: {taken.__module__}.{taken.__qualname__}")
            self._classes[name] = cls
            self._settings |= dict.fromkeys(settings, name)
            return cls

        return add

    def names(self) -> list[str]:
        """List the registered names, one for each class."""
        self._load()
        return sorted(self._classes)

    def all_names(self) -> list[str]:
        """List the registered names with those of settings (`bigram`, a setting of `corpus_ngram`)."""
        self._load()
        return sorted([*self._classes, *self._settings])

    def get(self, name: str) -> type[T]:
        """Return the class of a name; UsageError, with near misses and the full list, if there is none."""
        self._load()
        own = self._settings.get(name, name) if isinstance(name, str) else None
        if own not in self._classes:
            broken = "".join(f" The plugin {each!r} was left out: {why}." for each, why in self._broken.items())
            raise UsageError(
                f"Unknown {self.group} {name!r}.{near_misses(str(name), self.all_names())} "
                f"The {self.family} are: {', '.join(self.all_names())}.{broken}"
            )
        return self._classes[own]

    def config(self, values: Mapping[str, Any]) -> Any:
        """Validate `values` as the config of the class that `values["name"]` selects; raises UsageError."""
        if "name" not in values:
            raise UsageError(f"Missing key {self.group}.name: it selects one of {', '.join(self.all_names())}.")
        cls = self.get(values["name"])
        return validated(_config_type(cls), values, where=self.group, source=f"{self.group} {values['name']!r}")

    def construct(self, config: Any, **context: Any) -> T:
        """Make an instance of the class that a typed config belongs to, by `from_config` or by its constructor.
        UsageError for values that cannot be met here: a file that is not there, a model that cannot be loaded, parts
        that do not fit each other.
        """
        cls = self.get(config.name)
        if type(config) is Named:
            return cls()
        if isinstance(config, cls):
            return config
        make: Callable[..., T] = getattr(cls, "from_config", cls)
        return make(config, **context)

    def build(self, values: Mapping[str, Any], **context: Any) -> T:
        """Validate and construct in one go; raises UsageError."""
        return self.construct(self.config(values), **context)

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(f"specdec.{self.family}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
        for entry in entry_points(group=f"specdec.{self.family}"):
            try:
                entry.load()
            except (Exception, SystemExit) as error:  # a package of somebody else may raise anything
                why = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")
                self._broken[entry.name] = why
                logger.warning(
                    "The plugin %r of specdec.%s is left out, its import raised %s: repair or uninstall its package.",
                    entry.name, self.family, why,
                )  # fmt: skip
        self._loaded = True

"""The results of an analysis: sections for people, numbers for MLflow; and the registry of what each study says.

A study's module in `analysis/studies`, or in `specdec/studies` beside its arms, registers the function that reads its
tables. A finished run, its folder, a report and a notebook all go through that function.
"""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import entry_points

import pandas as pd
from matplotlib.figure import Figure

from specdec.errors import UsageError, near_misses

Tables = Mapping[str, pd.DataFrame]  # The tables of a study by name

_OWN_KIND = ("stdlib_mix", "stdlib_code", "stdlib_docs", "recorded")  # prompts that suit the pocket target


@dataclass(frozen=True)
class Section:
    """A piece of a report, made by one analysis and written by any renderer: heading, sentences, tables, figures."""

    title: str
    text: tuple[str, ...] = ()  # paragraphs in Markdown, the answer first
    tables: tuple[tuple[str, pd.DataFrame], ...] = ()  # (caption, table); the index is not shown
    figures: tuple[tuple[str, Figure], ...] = ()  # (name for files, figure in the project's style)
    figures_first: bool = False  # True if pages show the figures before the tables

    def ending(self, sentence: str) -> "Section":
        """Return the section with a sentence at the end of its answer; the section itself where that is ""."""
        answer, *more = self.text
        return replace(self, text=(f"{answer} {sentence}", *more)) if sentence else self

    def beginning(self, *warnings: str) -> "Section":
        """Return the section with warnings before its answer, those that are not ""; itself without one."""
        (answer, *more), warning = self.text, " ".join(filter(None, warnings))
        return replace(self, text=(f"**{warning}** {answer}", *more)) if warning else self

    def simulated(self) -> "Section":
        """Return the section with every table headed *Simulated*, for runs whose times come from a cost model."""
        return replace(self, tables=tuple((f"Simulated: {caption}", table) for caption, table in self.tables))


@dataclass(frozen=True)
class Findings:
    """The findings of one analysis: everything that it has to say."""

    sections: tuple[Section, ...]  # for people; each begins with its answer
    metrics: dict[str, float] = field(default_factory=dict)  # for MLflow, flat names
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # for MLflow, name -> step -> value
    refuted: str = ""  # why outputs are not the target's own although the method is lossless, in a sentence; else ""


@dataclass(frozen=True)
class About:
    """Facts about a study that its tables do not hold."""

    title: str  # drafter, model and hardware, for figures
    prompts: str  # the name of the prompt set
    simulated: bool  # True where times come from a cost model
    replicates: int  # of the prompt bootstrap
    seed: int  # of the prompt bootstrap
    looping: float = 0.0  # share of the prompts whose plain text falls into a loop; 0 in studies of earlier versions

    def origin(self, replay: pd.DataFrame, skipped: pd.DataFrame) -> tuple[str, ...]:
        """Return sentences that say which texts were replayed, by the lines of a `replay`, with the `caveats`."""
        texts = replay.drop_duplicates("stream")
        sentence = (
            f"Replayed: {counted(len(texts), 'greedy text')} of {counted(texts['prompt'].nunique(), 'prompt')} from "
            f"{self.prompts}, {int(texts['tokens'].sum()):,} tokens; intervals are 95% prompt-bootstrap intervals."
        )
        return (sentence, *self.caveats(skipped))

    @property
    def source(self) -> str:
        """Words for where the seconds of a prediction come from."""
        return "simulated by a cost model" if self.simulated else "from measured calls, drafts and commits"

    def caveats(self, skipped: pd.DataFrame) -> tuple[str, ...]:
        """Return sentences on what limits the conclusions, and which prompts were left out."""
        sentences = []
        if (" on pocket" in self.title or self.title.startswith("pocket")) and self.prompts not in _OWN_KIND:
            sentences.append(
                "A protocol check: the pocket target is a small code model, and what it writes after prompts of "
                f"{self.prompts} says little about models that are made for them."
            )
        if len(skipped):
            listed = "; ".join(
                f"{reason}: " + ", ".join(f"{line['count']} {line['category']}" for line in lines.to_dict("records"))
                for reason, lines in skipped.groupby("reason", sort=True)
            )
            sentences.append(f"Prompts left out, by reason and category: {listed}.")
        return tuple(sentences)


def joined(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def in_loops(share: float) -> str:
    """Return the clause "25% of the prompts have an output that falls into a loop"."""
    return f"{share:.0%} of the prompts have an output that falls into a loop"


def counted(number: int, name: str) -> str:
    """Return a number with its noun, such as "1,234 rounds"."""
    return f"{number:,} {name}{'s' * (number != 1)}"


@dataclass(frozen=True)
class FinishedStudy:
    """A finished study, as its folder or MLflow has it."""

    kind: str  # its name in the registry of studies
    tables: Tables
    about: About
    source: str  # folder or run that it was read from, for messages

    def findings(self) -> Findings:
        """Return what its tables say. UsageError if a table is missing, or an older version of this program made it."""
        try:
            return findings(self.kind, self.tables, self.about)
        except KeyError as error:
            raise UsageError(
                f"{self.source}: study {self.kind!r} lacks {error}, which studies of this version have; run it again."
            ) from None


Reader = Callable[[Tables, About], Findings]
_READERS: dict[str, tuple[Reader, str]] = {}


def register(study: str, overlay: str = "") -> Callable[[Reader], Reader]:
    """Return a decorator that makes a function the reader of a study's tables, run by the file `overlay` of
    conf/experiment ("": the study's name). ValueError if the study has a reader in another module.
    """

    def add(reader: Reader) -> Reader:
        taken = _READERS.get(study)
        if taken is not None and taken[0].__module__ != reader.__module__:
            raise ValueError(f"study {study!r} already has findings: {taken[0].__module__}")
        _READERS[study] = (reader, overlay or study)
        return reader

    return add


def registered(study: str) -> tuple[Reader, str]:
    """Return the reader and overlay of a study of `analysis`, of `specdec/studies` or of other packages."""
    package = import_module("specdec.analysis.studies")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    if study not in _READERS and study.isidentifier():
        with suppress(ImportError):
            import_module(f"specdec.studies.{study}")
    for plugin in entry_points(group="specdec.studies") if study not in _READERS else ():
        with suppress(Exception):  # `No findings`, below, is what a reader needs of a package that does not load
            plugin.load()
    if study not in _READERS:
        raise UsageError(
            f"No findings for a study {study!r}.{near_misses(study, _READERS)} Studies with findings are: "
            f"{', '.join(sorted(_READERS))}; a module of analysis/studies adds one by `register`."
        )
    return _READERS[study]


def findings(study: str, tables: Tables, about: About) -> Findings:
    """Return what a study's tables say; the first answer says which outputs are refuted, and how many loop."""
    reader, _ = registered(study)
    said = reader(tables, about)
    if about.looping:
        first, *others = said.sections
        said = replace(said, sections=(first.ending(f"{in_loops(about.looping)}."), *others))
    if said.refuted:
        said = replace(said, sections=(said.sections[0].beginning(said.refuted), *said.sections[1:]))
    return replace(said, sections=tuple(section.simulated() for section in said.sections)) if about.simulated else said

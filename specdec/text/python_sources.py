"""Python sources as training text, with modules held out by name: the running interpreter's standard library,
`pydoc_data.topics`, and the installed packages that the recipe names. A file that repeats a held-out module (its tests,
vendored copies, long quotations) is dropped from training, and the manifest says which and why.
"""

import hashlib
import importlib.metadata
import json
import platform
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from specdec.config import AtLeastOne, Probability, typed
from specdec.progress import stage
from specdec.text.sources import Part

STDLIB, TOPICS = "stdlib", "pydoc_data"
HOLDOUT_FILE = Path(__file__).resolve().parent.parent / "pocket" / "holdout.json"
GENERATED = re.compile(r"auto-?(?:matically )?generated|generated (?:by|from)\b|do not edit|@generated", re.IGNORECASE)
PackageName = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")]


@typed
class PythonCorpusConfig:
    """The keys of Python sources: which are read, and what is dropped. Sizes in bytes, shares in [0, 1]."""

    packages: dict[PackageName, AtLeastOne]  # import name -> the most bytes that are read of its sources
    vocabulary: Annotated[int, Field(ge=258, le=65536)]  # pieces of the BPE, special token included
    skip_directories: list[str]
    min_file_bytes: AtLeastOne
    max_file_bytes: AtLeastOne
    max_line_characters: AtLeastOne
    max_digit_share: Probability  # of a file's characters: tables of numbers are not code
    shingle_lines: AtLeastOne
    heldout_overlap: Probability  # of a file's shingles, or of a held-out text's: above it, the file is dropped
    same_name_overlap: Probability  # the same for a file that has a held-out module's name
    repeat_overlap: Probability  # of a file's shingles already seen in kept files: above it, it is dropped


@dataclass(frozen=True)
class Document:
    """One text. `name` is a module-relative path (`json/decoder.py`) or a topic's name."""

    source: str  # "stdlib", "pydoc_data" or the package's import name
    name: str
    text: str


@dataclass(frozen=True)
class PythonCorpus:
    """Training documents in a fixed order, held-out documents, and the manifest that `corpus.json` keeps."""

    training: list[Document]
    heldout: list[Document]
    manifest: dict[str, Any]

    def texts(self, part: Part) -> Iterator[str]:
        return (document.text for document in (self.training if part == "train" else self.heldout))


def held_out_modules() -> list[str]:
    """Return the dotted names of the standard-library modules that no training text may repeat."""
    return list(json.loads(HOLDOUT_FILE.read_text(encoding="utf-8"))["modules"])


def held_out_topics() -> list[str]:
    """Return the names of the held-out topics of `pydoc_data.topics`."""
    return list(json.loads(HOLDOUT_FILE.read_text(encoding="utf-8"))["topics"])


def module_name(path: str) -> str:
    """Return the module of a path: `http/cookies.py` -> `http.cookies`; `zipfile/__init__.py` -> `zipfile`."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_held_out(document: Document, modules: Iterable[str]) -> bool:
    """Tell if a standard-library file is a held-out module or lies inside a held-out package."""
    name = module_name(document.name)
    return document.source == STDLIB and any(name == m or name.startswith(m + ".") for m in modules)


def read_python_files(root: Path, source: str, skip_directories: Iterable[str]) -> Iterator[Document]:
    """Yield the `.py` files under `root` in the order of their paths; files that are not UTF-8 are left out."""
    skip = set(skip_directories)
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if skip.isdisjoint(relative.parts[:-1]) and path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            yield Document(source, relative.as_posix(), text)


def shingles(text: str, lines: int) -> set[int]:
    """Return the hash of every run of `lines` consecutive non-empty lines; indentation and spacing do not count."""
    kept = [" ".join(line.split()) for line in text.splitlines()]
    kept = [line for line in kept if line]
    return {hash(tuple(kept[i : i + lines])) for i in range(max(len(kept) - lines + 1, 0))}


class Keeper:
    """Decides for each file if it is kept. Dropped are files that are no good as training text, that repeat a held-out
    document, by file name or by shared shingles, and that repeat what was kept.
    """

    def __init__(self, heldout: list[Document], modules: list[str], config: PythonCorpusConfig) -> None:
        self.config = config
        self.stems = {module.split(".")[-1]: module for module in modules}
        self.texts = {d.name: shingles(d.text, config.shingle_lines) for d in heldout}
        self.held_out = set[int]().union(*self.texts.values())
        self.digests: set[str] = set()
        self.seen: set[int] = set()
        self.dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by source and reason
        self.repeated: list[dict[str, str]] = []  # files that repeat a held-out document

    def __call__(self, document: Document) -> bool:
        """Return True if a file is kept; remember it, or count why it is not."""
        unsuitable = None if document.source == TOPICS else self._unsuitable(document)
        digest = hashlib.sha256(document.text.encode()).hexdigest()
        own = set() if unsuitable else shingles(document.text, self.config.shingle_lines)
        if unsuitable:
            reason = unsuitable
        elif repeats := self._repeats(document, own):
            reason, name = repeats
            self.repeated.append({"file": f"{document.source}:{document.name}", "reason": reason, "heldout": name})
        elif digest in self.digests:
            reason = "duplicate"
        elif len(own & self.seen) > self.config.repeat_overlap * max(len(own), 1):
            reason = "mostly repeats kept files"
        else:
            self.digests.add(digest)
            self.seen |= own
            return True
        self.dropped[document.source][reason] += 1
        return False

    def _unsuitable(self, document: Document) -> str | None:
        """Return the reason why a file is no good as training text, or None."""
        text, config = document.text, self.config
        size = len(text.encode())
        if size < config.min_file_bytes:
            return "too short"
        if size > config.max_file_bytes:
            return "too long"
        if document.name.endswith(("_pb2.py", "_pb2_grpc.py")) or GENERATED.search(text[:2000]):
            return "generated"
        if max(map(len, text.splitlines())) > config.max_line_characters:
            return "very long lines"
        if sum(map(str.isdigit, text)) > config.max_digit_share * len(text):
            return "table of numbers"
        return None

    def _repeats(self, document: Document, own: set[int]) -> tuple[str, str] | None:
        """Return why a file with these shingles repeats a held-out document, and that one's name, or None."""
        stem = document.name.split("/")[-1].removesuffix(".py")
        tested = stem.removeprefix("test_").removesuffix("_test").removesuffix("_tests")
        if tested != stem and tested in self.stems:
            return "test of a held-out module", self.stems[tested]
        share, which = 0.0, ""  # the largest overlap with a held-out text, as a share of the smaller of the two
        if not own.isdisjoint(self.held_out):
            for name, other in self.texts.items():
                common = len(own & other) / max(min(len(own), len(other)), 1)
                if common > share:
                    share, which = common, name
        if share > self.config.heldout_overlap:
            return "content of a held-out module", which
        named = self.stems.get(module_name(document.name).split(".")[-1])
        if named and share > self.config.same_name_overlap:
            return "held-out module's name and some of its content", named
        return None


def build_corpus(
    config: PythonCorpusConfig,
    stdlib: Path | None = None,
    packages: Path | None = None,
    topics: dict[str, str] | None = None,
) -> PythonCorpus:
    """Read the sources, set held-out documents apart, filter the rest; tests give other folders and topics."""
    modules, topic_names = held_out_modules(), held_out_topics()
    stdlib = stdlib or Path(sysconfig.get_path("stdlib"))
    packages = packages or Path(sysconfig.get_path("purelib"))
    topics = installed_topics() if topics is None else topics
    limits = {name: limit for name, limit in sorted(config.packages.items()) if (packages / name).is_dir()}

    with stage("Read Python sources", told=False) as under_way:
        own = list(read_python_files(stdlib, STDLIB, [*config.skip_directories, "pydoc_data", "site-packages"]))
        texts = [Document(TOPICS, name, text) for name, text in sorted(topics.items())]
        heldout = [d for d in own if is_held_out(d, modules)] + [d for d in texts if d.name in topic_names]

        held = set(map(id, heldout))
        keep = Keeper(heldout, modules, config)
        training = [d for d in [*own, *texts] if id(d) not in held and keep(d)]
        done = sum(len(d.text) for d in [*own, *texts])
        total = done + sum(limits.values())
        for package, limit in limits.items():
            under_way.expected = under_way.elapsed * total / max(done, 1)
            under_way.announce()
            taken = 0
            files = list(read_python_files(packages / package, package, config.skip_directories))
            for document in sorted(files, key=lambda d: hashlib.sha256(d.name.encode()).digest()):
                size = len(document.text.encode())
                if taken + size > limit:
                    keep.dropped[package]["over the package's share"] += 1
                elif keep(document):
                    training.append(document)
                    taken += size
            done += limit
    distributions = importlib.metadata.packages_distributions() if limits else {}  # takes most of a second
    sources: dict[str, Any] = {}
    for name in dict.fromkeys(d.source for d in training):
        kept = [d for d in training if d.source == name]
        sources[name] = {
            **_provenance(name, distributions),
            "files": len(kept),
            "bytes": sum(len(d.text.encode()) for d in kept),
            "sha256": content_hash(kept),
            "dropped": dict(sorted(keep.dropped[name].items())),
        }
    manifest = {
        "python": platform.python_version(),
        "sha256": content_hash([*training, *heldout]),
        "sources": sources,
        "packages_not_installed": sorted(config.packages.keys() - limits),
        "held_out": {
            f"{d.source}:{d.name}": {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            for d in heldout
            for text in [d.text.encode()]
        },
        "dropped_for_the_hold_out": keep.repeated,
    }
    return PythonCorpus(training, heldout, manifest)


def installed_topics() -> dict[str, str]:
    """Return the language reference that `help()` shows, by topic."""
    from pydoc_data.topics import topics

    return dict(topics)


def content_hash(documents: Iterable[Document]) -> str:
    """Return the sha256 over names and texts, in order."""
    digest = hashlib.sha256()
    for document in documents:
        for part in (document.source, document.name, document.text):
            digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()


def _provenance(source: str, distributions: Mapping[str, list[str]]) -> dict[str, str]:
    """Return version and licence of a source, as its distribution states them."""
    if source in (STDLIB, TOPICS):
        return {"version": platform.python_version(), "licence": "PSF-2.0"}
    names = distributions.get(source, [source])
    try:
        about = importlib.metadata.metadata(names[0])
    except importlib.metadata.PackageNotFoundError:
        return {"version": "unknown", "licence": "unknown"}
    classifiers = [c.split(" :: ")[-1] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    # Read by get_all: a missing key is None in the standard library and a KeyError in the backport that replaces it.
    expression, licence = (next(iter(about.get_all(key) or ()), "") for key in ("License-Expression", "License"))
    stated = expression or "; ".join(classifiers) or licence or "unknown"
    return {"version": about["Version"], "licence": stated.strip().splitlines()[0][:80]}

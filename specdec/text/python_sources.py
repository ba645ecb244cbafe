"""Python sources as training text, with modules held out by name. Knows neither torch nor tokenizers.

Text: the running interpreter's standard library, `pydoc_data.topics`, and installed packages named by the
recipe. Whatever repeats a held-out module (its tests, vendored copies, long quotations) is dropped from
training, and the manifest says what and why. Files are named by module-relative paths only.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec.training.models.recipe import CorpusConfig

STDLIB, TOPICS = "stdlib", "pydoc_data"
HOLDOUT_FILE = Path(__file__).resolve().parent.parent / "pocket" / "holdout.json"
GENERATED = re.compile(r"auto-?(?:matically )?generated|generated (?:by|from)\b|do not edit|@generated", re.IGNORECASE)


@dataclass(frozen=True)
class Document:
    """One text. `name` is a module-relative path (`json/decoder.py`) or a topic's name."""

    source: str  # "stdlib", "pydoc_data" or the package's import name
    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Training documents in a fixed order, held-out documents, and the manifest that `corpus.json` keeps."""

    training: list[Document]
    heldout: list[Document]
    manifest: dict[str, Any]


@dataclass
class Drops:
    """Counts of dropped files by source and reason; those dropped because of the hold-out by name."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    heldout: list[dict[str, str]] = field(default_factory=list)

    def add(self, document: Document, reason: str, because_of: str | None = None) -> None:
        self.counts.setdefault(document.source, Counter())[reason] += 1
        if because_of is not None:
            where = f"{document.source}:{document.name}"
            self.heldout.append({"file": where, "reason": reason, "heldout": because_of})


def held_out_modules() -> list[str]:
    """Dotted names of the standard-library modules that no training text may repeat."""
    return list(json.loads(HOLDOUT_FILE.read_text(encoding="utf-8"))["modules"])


def held_out_topics() -> list[str]:
    """Names of the held-out entries of `pydoc_data.topics.topics`."""
    return list(json.loads(HOLDOUT_FILE.read_text(encoding="utf-8"))["topics"])


def module_name(path: str) -> str:
    """`http/cookies.py` -> `http.cookies`; `zipfile/__init__.py` -> `zipfile`."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_held_out(document: Document, modules: Iterable[str]) -> bool:
    """Whether a standard-library file is a held-out module or lies inside a held-out package."""
    name = module_name(document.name)
    return document.source == STDLIB and any(name == m or name.startswith(m + ".") for m in modules)


def read_python_files(root: Path, source: str, skip_directories: Iterable[str]) -> Iterator[Document]:
    """The readable `.py` files under `root`, by path; undecodable files are left out."""
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
    """Hashes of every run of `lines` consecutive non-empty lines, indentation and spacing ignored."""
    kept = [" ".join(line.split()) for line in text.splitlines()]
    kept = [line for line in kept if line]
    return {hash(tuple(kept[i : i + lines])) for i in range(max(len(kept) - lines + 1, 0))}


def unsuitable(document: Document, config: CorpusConfig) -> str | None:
    """Why a file is no good as training text, or None."""
    text = document.text
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


class HoldoutFilter:
    """Says whether a document repeats a held-out one, by file name and by shared shingles."""

    def __init__(self, heldout: list[Document], modules: list[str], config: CorpusConfig) -> None:
        self.config = config
        self.stems = {module.split(".")[-1]: module for module in modules}
        self.texts = {d.name: shingles(d.text, config.shingle_lines) for d in heldout}
        self.all = set().union(*self.texts.values()) if self.texts else set()

    def overlap(self, own: set[int]) -> tuple[float, str]:
        """The largest share of the document in a held-out text, or of such a text in it; and which one."""
        best, which = 0.0, ""
        if not own.isdisjoint(self.all):
            for name, other in self.texts.items():
                common = len(own & other)
                share = max(common / max(len(own), 1), common / max(len(other), 1))
                if share > best:
                    best, which = share, name
        return best, which

    def reason(self, document: Document, own: set[int]) -> tuple[str, str] | None:
        """(reason, held-out name) when the document must be dropped."""
        stem = document.name.split("/")[-1].removesuffix(".py")
        tested = stem.removeprefix("test_").removesuffix("_test").removesuffix("_tests")
        if tested != stem and tested in self.stems:
            return "test of a held-out module", self.stems[tested]
        share, which = self.overlap(own)
        if share > self.config.heldout_overlap:
            return "content of a held-out module", which
        named = self.stems.get(module_name(document.name).split(".")[-1])
        if named and share > self.config.same_name_overlap:
            return "held-out module's name and some of its content", named
        return None


def build_corpus(
    config: CorpusConfig,
    stdlib: Path | None = None,
    packages: Path | None = None,
    topics: dict[str, str] | None = None,
) -> Corpus:
    """Read, hold out, filter. The arguments replace the running interpreter's folders and topics (tests)."""
    modules, topic_names = held_out_modules(), held_out_topics()
    stdlib = stdlib or Path(sysconfig.get_path("stdlib"))
    packages = packages or Path(sysconfig.get_path("purelib"))
    topics = installed_topics() if topics is None else topics

    own = list(read_python_files(stdlib, STDLIB, [*config.skip_directories, "pydoc_data", "site-packages"]))
    texts = [Document(TOPICS, name, text) for name, text in sorted(topics.items())]
    heldout = [d for d in own if is_held_out(d, modules)] + [d for d in texts if d.name in topic_names]

    held = set(map(id, heldout))
    drops = Drops()
    keep = Keeper(HoldoutFilter(heldout, modules, config), drops)
    training = [d for d in [*own, *texts] if id(d) not in held and keep(d)]
    missing = []
    for package, limit in sorted(config.packages.items()):
        if not (packages / package).is_dir():
            missing.append(package)
            continue
        taken = 0
        files = list(read_python_files(packages / package, package, config.skip_directories))
        for document in sorted(files, key=lambda d: hashlib.sha256(d.name.encode()).digest()):
            size = len(document.text.encode())
            if taken + size > limit:
                drops.add(document, "over the package's share")
            elif keep(document):
                training.append(document)
                taken += size
    return Corpus(training, heldout, manifest(training, heldout, drops, missing))


class Keeper:
    """Decides file by file; remembers what it kept, to drop duplicates and repetitions."""

    def __init__(self, holdout: HoldoutFilter, drops: Drops) -> None:
        self.holdout, self.drops, self.config = holdout, drops, holdout.config
        self.digests: set[str] = set()
        self.seen: set[int] = set()

    def __call__(self, document: Document) -> bool:
        reason = None if document.source == TOPICS else unsuitable(document, self.config)
        if reason:
            self.drops.add(document, reason)
            return False
        digest = hashlib.sha256(document.text.encode()).hexdigest()
        own = shingles(document.text, self.config.shingle_lines)
        held = self.holdout.reason(document, own)
        if held:
            self.drops.add(document, *held)
            return False
        if digest in self.digests:
            self.drops.add(document, "duplicate")
            return False
        if len(own & self.seen) > self.config.repeat_overlap * max(len(own), 1):
            self.drops.add(document, "mostly repeats kept files")
            return False
        self.digests.add(digest)
        self.seen |= own
        return True


def installed_topics() -> dict[str, str]:
    """The language reference that `help()` shows."""
    from pydoc_data.topics import topics

    return dict(topics)


def content_hash(documents: Iterable[Document]) -> str:
    """sha256 over names and texts, in order."""
    digest = hashlib.sha256()
    for document in documents:
        for part in (document.source, document.name, document.text):
            digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()


def manifest(training: list[Document], heldout: list[Document], drops: Drops, missing: list[str]) -> dict[str, Any]:
    """What `corpus.json` says: hashes, sizes, versions and licences per source, and what was dropped."""
    sources: dict[str, Any] = {}
    for name in dict.fromkeys(d.source for d in training):
        kept = [d for d in training if d.source == name]
        sources[name] = {
            **provenance(name),
            "files": len(kept),
            "bytes": sum(len(d.text.encode()) for d in kept),
            "sha256": content_hash(kept),
            "dropped": dict(sorted(drops.counts.get(name, Counter()).items())),
        }
    return {
        "python": platform.python_version(),
        "sha256": content_hash([*training, *heldout]),
        "sources": sources,
        "packages_not_installed": missing,
        "held_out": {
            f"{d.source}:{d.name}": {
                "bytes": len(d.text.encode()),
                "sha256": hashlib.sha256(d.text.encode()).hexdigest(),
            }
            for d in heldout
        },
        "dropped_for_the_hold_out": drops.heldout,
    }


def provenance(source: str) -> dict[str, str]:
    """Version and licence of a source, as its distribution states them."""
    if source in (STDLIB, TOPICS):
        return {"version": platform.python_version(), "licence": "PSF-2.0"}
    names = importlib.metadata.packages_distributions().get(source, [source])
    try:
        about = importlib.metadata.metadata(names[0])
    except importlib.metadata.PackageNotFoundError:
        return {"version": "unknown", "licence": "unknown"}
    classifiers = [c.split(" :: ")[-1] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    # By get_all: what is not there is None in the standard library and a KeyError in the backport that replaces it.
    expression, licence = (next(iter(about.get_all(key) or ()), "") for key in ("License-Expression", "License"))
    stated = expression or "; ".join(classifiers) or licence or "unknown"
    return {"version": about["Version"], "licence": stated.strip().splitlines()[0][:80]}

"""`python -m specdec.new drafter NAME`: write a package of your own that adds a drafter to specdec, or another part, a
study or a metric.

The package has the class with its typed configuration, its YAML, the entry point that brings both, and the conformance
suite as its test. Imports stay light, so that a bad name is answered at once.
"""

import argparse
import keyword
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from specdec.commands.failures import OneSentence, told_faults
from specdec.config import config_dir
from specdec.errors import UsageError

SKELETONS = Path(__file__).resolve().parent / "skeletons"


class NewPart(NamedTuple):
    """A kind of part that a package can add."""

    group: str  # of entry points, after "specdec."
    use: str  # overrides with which a part is run, with {} for its name
    filled: str  # the function to fill in
    noun: str  # one part, in words
    record: str = ""  # the file of a run's folder that has what it gives; "" for parts that a conformance suite tries
    values: str | None = ""  # the folder of `conf/` with its values; "" for that of its kind, None where it has none


FAMILIES = {
    "drafter": NewPart("drafters", "+drafter={}", "propose", "drafter"),
    "verifier": NewPart("verifiers", "+drafter=small_model verifier={} sampling=temperature", "chance", "verifier"),
    "structure": NewPart("structures", "+drafter=small_model structure={}", "parents", "structure"),
    "target": NewPart("targets", "+drafter=ngram target={} prompts=tokens", "next_logits", "target"),
    "prompts": NewPart("prompts", "+drafter=ngram prompts={}", "texts", "prompt set"),
    "study": NewPart("studies", "+experiment={}", "arms", "study", "study.json", "experiment"),
    "metric": NewPart("metrics", "+drafter=ngram", "{}", "metric", "summary.json", None),
}


def parser() -> argparse.ArgumentParser:
    made = OneSentence(
        prog="python -m specdec.new",
        description="Writes a package that adds a drafter, a verifier, a structure, a target, a prompt set, a "
        "study or a metric to specdec, to be filled in. Other engines: see notebooks/guide/extending.md.",
    )
    made.add_argument("kind", choices=list(FAMILIES), help="the family of the new part")
    made.add_argument("name", metavar="NAME", help="its name, as it will be chosen: +drafter=NAME, verifier=NAME, ...")
    words = "new folder of the package (specdec-NAME in this folder)"
    made.add_argument("--folder", type=Path, metavar="FOLDER", help=words)
    return made


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the package of a kind, a key of `FAMILIES`, to a new folder; return its files. Raises UsageError: a name
    that is no Python name in small letters, or that specdec has; a folder that is there.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise UsageError(f"Bad name {name!r}: it becomes a Python module, so use small letters, digits and single _.")
    part, package = FAMILIES[kind], f"specdec_{name}"
    values_folder = kind if part.values == "" else part.values
    if values_folder and (Path(config_dir()) / values_folder / f"{name}.yaml").is_file():
        raise UsageError(f"Bad name {name!r}: specdec has a {part.noun} of this name; choose another.")
    if folder.exists():
        raise UsageError(f"Folder {folder} exists: remove it, or give another with --folder.")
    use = part.use.format(name)
    values = {
        "kind": kind,
        "noun": part.noun,
        "group": part.group,
        "name": name,
        "cls": "".join(word.capitalize() for word in name.split("_")),
        "package": package,
        "distribution": f"specdec-{name.replace('_', '-')}",
        "use": f"python -m specdec.run {use}",
        "check": "" if part.record else f"\npython -m specdec.certify {use}",
        "overrides": use,
        "record": part.record,
        "prefix": f"own/{name}" if kind == "metric" else f"{name}/",
    }
    files = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"{package}/__init__.py": "init.py.txt",
        f"{package}/{name}.py": f"{kind}.py.txt",
        f"tests/test_{name}.py": "command_test.py.txt" if part.record else "test.py.txt",
    }
    if values_folder:
        files[f"{package}/conf/{values_folder}/{name}.yaml"] = f"{kind}.yaml.txt"
    for path, skeleton in files.items():
        text = Template((SKELETONS / skeleton).read_text(encoding="utf-8")).substitute(values)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in files]


@told_faults()
def main(arguments: Sequence[str] | None = None) -> None:
    """Write a package, and say what comes next: the console entry point. See `write_package` for what is refused."""
    options = parser().parse_args(arguments)
    folder = options.folder or Path(f"specdec-{options.name.replace('_', '-')}")
    for path in write_package(options.kind, options.name, folder):
        print(path)
    part = FAMILIES[options.kind]
    print(
        f"\nFill in `{part.filled.format(options.name)}` in {folder}/specdec_{options.name}/{options.name}.py, then:\n"
        f"  cd {folder} && pip install -e '.[test]' && python -m pytest\n"
        f"  python -m specdec.run {part.use.format(options.name)}"
    )


if __name__ == "__main__":
    main()

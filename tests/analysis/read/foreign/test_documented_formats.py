"""Every example of the page on foreign formats is read as the page says, and told from its content."""

import gzip
import re
import shlex
from pathlib import Path

import pytest

from specdec import report
from specdec.analysis.read.facts import LOAD
from specdec.analysis.read.imported import ImportChoices
from specdec.analysis.read.importers import IMPORTERS, LOAD_FORMATS, kind_of

PAGE = Path(__file__).resolve().parents[4] / "notebooks" / "guide" / "foreign_formats.md"
SECTION = re.compile(
    r"^## (?P<title>.+?)\n.*?```\w+\n(?P<text>.*?)```\n\n`--import (?P<options>.+?)`\n\n(?P<read>(?:- [^\n]+\n)+)",
    re.MULTILINE | re.DOTALL,
)
READ = re.compile(
    r"- `(?P<name>.+?)`: (?P<texts>\d+) texts?, (?P<rounds>\d+) rounds, (?P<tokens>[\d.]+) tokens per round"
)


def examples():
    return [pytest.param(found, id=found["title"]) for found in SECTION.finditer(PAGE.read_text(encoding="utf-8"))]


def test_the_page_has_every_kind():
    sections = {example.values[0]["title"].partition(":")[0] for example in examples()}
    assert sections == {*IMPORTERS} - {"auto"} and {*report.KINDS} == {*IMPORTERS, *LOAD_FORMATS, LOAD}
    assert all(f"`{kind}`" in PAGE.read_text(encoding="utf-8") for kind in report.KINDS)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("example", examples())
def test_an_example_is_read_as_the_page_says(tmp_path, example, packed):
    path = tmp_path / "example.jsonl"
    content = b"\xef\xbb\xbf" + example["text"].encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    options = report.parser().parse_args(["--import", *shlex.split(example["options"])])
    ((kind, _),) = options.imports
    assert kind_of(path) == kind
    said, read = [match.groups() for match in READ.finditer(example["read"])], []
    assert len(said) == example["read"].count("\n")
    for source in IMPORTERS[kind](path, ImportChoices(options.gamma)):
        tokens, rounds = source.texts["tokens"].sum(), source.texts["rounds"].sum()
        read.append((source.name, str(len(source.texts)), f"{rounds:.0f}", f"{tokens / rounds:.3f}"))
        assert not source.texts.duplicated(["prompt", "repeat"]).any()
        assert source.totals_only or len(source.rounds) == rounds
    assert read == said

"""Documents hold together: links and anchors lead somewhere, named files exist, and the two front pages stay short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "notebooks").glob("*.md")),
    *sorted((ROOT / "notebooks" / "guide").glob("*.md")),
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "specdec").rglob("*.md")),
]
GUIDE = sorted((ROOT / "notebooks" / "guide").glob("*.md"))
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
FILE = re.compile(r"(?:specdec|analysis|conf|tests|notebooks)/[\w./-]*\w")

each = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def prose(path: Path) -> str:
    """Return a document without its blocks of code."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document; the second of a name gets `-1`."""
    names: set[str] = set()
    for heading in re.findall(r"^#+ (.+?) *$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = sum(1 for other in names if re.fullmatch(re.escape(name) + r"(-\d+)?", other))
        names.add(f"{name}-{number}" if number else name)
    return names


def links(path: Path) -> list[tuple[str, str]]:
    """Return target and anchor of every relative link of a document."""
    targets = (match for match in LINK.findall(prose(path)) if not re.match(r"\w+:", match))
    return [(target.partition("#")[0], target.partition("#")[2]) for target in targets]


@each
def test_every_link_leads_somewhere(path):
    dead = []
    for target, anchor in links(path):
        place = (path.parent / target).resolve() if target else path
        if not place.exists() or (anchor and (place.suffix != ".md" or anchor not in anchors(place))):
            dead.append(f"{target}#{anchor}" if anchor else target)
    assert dead == []


@each
def test_every_named_file_of_the_repository_exists(path):
    """Spans of code that are paths: `specdec/decode.py`, `tests/contracts/`; capitals and dots stand for a name."""
    named = {span.rstrip("/") for span in re.findall(r"`([^`\s]+)`", prose(path)) if FILE.fullmatch(span.rstrip("/"))}
    paths = {name for name in named if not re.search(r"NAME|AREA|\.\.", name)}
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []


def test_the_front_pages_are_short():
    readme, index = (
        (ROOT / name).read_text(encoding="utf-8").splitlines() for name in ("README.md", "notebooks/README.md")
    )
    assert len(readme) <= 150 and len(index) <= 60


def test_the_map_names_every_folder():
    drawn = re.search(r"## Map\n\n```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    named: dict[str, set[str]] = {}
    for line in drawn[1].splitlines():
        folders = re.findall(r"(\w+)/(?= |$)", line)
        if not line.startswith(" "):
            room = folders[0]
        named.setdefault(room, set()).update(folders)
    for room in ("specdec", "analysis"):
        files = [path.relative_to(ROOT / room).parts for path in (ROOT / room).rglob("*.*")]
        made = {parts[0] for parts in files if len(parts) > 1 and "__pycache__" not in parts}
        assert named[room] - {room} == made - {"analysis", "conf"}  # links that are there in an installed package


def test_the_index_leads_to_every_page_of_the_guide():
    linked = {target for target, _ in links(ROOT / "notebooks" / "README.md")}
    assert {f"guide/{path.name}" for path in GUIDE} <= linked


@pytest.mark.parametrize("path", GUIDE, ids=lambda path: path.stem)
def test_a_page_begins_with_what_it_answers(path):
    """One heading of the first level, and a paragraph below it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ") and not lines[1] and re.match(r"[A-Z]", lines[2])
    assert len(re.findall(r"^# ", prose(path), re.MULTILINE)) == 1


def test_every_fault_of_the_page_on_security_is_injected_by_tests_that_exist():
    page = (ROOT / "notebooks" / "guide" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| .+ \| (`test_.+`) \|$", page, re.MULTILINE)
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) > 20
    assert [name for row in rows for name in re.findall(r"\w+", row) if f"def {name}(" not in tests] == []

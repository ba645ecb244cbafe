"""The architecture as a test: no import points upwards, none is hidden from the interpreter, and there is no circle."""

import ast
import graphlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specdec.analysis.read.runs import WRITTEN_BY

ROOT = Path(__file__).resolve().parents[1]

# From the ground up. A part may import parts on its own line or on lines above it, circles apart.
LAYERS = (
    ("specdec", "errors", "progress", "signals", "ranks", "replaced"),
    ("text.writing",),
    ("config", "hub", "plugins"),
    ("registry",),
    ("theory", "disturbance"),
    ("records", "sampling", "clock", "cost_model"),
    ("tracking.store",),
    ("tracking",),
    ("text.lines", "text.lengths"),  # what files of others say: replay reads them above `analysis`, the import within
    ("serving",),
    ("analysis",),
    ("environment", "terminal"),
    ("structures", "verifiers", "models"),
    ("compiled",),
    ("text",),
    ("targets",),
    ("prompts", "ngrams"),
    ("tree_building", "heads", "eagle", "published"),
    ("drafters",),
    ("observe",),
    ("decode", "timing", "replay"),
    ("batching", "peers"),
    ("plan",),
    ("folder",),
    ("session",),
    ("advice", "studies", "training", "certification"),
    ("testing",),
    ("commands",),
    ("run", "train", "advise", "certify", "gate", "report", "explain", "convert", "sync", "new", "__main__")
    + ("serving.llama_cpp_server", "training.pocket.publish"),
)
# The parts of the package that `analysis` may import: it reads files, and has to work without torch.
ANALYSIS_SEES = ("errors", "config", "registry", "theory", "tracking.store", "text.lines", "text.lengths", "analysis")


def _modules() -> dict[str, Path]:
    found = {}
    for base, prefix in ((ROOT / "specdec", "specdec"), (ROOT / "analysis", "specdec.analysis")):
        for path in base.rglob("*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join((prefix, *(part for part in parts if part != "__init__")))] = path
    return found


MODULES = _modules()


def _part(module: str) -> str:
    """The part of the layers that a module belongs to: the longest name that it begins with."""
    name = module.removeprefix("specdec.")
    parts = [part for line in LAYERS for part in line if name == part or name.startswith(part + ".")]
    return max(parts, key=len, default=name)


def _level(module: str) -> int:
    part = _part(module)
    return next(level for level, line in enumerate(LAYERS) if part in line)


@dataclass(frozen=True)
class Facts:
    """Facts about a module that tests ask for. Its tree, hundreds of times as large, is not kept."""

    text: str
    imports: set[str]
    public_classes: list[str]
    too_large: list[str]
    fragments: list[str]


LINES, PARAMETERS = 80, 7
FRAGMENT = re.compile(r"(Of|What|Whether|Such|Those|Which|How|Where|As|Like|At most so many|All that)\b")


@cache
def _facts(module: str) -> Facts:
    """Read a module once for all tests; its imports are those of this project, at its top or within functions."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    facts = Facts(MODULES[module].read_text(encoding="utf-8"), set(), [], [], [])
    tree = ast.parse(facts.text)
    facts.public_classes.extend(
        node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # grows while it is read: statements alone are asked for, and expressions are most of a tree
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            nodes += getattr(node, part, ())
        if isinstance(node, ast.Import):
            facts.imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])
            source = base if node.level else str(node.module)
            facts.imports.update(
                f"{source}.{alias.name}" if f"{source}.{alias.name}" in MODULES else source for alias in node.names
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if FRAGMENT.match(ast.get_docstring(node) or ""):
                facts.fragments.append(f"{module}:{node.lineno} {node.name}")
            if not isinstance(node, ast.ClassDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                parameters = sum(argument.arg not in ("self", "cls") for argument in arguments)
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                # A kernel for a GPU is given addresses and sizes one by one.
                kernel = any(ast.unparse(each) == "triton.jit" for each in node.decorator_list)
                if lines > LINES or parameters > PARAMETERS and not kernel:
                    facts.too_large.append(f"{module}.{node.name}: {lines} lines, {parameters} parameters")
    facts.imports.intersection_update(MODULES.keys() - {module})
    return facts


def test_every_module_has_a_layer():
    known = {part for line in LAYERS for part in line}
    assert not sorted(module for module in MODULES if _part(module) not in known)


def test_imports_point_down():
    graph = {module: _facts(module).imports for module in MODULES}
    upwards = [
        f"{module} imports {other}, which stands above it"
        for module, others in graph.items()
        for other in sorted(others)
        if _level(other) > _level(module)
    ]
    assert not upwards
    unseen = [
        f"{module} imports {other}, which analysis does not see"
        for module, others in graph.items()
        for other in sorted(others - {"specdec"})
        if module.startswith("specdec.analysis") and _part(other) not in ANALYSIS_SEES
    ]
    assert not unseen


# The drawing of the README: rooms on the way of a value, and the rooms behind each, of which it knows nothing.
BEHIND = {
    "plan": {"session", "folder", "studies", "advice", "certification"},
    "folder": {"session", "studies", "advice", "certification"},
    "tracking": {"plan", "session", "folder", "studies", "advice", "certification"},
    "analysis": {"plan", "session", "folder", "studies", "advice", "certification", "tracking"},
}
SEES_THE_CONFIGURATION = {"specdec.config", "specdec.plan.plan", "specdec.commands.cli", "specdec.run"}
WRITES_MLFLOW = {"specdec.tracking.store", "specdec.tracking.upload", "specdec.analysis.read.find_runs"}


def test_the_drawing_of_the_readme_is_true():
    """Nobody behind a plan sees a configuration; a run folder stands between decoding and analysis."""
    drawing = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "configuration -> plan -> session" in drawing and "> run folder -> findings <" in drawing
    backwards = [
        f"{module} imports {other}"
        for module in MODULES
        for room, behind in BEHIND.items()
        if module.startswith(f"specdec.{room}.")
        for other in sorted(_facts(module).imports)
        if other.split(".")[1] in behind and other != "specdec.tracking.store"
    ]
    assert not backwards
    texts = {module: _facts(module).text for module in MODULES}
    assert {module for module, text in texts.items() if re.search(r"\bRunConfig\b", text)} == SEES_THE_CONFIGURATION
    assert {
        module for module, text in texts.items() if re.search(r"^ *(from|import) mlflow\b", text, re.M)
    } == WRITES_MLFLOW
    # Every command that opens a model would take a second and a half more.
    compiles = {module for module, text in texts.items() if re.search(r"^(from|import) torch\._inductor\b", text, re.M)}
    assert compiles == {f"specdec.compiled.{name}" for name in ("attention_kernel", "own_template", "products_kernel")}
    # A run's files are opened in one room of `analysis/`, and those that it goes on from in one of `specdec/`.
    tables = re.compile(r"\bread_parquet\(|\bpq\.(read_table|ParquetFile)\(")
    named = re.compile(rf"((?<!\.)read_json|read_text|json\.loads?|\bopen)\(.*({'|'.join(map(re.escape, WRITTEN_BY))})")
    readers = {module.rpartition(".")[0] for module, text in texts.items() if tables.search(text) or named.search(text)}
    readers = {room for room in readers if not room.startswith("specdec.training")}  # a training has its own summary
    assert readers == {"specdec.analysis.read", "specdec.folder"}


def test_no_import_is_hidden_behind_type_checking():
    assert not [module for module in MODULES if "TYPE_CHECKING" in _facts(module).text]


def test_no_circles_between_modules():
    """A circle raises CycleError, which names it."""
    graphlib.TopologicalSorter({module: _facts(module).imports for module in MODULES}).prepare()


def test_no_circles_between_rooms():
    """A room is a folder of `specdec/` or `analysis/`: two that need each other are cut in the wrong place."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        room = _room(module)
        graph.setdefault(room, set()).update(_room(other) for other in _facts(module).imports)
    graphlib.TopologicalSorter({room: others - {room} for room, others in graph.items()}).prepare()


# Files that carry one name on purpose: packages; what every family has in its `base`; and, in `specdec/studies` and
# `analysis/studies`, the two halves of a study.
FAMILIES = ("drafters", "foreign", "peers", "prompts", "structures", "studies", "targets", "verifiers")


def _may_share(paths: list[Path]) -> bool:
    """Return whether files of one name belong to several families (registry names, bases), or to one study."""
    parts = [path.relative_to(ROOT).parts for path in paths]
    families = [part[1] if part[0] == "specdec" else "foreign" if part[-2] == "foreign" else "" for part in parts]
    if all(part[-2] == "studies" for part in parts):
        return True
    return len(set(families)) == len(families) and set(families) <= set(FAMILIES)


def test_no_two_files_share_a_name():
    named: dict[str, list[Path]] = {}
    for path in MODULES.values():
        if path.name != "__init__.py":
            named.setdefault(path.name, []).append(path)
    shared = {name: [str(path.relative_to(ROOT)) for path in paths] for name, paths in named.items() if len(paths) > 1}
    assert not {name: paths for name, paths in shared.items() if not _may_share(named[name])}


def test_no_two_public_classes_share_a_name():
    named: dict[str, list[str]] = {}
    for module in MODULES:
        for name in _facts(module).public_classes:
            named.setdefault(name, []).append(module)
    assert not {name: modules for name, modules in named.items() if len(modules) > 1}


def test_functions_are_short_and_take_few_parameters():
    assert not [fault for module in MODULES for fault in _facts(module).too_large]


def test_a_docstring_names_the_thing_first():
    """Each begins with a verb or a noun, never with a fragment."""
    assert not [fault for module in MODULES for fault in _facts(module).fragments]


def _room(module: str) -> str:
    names = module.removeprefix("specdec.").split(".")
    return ".".join(names[:2]) if names[0] == "analysis" else _part(module)

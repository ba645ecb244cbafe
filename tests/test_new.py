"""The written package: it is found once it is installed, and passes the conformance suite after one function is filled
in.
"""

import importlib
import sys
from unittest import SkipTest

import pytest

from specdec import new, plugins
from specdec.commands.plain import told_faults
from specdec.drafters import drafters
from specdec.experiment.composed import composed_parts
from specdec.testing import drafter_cases, verifier_cases
from specdec.verifiers import verifiers

FILLED = """        seen = [place for place in range(len(text) - 1) if text[place] == text[-1]]
        return list(text[seen[-1] + 1 :][:most]) if seen else []
"""


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """`installed(kind, name)` writes a package and installs it, as pip does; gives the file of its class."""

    def install(kind, name, change=lambda text: text):
        folder = tmp_path / name
        new.write_package(kind, name, folder)
        file = folder / f"specdec_{name}" / f"{name}.py"
        file.write_text(change(file.read_text()))
        told = folder / f"specdec_{name}-0.1.0.dist-info"
        told.mkdir()
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: specdec-{name}\nVersion: 0.1.0\n")
        lines = (folder / "pyproject.toml").read_text().splitlines()
        group = next(line for line in lines if line.startswith("[project.entry-points"))
        (told / "entry_points.txt").write_text(f"[{group.split(chr(34))[1]}]\n{name} = specdec_{name}.{name}\n")
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        for family in (drafters, verifiers):
            monkeypatch.setattr(family, "_classes", dict(family._classes))
            monkeypatch.setattr(family, "_loaded", False)
        return file

    yield install
    for module in [module for module in sys.modules if module.startswith("specdec_")]:
        del sys.modules[module]


def failures(cases):
    found = {}
    for case in cases:
        try:
            case.run()
        except SkipTest:
            continue
        except AssertionError as error:
            found[case.name] = str(error)
    return found


def test_a_drafter_passes_after_one_function_is_filled_in(installed):
    installed("drafter", "echo_back", lambda text: text.replace("        return []\n", FILLED))
    assert composed_parts("echo_back")["drafter"] == {"name": "echo_back"}, "its YAML is on the search path"
    assert plugins.is_foreign(drafters.get("echo_back")) and not plugins.is_foreign(drafters.get("ngram"))
    assert not failures(drafter_cases("echo_back"))


def test_until_then_it_is_told_that_nothing_is_proposed(installed):
    installed("drafter", "say_nothing")
    assert list(failures(drafter_cases("say_nothing"))) == ["something is proposed"]


def test_a_wrong_rule_fails(installed):
    """As it is written, it is speculative sampling; that this passes is for the suite of rules to say."""
    installed(
        "verifier", "too_kind", lambda text: text.replace("return min(1.0, p / q)", "return min(1.0, 1.2 * p / q)")
    )
    assert list(failures(verifier_cases("too_kind"))) == ["chain: exact law of rounds and texts"]


def test_the_code_of_a_plugin_is_told_by_its_hash(installed):
    file = installed("drafter", "hashed_one")
    before = plugins.source_hash(drafters.get("hashed_one"))
    assert len(before) == 64
    plugins.code_hash.cache_clear()
    file.write_text(file.read_text() + "\n")
    assert plugins.source_hash(drafters.get("hashed_one")) != before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["drafter", "ngram"], "Bad name 'ngram': specdec has a drafter of this name"),
        (["drafter", "My-Drafter"], "Bad name 'My-Drafter': it becomes a Python module"),
        (["drafter", "class"], "Bad name 'class'"),
        (["structure", "mine"], "invalid choice: 'structure'"),
        (["drafter"], "required: NAME"),
        (["drafter", "mine", "--folder", "."], "Folder . exists: remove it"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(capsys, arguments, says):
    with pytest.raises(SystemExit) as ended, told_faults():
        new.new(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and says in error and error.count("\n") == 1


def test_the_command_says_what_comes_next(capsys, tmp_path):
    new.new(["drafter", "a_new_one", "--folder", str(tmp_path / "here")])
    output = capsys.readouterr().out
    assert "Fill in `propose`" in output and "+drafter=a_new_one" in output
    assert (tmp_path / "here" / "specdec_a_new_one" / "conf" / "drafter" / "a_new_one.yaml").is_file()


def test_every_skeleton_is_used(tmp_path):
    for kind in new.FAMILIES:
        for path in new.write_package(kind, "some_part", tmp_path / kind):
            assert "$" not in path.read_text(), path
    kept = {path.name for path in new.SKELETONS.iterdir() if path.suffix == ".txt"}
    assert kept == {
        *(f"{kind}.{ending}.txt" for kind in new.FAMILIES for ending in ("py", "yaml")),
        *("pyproject.toml.txt", "README.md.txt", "init.py.txt", "test.py.txt"),
    }

"""The written package: it is found once it is installed, and passes the conformance suite after one function is filled
in.
"""

import importlib
import json
import sys
from functools import partial

import pytest
from fixtures.suite_outcomes import failures

from specdec import new, plugins, run
from specdec.analysis import own_metrics
from specdec.drafters import drafters
from specdec.plan.compositions import composed_parts
from specdec.prompts import prompts
from specdec.structures import structures
from specdec.studies import studies
from specdec.targets import targets
from specdec.testing import drafter_cases, prompts_cases, structure_cases, target_cases, verifier_cases
from specdec.verifiers import verifiers

FAMILIES = (drafters, verifiers, structures, targets, prompts, studies)
PARTS = {  # kind: cases, what stands in the one function, what is filled in, the case that fails until then
    "drafter": (
        drafter_cases,
        "        return []\n",
        "        seen = [place for place in range(len(text) - 1) if text[place] == text[-1]]\n"
        "        return list(text[seen[-1] + 1 :][:most]) if seen else []\n",
        "something is proposed",
    ),
    "structure": (
        structure_cases,
        "        return []\n",
        "        return [-1, -1, *(2 * level for level in range(depth - 1) for _ in range(2))] if depth else []\n",
        "something is asked for",
    ),
    "target": (
        target_cases,
        "        return torch.zeros(self.vocab_size)\n",
        "        return torch.arange(self.vocab_size) * float(sum(tokens) % 7) / len(tokens)\n",
        "the law follows the text",
    ),
    "prompts": (
        prompts_cases,
        "        return []\n",
        '        return ["one text", "another", "one text"]\n',
        "something is read",
    ),
}


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
        for family in FAMILIES:
            family.names()  # fills it, of what is there without the package
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        for family in FAMILIES:
            monkeypatch.setattr(family, "_classes", dict(family._classes))
            monkeypatch.setattr(family, "_loaded", False)
        return file

    yield install
    for module in [module for module in sys.modules if module.startswith("specdec_")]:
        del sys.modules[module]


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_passes_after_one_function_is_filled_in(installed, kind):
    cases, empty, filled, told = PARTS[kind]
    installed(kind, f"empty_{kind}")
    assert failures(case for case in cases(f"empty_{kind}") if "greedy" not in case.name) == [told]
    installed(kind, f"full_{kind}", lambda text: text.replace(empty, filled))
    full = cases(f"full_{kind}")
    assert len(full) >= 3 and not failures(full)
    if kind == "drafter":
        assert composed_parts("full_drafter")["drafter"] == {"name": "full_drafter"}, "its YAML is on the search path"
        assert plugins.is_foreign(drafters.get("full_drafter")) and not plugins.is_foreign(drafters.get("ngram"))


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "told"),
    [
        ("structure", "return CLASS(gamma)", "return CLASS(gamma + 1)", "every depth below is there"),
        ("structure", "return CLASS(gamma)", "return CLASS(min(gamma, 5))", "every depth below is there"),
        ("target", "[*self._text, *(", "[*self._text[1:], *(", "a draft is verified as it is scored"),
        ("target", "), next_token]", ")]", "the accepted path is kept and the rest is not"),
        ("target", "self._text = list(text.prompt)", "self._text += list(text.prompt)", "a new text begins anew"),
        ("prompts", "(text,)", "(text, '')", "each prompt is text or tokens"),
    ],
)
def test_a_part_that_breaks_its_contract_is_told_how(installed, kind, right, wrong, told):
    cases, empty, filled, _ = PARTS[kind]
    right, wrong = (each.replace("CLASS", "WrongOne") for each in (right, wrong))
    installed(kind, "wrong_one", lambda text: text.replace(empty, filled).replace(right, wrong))
    assert told in failures(cases("wrong_one"))


OWN = [
    *(partial(structure_cases, name) for name in ("chain", "rows", "tree", "expansion", "dynamic")),
    partial(target_cases, "table"),
    partial(prompts_cases, "tokens"),
]


@pytest.mark.parametrize("cases", OWN, ids=lambda cases: str(cases.args[0]))
def test_own_parts_pass(cases):
    assert not failures(cases())


@pytest.mark.slow
def test_a_wrong_rule_fails(installed):
    """As it is written, it is speculative sampling; that this passes, and greedy texts, are for the suite of rules."""
    installed(
        "verifier", "too_kind", lambda text: text.replace("return min(1.0, p / q)", "return min(1.0, 1.2 * p / q)")
    )
    (chain,) = [case for case in verifier_cases("too_kind") if case.name == "chain: exact law of rounds and texts"]
    assert failures([chain]) == [chain.name]


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
        (["peer", "mine"], "invalid choice: 'peer'"),
        (["prompts", "tokens"], "Bad name 'tokens': specdec has a prompt set of this name"),
        (["drafter"], "required: NAME"),
        (["drafter", "mine", "--folder", "."], "Folder . exists: remove it"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(capsys, arguments, says):
    with pytest.raises(SystemExit) as ended:
        new.main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and says in error and error.count("\n") == 1


def test_the_command_says_what_comes_next(capsys, tmp_path):
    new.main(["drafter", "a_new_one", "--folder", str(tmp_path / "here")])
    output = capsys.readouterr().out
    assert "Fill in `propose`" in output and "+drafter=a_new_one" in output
    assert (tmp_path / "here" / "specdec_a_new_one" / "conf" / "drafter" / "a_new_one.yaml").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "empty", "filled", "use", "record", "expected", "until_then"),
    [
        (
            *("study", "        return []\n"),
            '        chains = {w: {"name": "chain", "gamma": w} for w in (1, 2)}\n'
            '        return [Strategy({"w": w}, bench.values.drafter, chain) for w, chain in chains.items()]\n',
            *("+experiment=NAME", "study.json", {"NAME/tokens_per_call.1", "NAME/tokens_per_call.2"}),
            "specdec: Study 'empty_one' compares nothing yet: fill in `arms`.",
        ),
        (
            *("metric", '    raise NotImplementedError("nothing is filled in yet")\n'),
            '    return run.rounds()["context"].max()\n',
            *("+drafter=ngram", "summary.json", {"own/NAME"}),
            "own/empty_one is left out, its function or import raised NotImplementedError: nothing is filled in yet.",
        ),
    ],
)
@pytest.mark.usefixtures("undrawn_pictures")
def test_a_study_and_a_metric_give_values_after_one_function_is_filled_in(
    installed, in_process, tmp_path, monkeypatch, kind, empty, filled, use, record, expected, until_then
):
    monkeypatch.setattr(own_metrics, "_METRICS", {})
    tiny = "+debug=tiny measurement.gammas=[] measurement.bootstrap=20 tracking.enabled=false"

    def found(name):
        folder = tmp_path / f"of_{name}"
        return in_process(run, use.replace("NAME", name), *tiny.split(), f"hydra.run.dir={folder}"), folder / record

    installed(kind, "empty_one")
    ended, path = found("empty_one")
    said = ended.error if kind == "study" else " ".join(json.loads(path.read_text())["notes"])
    assert until_then in said and ended.code == (2 if kind == "study" else 0)
    installed(kind, "full_one", lambda text: text.replace(empty, filled))
    ended, path = found("full_one")
    assert ended.code == 0, ended.error
    metrics = json.loads(path.read_text())["metrics"]
    assert {name for name in metrics if "full_one" in name and ".ci_" not in name} == {
        each.replace("NAME", "full_one") for each in expected
    }
    if kind == "metric":
        assert metrics["own/full_one"] > 1 and "own/full" in path.with_name("report.md").read_text()


def test_every_skeleton_is_used(tmp_path):
    for kind in new.FAMILIES:
        for path in new.write_package(kind, "some_part", tmp_path / kind):
            assert "$" not in path.read_text(), path
    kept = {path.name for path in new.SKELETONS.iterdir() if path.suffix == ".txt"}
    assert kept == {
        *(f"{kind}.py.txt" for kind in new.FAMILIES),
        *(f"{kind}.yaml.txt" for kind in new.FAMILIES if kind != "metric"),
        *("pyproject.toml.txt", "README.md.txt", "init.py.txt", "test.py.txt", "command_test.py.txt"),
    }

"""`--help`, `--version` and `python -m specdec`: answered at once, from the YAML files themselves."""

import sys
from pathlib import Path

import pytest
import yaml

from specdec import __main__ as lists_commands
from specdec import __version__, run
from specdec.commands.help_page import help_page
from specdec.config import config_dir

CONF = Path(config_dir())


@pytest.mark.parametrize("command", ["config", "certify_server", "train"])
def test_every_group_is_listed_with_its_files(command):
    page = help_page(command, [])
    for folder in ("drafter", "verifier", "structure/budget_32"):
        names = sorted(path.stem for path in (CONF / folder).glob("*.yaml"))
        assert f"\n{folder}: {', '.join(names)}\n" in page
    assert "\nhydra" not in page.partition("\nKeys")[2] and "-v or --verbose" in page


def test_keys_have_their_comments_and_those_of_files_that_are_extended():
    page = help_page("config", ["+drafter=medusa", "target=random_110m"])
    assert "tracking:  (tracking=mlflow)\n" in page and "\n  required: false # true: a run fails" in page
    assert "\n  siblings: without_replacement # in rows and trees" in page  # a group that was added
    assert "\n    hidden_size: 768" in page and "\n  compile: auto # true on a CPU" in page  # causal.yaml below it
    assert "defaults:" not in page and "@package" not in page


def test_every_key_of_the_default_configuration_stands_there():
    page = help_page("config", ["+drafter=ngram"])
    lines = {line.strip().partition(":")[0].strip('"') for line in page.splitlines()}
    for name in ("measurement/default", "drafter/ngram", "target/causal", "prompts/stdlib_mix"):
        keys = yaml.safe_load((CONF / f"{name}.yaml").read_text())
        assert set(keys) - {"defaults"} <= lines


def test_a_wrong_name_beside_help_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["specdec.run", "+drafter=ngrm", "--help"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("specdec: Unknown drafter 'ngrm'. Did you mean ngram?")


def test_the_list_of_commands_has_a_sentence_for_each(capsys):
    lists_commands.main([])
    said = capsys.readouterr().out
    for name in ("run", "train", "advise", "certify", "report", "sync", "new", "convert"):
        assert f"  python -m specdec.{name} " in said


def test_the_version_is_said_and_nothing_is_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["specdec.run", "+drafter=ngram", "--version"])
    run.main()
    lists_commands.main(["--version"])
    assert capsys.readouterr().out == f"specdec {__version__}\n" * 2 and not list(tmp_path.iterdir())

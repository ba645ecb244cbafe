"""What a user reads, and the exit code, when a command line cannot be used; and that help comes at once."""

import errno
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from specdec import __main__ as lists_commands
from specdec import __version__, progress, run
from specdec.commands import cli
from specdec.commands.cli import help_page
from specdec.commands.failures import ending
from specdec.config import config_dir
from specdec.errors import EnvironmentFault, Interrupted, Terminated, UsageError
from specdec.progress import detail, verbose

CONF = Path(config_dir())
Task = Callable[[Mapping[str, Any]], Any]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], logging_as_before: None
) -> Callable[..., tuple[int, str]]:
    """`command(arguments, task)` runs in an empty folder and returns the exit code and what stderr got."""
    monkeypatch.chdir(tmp_path)

    def command(arguments: str, task: Task = lambda values: None, config: str = "config") -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["specdec", *arguments.split()])
        try:
            cli.main(config, task)
        except SystemExit as end:
            return int(end.code or 0), capsys.readouterr().err
        return 0, capsys.readouterr().err

    return command


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("+drafter=ngrm", "Unknown drafter 'ngrm'. Did you mean ngram? The options are: "),
        ("-m +drafter=ngram structure.k=4", "Unknown key structure.k: structure 'chain' has the keys gamma."),
        ("+drafter=ngram tracking.url=x", "Unknown key tracking.url: tracking has the keys uri, experiment, "),
        ("+drafter=ngram sed=1", "Unknown key sed: the configuration has no such key. Did you mean seed?"),
        ("structure.gamma=1,2", "structure.gamma has several values: add -m to sweep over them, or write [1,2] "),
        ("structure.gamma", "The argument 'structure.gamma' is not of the form KEY=VALUE: missing EQUAL at "),
        ("+target=table", "target is chosen twice: if it has a default, write target=NAME without the plus."),
    ],
)
def test_a_bad_command_line_is_one_sentence(command, tmp_path, arguments, sentence):
    code, error = command(arguments)
    assert code == 2 and error.startswith(f"specdec: {sentence}") and error.count("\n") == 1
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UsageError("Put this right."), 2, "Put this right."),
        (EnvironmentFault("Tracking is gone."), 4, "Tracking is gone."),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 4, "The disk is full: "),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes"),
            4,
            "Memory ran out: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes. "
            "Try target.dtype=bfloat16, fewer measurement.max_new_tokens or a smaller model",
        ),
        (MemoryError(), 4, "Memory ran out: MemoryError."),
        (KeyboardInterrupt(), 130, "Interrupted; what was finished is on disk."),
        (Terminated("Stopped by SIGTERM."), 143, "Stopped by SIGTERM."),
    ],
)
def test_what_ends_a_task_is_one_sentence(error, code, sentence):
    told, ended = ending(error)
    assert ended == code and told.startswith(sentence) and "\n" not in told


def test_a_task_ends_with_its_sentence_and_a_bug_keeps_its_traceback(command):
    def task(values: Mapping[str, Any]) -> None:
        raise error

    error: BaseException = OSError(errno.ENOSPC, "No space left on device", "x")
    ended, text = command("+drafter=ngram", task)
    assert ended == 4 and text.startswith("specdec: The disk is full: ") and text.count("\n") == 1
    error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        command("+drafter=ngram", task)


@pytest.mark.parametrize(
    ("where", "number", "code"), [("in a resolver", signal.SIGINT, 130), ("in a look-up", signal.SIGTERM, 143)]
)
def test_a_signal_in_omegaconfs_work_is_one_sentence(command, monkeypatch, where, number, code):
    """OmegaConf makes an error of its own of it, or one of the same class from nothing but a longer text."""

    def stop(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 5)

    def task(values: Mapping[str, Any]) -> None:
        OmegaConf.register_new_resolver("stop", stop, replace=True)
        config = OmegaConf.create({"key": "${stop:}"})
        with monkeypatch.context() as patched:
            if where == "in a look-up":
                patched.setattr(DictConfig, "_get_impl", stop)
            assert config.key is None

    sentence = f"specdec: Stopped by {signal.Signals(number).name}; what was finished is on disk.\n"
    assert command("+drafter=ngram", task) == (code, sentence)


def test_an_interruption_can_be_made_anew_and_sent_to_another_process():
    for kind, code in ((Interrupted, 130), (Terminated, 143)):
        stopped = kind("Stopped; what was finished is on disk.")
        for again in (stopped, kind(f"{stopped}\n    full_key: a"), pickle.loads(pickle.dumps(stopped))):
            assert str(again) == str(stopped) and again.exit_code == code


def test_empty_variables_of_mlflow_count_as_unset(command, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", " ")
    seen: list[Any] = []
    assert command("+drafter=ngram", lambda values: seen.append(values["tracking"])) == (0, "")
    assert (seen[0]["uri"], seen[0]["experiment"]) == (None, "specdec")


def test_the_task_gets_plain_values_and_a_folder_of_its_own(command, tmp_path):
    seen: list[Any] = []

    def task(values: Mapping[str, Any]) -> None:
        logging.getLogger("specdec.test").info("a line with [brackets]")
        seen.append((values["structure"], cli.output_dir(), Path.cwd()))

    outcomes = [command("+drafter=ngram structure.gamma=7", task) for _ in range(2)]
    assert outcomes == [(0, "a line with [brackets]\n")] * 2
    (structure, first, here), (_, second, _) = seen
    assert structure == {"name": "chain", "gamma": 7} and type(structure) is dict
    assert here == tmp_path and first != second and first.is_dir() and tmp_path / "outputs" in first.parents
    assert "INFO specdec.test: a line" in (first / "specdec.log").read_text()


@pytest.mark.parametrize(("config", "flag"), [("config", "-v"), ("config", ""), ("train", "--verbose")])
def test_every_command_takes_the_flag_that_shows_all(command, monkeypatch, config, flag):
    """Details are printed for who asks, never twice, and are in the log."""
    seen: list[bool] = []
    told: list[str] = []
    monkeypatch.setattr(progress, "tell", told.append)

    def task(values):
        seen.append(verbose())
        detail("a detail")

    drafter = "" if config == "train" else "+drafter=ngram"
    assert command(f"{drafter} {flag} hydra.run.dir=run seed=1", task, config) == (0, "")
    assert seen == [bool(flag)] and told == ["a detail"] * bool(flag) and not verbose()
    assert "INFO specdec.details: a detail" in Path("run/specdec.log").read_text()


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

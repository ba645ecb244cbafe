"""The run command in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from specdec import run


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`command("+drafter=ngram", ...)`, in an empty folder and without a store: exit code and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["specdec.run", "tracking.enabled=false", *arguments])
        GlobalHydra.instance().clear()
        try:
            run.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            GlobalHydra.instance().clear()
        return code, capsys.readouterr().err

    return call

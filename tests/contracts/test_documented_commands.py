"""Every command that a README names is understood: it composes with Hydra, or its options are those of the report."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from specdec import convert, new, report, sync
from specdec.analysis.pages.notebook import OVERLAY, SHAPES_OVERLAY
from specdec.config import AdviseConfig, CertifyConfig, RunConfig, config_dir, validated
from specdec.drafters.base import drafters
from specdec.studies.base.contract import studies

ROOT = Path(__file__).resolve().parents[2]
PARSERS = {"convert": convert.parser, "new": new.parser, "report": report.parser, "sync": sync.parser}
ROOTS = {
    "run": ("config", RunConfig),
    "advise": ("advise", AdviseConfig),
    "certify": ("certify", CertifyConfig),
    "train": ("train", None),
}
COMMAND = re.compile(r"python -m specdec\.(\w+) ?(.*)")


def documented() -> list[tuple[str, str]]:
    """Return (command, arguments) for each line of a block and each span of code that starts one."""
    found = []
    for file in (ROOT / "README.md", ROOT / "notebooks" / "README.md"):
        text = file.read_text(encoding="utf-8")
        blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        for code in [*lines, *(" ".join(span.split()) for span in spans)]:
            match = COMMAND.search(code)
            if match:
                found.append((match[1], match[2].partition(" #")[0].strip()))
    return list(dict.fromkeys(found))


def overrides_of(arguments: str) -> list[str]:
    """Return the overrides of a command, with the first choice of each sweep."""
    overrides = [word for word in shlex.split(arguments) if word not in ("-m", "...") and not word.startswith("hydra.")]
    if "-m" in arguments.split():
        overrides = [re.sub(r"=glob\(\*\)$", "=grounded", word) for word in overrides]
        overrides = [word.partition(",")[0] if "[" not in word else word for word in overrides]
    return overrides


@pytest.mark.parametrize(("command", "arguments"), documented())
def test_the_command_is_understood(command, arguments):
    if command in PARSERS:
        assert PARSERS[command]().parse_args(shlex.split(arguments.replace("...", "")))
        return
    if "--help" in arguments or not arguments:
        return
    root, config = ROOTS[command]
    overrides = overrides_of(arguments)
    with initialize_config_dir(config_dir(), version_base="1.3"):
        composed = compose(root, overrides)
    if config is not None and "drafter" in composed:
        validated(config, OmegaConf.to_container(composed, resolve=True, throw_on_missing=True))


def test_every_cell_of_the_example_with_two_pluses_is_understood():
    """Keys of one drafter in a sweep over several have to be keys of each."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"`-m \+drafter=([\w,]+) (\+\+drafter\.[\w=.]+)`", readme)
    for name in example[0].split(","):
        with initialize_config_dir(config_dir(), version_base="1.3"):
            composed = compose("config", [f"+drafter={name}", example[1]])
        drafters.config(OmegaConf.to_container(composed.drafter, resolve=True))


def test_the_overlay_of_the_notebooks_makes_what_they_read():
    """Each cell is understood; among them are a run of every study and every shape that notebook 03 reads."""
    overlay = OmegaConf.load(Path(config_dir(), "experiment", "notebooks.yaml"))
    cells = {}
    for name in overlay.hydra.sweeper.params["+notebook"].split(","):
        with initialize_config_dir(config_dir(), version_base="1.3"):
            composed = compose("config", [f"+notebook={name}", "+experiment=notebooks"])
        values = OmegaConf.to_container(composed, resolve=True)
        cells[name] = validated(RunConfig, values)
        drafters.config(cells[name].drafter)
    assert set(cells) == {path.stem for path in Path(config_dir(), "notebook").glob("*.yaml")}
    found = {studies.config(cell.study).name for cell in cells.values() if cell.study}
    assert found == {"grid", "phase_transition", "equal_budget"}
    shapes = [cell for cell in cells.values() if cell.experiment_name == SHAPES_OVERLAY]
    assert {cell.structure["name"] for cell in shapes} == {"chain", "rows", "tree"}
    chains = [cell for cell in cells.values() if cell.experiment_name == OVERLAY]
    assert len(chains) == 4 and all(cell.measurement.gammas == [1, 2, 4, 8] for cell in chains)


def test_the_readme_has_commands_of_every_kind():
    kinds = {"run", "advise", "certify", "train", "report", "convert", "sync", "new"}
    assert {command for command, _ in documented()} == kinds

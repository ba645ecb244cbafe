"""Every command that a document names is understood, and those that can run here do, in their debug size.

The first tier composes each with Hydra, or parses its options; the second runs it or says why it cannot.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from fixtures.commands import run_in
from fixtures.resumed_runs import decode
from fixtures.small_parts import composed, composed_values
from omegaconf import OmegaConf

from specdec import advise, certify, convert, explain, gate, new, report, run, sync
from specdec.analysis.pages.notebook import OVERLAY
from specdec.certification import greedy_identity
from specdec.config import AdviseConfig, CertifyConfig, CertifyServerConfig, RunConfig, config_dir, validated
from specdec.drafters.base import drafters
from specdec.studies.base.contract import studies

ROOT = Path(__file__).resolve().parents[2]
PARSERS = {part.__name__.partition(".")[2]: part.parser for part in (convert, explain, gate, new, report, sync)}
ROOTS = {
    "run": ("config", RunConfig),
    "advise": ("advise", AdviseConfig),
    "certify": ("certify", CertifyConfig),
    "certify --server": ("certify_server", CertifyServerConfig),
    "train": ("train", None),
}
DOCUMENTS = [ROOT / "README.md", ROOT / "notebooks" / "README.md", *sorted((ROOT / "notebooks" / "guide").glob("*.md"))]
COMMAND = re.compile(r"python -m specdec\.(\w+)(?![\w.]) ?(.*)")  # specdec.analysis.pages.guide has a test of its own


def documented() -> list[tuple[str, str]]:
    """Return (command, arguments) for each line of a block and each span of code that starts one."""
    found = []
    for file in DOCUMENTS:
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
    words = shlex.split(arguments.replace("+drafter=NAME", "+drafter=ngram"))
    overrides = [word for word in words if word not in ("-m", "...") and not word.startswith("hydra.")]
    if "-m" in arguments.split():
        overrides = [re.sub(r"=glob\(\*\)$", "=grounded", word) for word in overrides]
        overrides = [word.partition(",")[0] if "[" not in word else word for word in overrides]
    return overrides


# The second tier: documented commands that are not tried here, each with the reason. Patterns read "command arguments".
NOT_RUN = (
    (r"^(run|sync|advise)? ?$|^advise $", "the name of a command in a sentence"),
    (r"^run \+drafter=ngram$", "the run that other commands read is this one"),
    (r"^run -m |small_model .*(gammas|budget_seconds)=", "without a sweep and in the debug size, another one of these"),
    (r"small_model .*peers=", "a documented run of ngram has the same engine beside it"),
    (
        r"^certify .*verifier=block|^advise .*medusa",
        "another drafter and rule; tests/certification/ and contracts/ have all",
    ),
    (
        r"^train ",
        "trainings of minutes to hours; tests/training/ and tests/heads/ train each kind at the size of a toy",
    ),
    (r"\+experiment=", "tests/test_run.py, tests/studies/ and tests/heads/ have every experiment and study"),
    (r"target\.model=|drafter\.model=|^convert ", "needs a model of a hub or of the user"),
    (r"target=smollm2", "135 million weights; tests/models/test_smollm2.py decodes with them"),
    (r"target\.device=cuda|gpu", "needs a GPU"),
    (r"postgresql://|launcher=slurm", "needs a cluster or a server"),
    (r"launcher=joblib", "starts processes; tests/commands/ sweeps over them"),
    (r"--server", "needs a server; tests/certification/test_server_audit.py has one"),
    (r"llama_cpp|openvino", "needs an engine that is not installed for the tests; tests/peers/ has them"),
    (r"HumanEval\.jsonl\.gz", "needs a data set of others"),
    (
        r"multirun/DAY/TIME|RUN_ID|report studies",
        "needs a sweep or studies that are finished; tests/analysis/ reports on them",
    ),
    (r" today/", "needs the answers of servers; tests/serving/ has some"),
    (r"report/imported", "needs a converted file; tests/analysis/findings/ reports on such folders again"),
    (
        r"^explain |^gate ",
        "needs load tests of a server, or two runs; tests/test_explain.py and tests/test_gate.py have them",
    ),
    (r"--import KIND|drafter=NAME", "a placeholder; the page has the real names"),
)
SMALL = ("prompts.limit=1", "measurement.max_new_tokens=8", "target.compile=false", "measurement.cost_contexts=[]",
         "measurement.threads=1", "tracking.enabled=false")  # fmt: skip
CERTIFICATE = ("rounds=40", "places=1", "redraws=40", "redrafts=10", "outputs=1")
WHOLE = (  # the runs that are analysed and reported on, too, beside `a_run`: several drafters, and recorded text
    "+drafter=grounded 'measurement.drafters=[medusa,ngram]'",
    "target=replay target.path=FILE.jsonl +drafter=ngram",
)


def reason(command: str, arguments: str) -> str | None:
    """Return why a documented command is not run here; None: it is."""
    return next((why for pattern, why in NOT_RUN if re.search(pattern, f"{command} {arguments}")), None)


def different() -> list[tuple[str, str]]:
    """Return documented commands; of those that differ by numbers or dots only, the first."""
    kept: dict[str, tuple[str, str]] = {}
    for command, arguments in documented():
        kept.setdefault(
            re.sub(r"\d[\d.]*(,\d[\d.]*)*", "0", f"{command} {arguments}".rstrip(".")), (command, arguments)
        )
    return list(kept.values())


def runnable() -> list[tuple[str, str]]:
    return [case for case in different() if reason(*case) is None]


@pytest.mark.parametrize(("command", "arguments"), different())
def test_the_command_is_understood(command, arguments):
    if command in PARSERS:
        assert PARSERS[command]().parse_args(shlex.split(arguments.replace("...", "")))
        return
    if "--help" in arguments or not arguments:
        return
    root, config = ROOTS[f"{command} --server" if "--server" in arguments else command]
    values = composed_values(*certify.server_overrides(overrides_of(arguments)), root=root, whole=True)
    if "drafter" in values and config is not None:
        validated(config, values)


def test_every_cell_of_the_example_with_two_pluses_is_understood():
    """Keys of one drafter in a sweep over several have to be keys of each."""
    page = (ROOT / "notebooks" / "guide" / "questions.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"`-m \+drafter=([\w,]+) (\+\+drafter\.[\w=.]+)`", page)
    for name in example[0].split(","):
        drafters.config(composed_values(f"+drafter={name}", example[1])["drafter"])


def test_the_overlay_of_the_notebooks_makes_what_they_read():
    """Among its cells are a run of every study and every shape that notebook 03 reads; those that differ in the drafter
    alone are read, and the others composed.
    """
    overlay = OmegaConf.load(Path(config_dir(), "experiment", "notebooks.yaml"))
    files = {path.stem: OmegaConf.load(path) for path in Path(config_dir(), "notebook").glob("*.yaml")}
    assert set(overlay.hydra.sweeper.params["+notebook"].split(",")) == set(files)
    chains = [file for file in files.values() if file.get("experiment_name") == OVERLAY]
    assert len(chains) == 4 and all(file.measurement.gammas == [1, 2, 4, 8] for file in chains)
    assert all(Path(config_dir(), "drafter", f"{file.defaults[0]['/drafter']}.yaml").is_file() for file in chains)
    cells = [composed(f"+notebook={name}", "+experiment=notebooks") for name in files if files[name] not in chains]
    for cell in cells:
        drafters.config(cell.drafter)
    found = {studies.config(cell.study).name for cell in cells if cell.study}
    assert found == {"grid", "phase_transition", "equal_budget"}
    shapes = [cell for cell in cells if cell.experiment_name == "chain_rows_tree"]
    assert {cell.structure["name"] for cell in shapes} == {"chain", "rows", "tree"}


def test_the_documents_have_commands_of_every_kind():
    assert {command for command, _ in documented()} == {*PARSERS, *ROOTS} - {"certify --server"}


def test_every_reason_is_that_of_a_documented_command():
    lines = [f"{command} {arguments}" for command, arguments in documented()]
    assert [pattern for pattern, _ in NOT_RUN if not any(re.search(pattern, line) for line in lines)] == []
    assert {("run", arguments) for arguments in WHOLE} <= {*runnable()}


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    """The folder of a small finished run, for commands that read one."""
    folder = tmp_path_factory.mktemp("documented")
    run_in(folder, "+drafter=ngram", "+debug=pocket", *SMALL, "hydra.run.dir=run")
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "arguments"), runnable())
@pytest.mark.usefixtures("undrawn_pictures")
def test_the_command_runs_in_its_debug_size(
    in_process, tmp_path, monkeypatch, a_run, empty_database, command, arguments
):
    """Files that a command names are given: a text, a run's texts to decode again, prompts, lengths to import.

    Most runs end when they have decoded: the rest of a run reads files, and does not know what made them.
    """
    (tmp_path / "FILE.txt").write_text("def square(number):\n    return number * number\n" * 50)
    (tmp_path / "accepted.jsonl").write_text('{"id": "a", "accepted": [2, 0, 4, 1]}\n{"id": "b", "accepted": [0, 3]}\n')
    (tmp_path / "prompts.jsonl").write_text('{"text": "def square(number):"}\n')
    words = [word for word in shlex.split(arguments.replace("...", "")) if word]
    if command in ("run", "advise", "certify"):
        words = overrides_of(arguments)
        words = [re.sub(r"^target\.path=FILE.*", f"target.path={a_run / 'generations.jsonl'}", word) for word in words]
        words = [word.replace("prompts.path=FILE.jsonl", "prompts.path=prompts.jsonl") for word in words]
        words += [word for word in SMALL if not ("target=replay" in words and "compile" in word)]
        words.append("+debug=pocket" if "target=replay" not in words else "measurement.bootstrap=200")
    if command == "certify":
        monkeypatch.setattr(greedy_identity, "ARCHITECTURES", {"mistral_window": None})  # contracts/ has all
        words += [f"certificate.{value}" for value in CERTIFICATE]
    if command == "report":
        words = [str(a_run) if word == "FOLDER" else word.replace("FILE.jsonl", "accepted.jsonl") for word in words]
        words += ["--gamma", "5"] if "--import" in words else []
    if command == "sync":
        words = [str(a_run) if word == "FOLDER" else word for word in words] or [str(a_run)]
        words += ["--tracking-uri", f"sqlite:///{shutil.copy(empty_database, tmp_path / 'mlflow.db')}"]
    if command == "new":
        words = [word.replace("NAME", "sample") for word in words]
    if command == "run" and arguments not in WHOLE:
        words += ["measurement.calibration_calls=1", "measurement.warmup_tokens=0", "measurement.null=false"]
        words += [] if "gammas" in arguments else ["measurement.gammas=[]"]
        decode(composed(*words), tmp_path / "out")
        assert json.loads((tmp_path / "out" / "session.json").read_text())["unexplained"] == 0
        return
    modules = {"run": run, "advise": advise, "certify": certify, "report": report, "sync": sync, "new": new}
    ended = in_process(modules[command], *words)
    assert ended.code == 0, ended.error

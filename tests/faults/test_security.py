"""Nothing that a configuration, a checkpoint or a text says is run, leaves its folder, or is more than text on a
page.
"""

import ast
import re
from pathlib import Path

import pytest
import torch
import yaml

from specdec import report, run
from specdec.analysis.figures import style
from specdec.commands.cli import refuse_targets
from specdec.commands.failures import ending
from specdec.config import FolderPart, typed, validated
from specdec.convert import convert
from specdec.eagle.eagle_config import EagleConfig
from specdec.errors import SpecdecError, UsageError
from specdec.models.load import load_model
from specdec.text.streams import Stream, write_streams
from specdec.training.recipes import Name

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for part in ("specdec", "analysis") for path in sorted((ROOT / part).rglob("*.py"))]
# torch.load there reads with weights_only: pickles of others on request, and a training's own checkpoint.
UNPICKLES = {"specdec/convert.py", "specdec/training/loop.py"}


# The source ---------------------------------------------------------------------------------------


OPTIONS = ("shell", "allow_pickle", "trust_remote_code", "weights_only")
# A file without any of these words need not be parsed.
SUSPECT = """
pickle dill joblib marshal shelve eval( exec( compile( __import__ os.system os.popen yaml.load yaml.unsafe_load
instantiate get_class get_method shell trust_remote_code .from_ torch.load
""".split()


def dotted(function: ast.expr) -> str:
    """Return the name of what is called, such as `os.system`; `().read` for a method of what a call gave."""
    names: list[str] = []
    while isinstance(function, ast.Attribute):
        names.insert(0, function.attr)
        function = function.value
    return ".".join([function.id if isinstance(function, ast.Name) else "()", *names])


def forbidden(path: str, source: str) -> list[str]:
    """Return the calls and imports of a source file by which it could run what it reads."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)) if any(word in source for word in SUSPECT) else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            banned = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"} & {
                name.split(".")[0] for name in names
            }
            if banned and path != "specdec/convert.py":
                found.append(f"import of {banned}")
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        options = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg in OPTIONS}
        if name in ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"):
            found.append(name)
        if name.endswith(("instantiate", "get_class", "get_method")) and "hydra" in name:
            found.append(name)
        if options.get("shell", "False") != "False" or options.get("allow_pickle", "False") != "False":
            found.append(f"{name} with {options}")
        if options.get("trust_remote_code", "False") != "False":
            found.append(f"{name} with trust_remote_code")
        # Models by their base class; the classes Auto* look a name up, and may find code there.
        # A quantiser's configuration is looked up among transformers' own.
        if name == "AutoQuantizationConfig.from_dict":
            continue
        if re.fullmatch(r"([\w.]+\.)?([Aa]uto\w*)\.from_\w+", name) and "trust_remote_code" not in options:
            if "place" not in ast.unparse(node.args[0]):  # a folder that specdec wrote
                found.append(f"{name} without trust_remote_code=False")
        if name == "torch.load" and (path not in UNPICKLES or options.get("weights_only") != "True"):
            found.append(name)
    return found


def test_no_source_runs_what_it_reads():
    named = {}
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        named[place] = forbidden(place, path.read_text(encoding="utf-8"))
    assert not {place: calls for place, calls in named.items() if calls}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "import dill, marshal",
        "eval(text)",
        "yaml.load(file)",
        "os.popen(text)",
        "subprocess.run(command, shell=True)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name)",
        "AutoConfig.from_pretrained(name, trust_remote_code=asked)",
        "hydra.utils.instantiate(config)",
    ],
)
def test_the_scan_finds_what_it_is_for(line):
    assert forbidden("specdec/some.py", line)


def test_configurations_name_no_code():
    """Classes stand in Hydra's own group alone: log handlers, and the callbacks of sweeps."""
    for path in (ROOT / "conf").rglob("*.yaml"):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "hydra" not in path.relative_to(ROOT / "conf").parts[:1] and isinstance(values, dict):
            refuse_targets({key: value for key, value in values.items() if key != "hydra"})


# Configurations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["x", "drafter.x", "measurement.drafter_settings.ngram.drafter.0.x"])
def test_a_configuration_that_names_code_is_refused(place):
    value: object = {"_target_": "os.system", "command": "true"}
    for part in reversed(place.split(".")):
        value = [value] if part == "0" else {part: value}
    with pytest.raises(UsageError, match=re.escape(f"Key {place}._target_ is refused")):
        refuse_targets(value)


def test_the_command_refuses_a_target_before_it_does_anything(in_process, tmp_path):
    ran = tmp_path / "was_run"
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "theirs.yaml").write_text(f"name: ngram\n_target_: pathlib.Path.touch\nself: {ran}\n")
    ended = in_process(run, "--config-dir", tmp_path, "+drafter=theirs")
    assert ended.code == 2 and ended.error.startswith("specdec: Key drafter._target_ is refused")
    (tmp_path / "drafter" / "theirs.yaml").write_text(f"name: !!python/object/apply:os.mkdir ['{ran}']\n")
    ended = in_process(run, "--config-dir", tmp_path, "+drafter=theirs")
    assert ended.code == 2 and ended.error.startswith("specdec: A YAML file cannot be read")
    assert not ran.exists()


@typed
class Named:
    name: Name


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "..", "a//b", "a\\b", "a\0b", "a\nb", ""])
@pytest.mark.parametrize("config", [FolderPart, EagleConfig, Named])
def test_a_name_stays_below_its_folder(config, name):
    """Trainings write to models/heads/NAME and the like."""
    with pytest.raises(UsageError, match=r"^Bad value.* name\b|^Bad value name="):
        validated(config, {"name": name})


def test_names_with_folders_of_their_own_are_allowed():
    assert validated(FolderPart, {"name": "ablation/grounded"}).name == "ablation/grounded"


@pytest.mark.slow
def test_a_figure_stays_in_its_folder(tmp_path):
    figure, _ = style.new_figure("t", "c")
    for path in style.save(figure, tmp_path / "figures", "../../of_<a>/b"):
        assert path.parent == tmp_path / "figures" and path.is_file()


# Checkpoints --------------------------------------------------------------------------------------


class Touches:
    """A pickle of this writes a file when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_no_code_in_a_pickle_runs(tmp_path, tiny_model):
    ran, folder = tmp_path / "was_run", tmp_path / "model"
    tiny_model("llama").save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Touches(str(ran))}, folder / "pytorch_model.bin")
    for read in (
        lambda: load_model(str(folder), dtype=None, device=torch.device("cpu"), attention="auto"),
        lambda: convert(folder / "pytorch_model.bin", tmp_path / "out.safetensors"),
    ):
        with pytest.raises(SpecdecError) as refusal:
            read()
        assert refusal.value.exit_code == 2 and "\n" not in str(refusal.value)
    assert not ran.exists()


# Pages and terminal -------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>[red]\x1b[31m\u202e|`"


@pytest.mark.slow
def test_hostile_names_are_only_text(in_process, tmp_path, monkeypatch):
    """Prompts, categories, the drafter of a recording and the run's name are somebody else's text."""
    write_streams(tmp_path / "s.jsonl", [Stream(f"{HOSTILE}{n}", HOSTILE, (n, 1), (2, 3) * 4) for n in range(3)])
    arguments = ("target=replay", f"target.path={tmp_path}/s.jsonl", "+drafter=ngram", "tracking.enabled=false")
    small = ("measurement.gammas=[2]", "structure.gamma=2", "measurement.bootstrap=20", "measurement.trace=true")
    with monkeypatch.context() as patch:  # the report draws them
        patch.setattr(style, "save", lambda *_: None)
        ended = in_process(run, *arguments, *small, "hydra.run.dir=run")
    assert ended.code == 0, ended.error
    reported = in_process(report, tmp_path / "run")
    assert reported.code == 0, reported.error
    for text in (ended.output, ended.error, reported.output, reported.error):
        assert "\x1b[31m" not in text and "\u202e" not in text
    assert "[red]" in ended.output  # shown, and not read as markup
    pages = [tmp_path / "run" / "trace.html", tmp_path / "report" / "report.html"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<script" not in text and "&lt;script&gt;" in text, page
        assert not re.search(r"""(src|href|action|data)\s*=\s*["']?\s*(https?:)?//""", text), page
        assert "\x1b" not in text
    for page in (tmp_path / "run" / "report.md", tmp_path / "report" / "report.md"):
        assert "<script>" not in page.read_text(encoding="utf-8").replace("\\<script\\>", "")


def test_a_sentence_carries_no_control_characters():
    sentence, code = ending(UsageError(f"Prompt {HOSTILE}\nis\tbad \ud800.")) or ("", 0)
    assert (sentence, code) == ("Prompt <script>alert(1)</script>[red][31m|` is bad ?.", 2)


# Servers ------------------------------------------------------------------------------------------


def test_servers_are_documented_on_the_loopback_only():
    """`mlflow ui` and `mlflow server` listen on 127.0.0.1 unless they are told otherwise."""
    files = [ROOT / "README.md", *(ROOT / "notebooks").rglob("*.md"), *SOURCES, *(ROOT / "conf").rglob("*.yaml")]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert "0.0.0.0" not in text and not re.search(r"--host[ =](?!127\.0\.0\.1|localhost)", text), path

"""A wrong value is refused in one sentence, with code 2, before a model is read; a wrong name before torch is imported.

With these, the list of bad inputs is complete: `tests/faults/test_bad_surroundings.py` has models, files, folders,
stores and servers, `tests/test_registry.py` and `tests/test_new.py` have plugins, and
`tests/session/test_interruption.py` has signals, as `tests/commands/test_cli.py` does.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_lines import stand_in_for_hydra, values_of

from specdec import run
from specdec.advice import advisor
from specdec.certification import certifier
from specdec.errors import UsageError
from specdec.plan.names import FAMILIES, check_names
from specdec.registry import Registry
from specdec.session import experiment
from specdec.studies.base import run_study
from specdec.training import loop

HEAVY = ("torch", "transformers", "pandas", "scipy", "numpy", "matplotlib", "mlflow")

# Asked of whole commands, each in a process that has imported nothing of ours.
REFUSED = {
    "run +drafter=ngrm": "Unknown drafter 'ngrm'. Did you mean ngram?",
    "run +drafter=ngram drafter.name=ngrm": "Unknown drafter 'ngrm'. Did you mean ngram?",
    "certify +drafter=ngram +structure.k=4": "Unknown key structure.k: structure 'chain' has the keys gamma",
    "advise +drafter=ngram measurement.drafters=[sufix]": "Unknown drafter 'sufix'. Did you mean suffix?",
    "run +drafter=ngram model=DIR": "Unknown key model: the model of every command is target.model=",
    "run +drafter=ngram prompts.path=x": "Unknown key prompts.path: a file with prompts of your own is prompts=jsonl",
    "run +drafter=ngram target.model=./nowhere": "Model target.model=./nowhere does not exist",
    "advise +drafter=parallel drafter.model=models/parallel/mine/model": (
        "Model drafter.model=models/parallel/mine/model does not exist: python -m specdec.train +parallel=mine"
    ),
    "certify +drafter=ngram prompts=jsonl prompts.path=/dev/null": "Prompt file prompts.path=/dev/null is empty",
    "train +unlikelihood=pocket model=DIR": "Unknown key model: the model of every command is target.model=",
    "train +heads=medusa head_data@data=text data.source.path=/dev/null": "Text file data.source.path=/dev/null is ",
    "report": "Nothing to report on",
    "sync nowhere": "nowhere has no tracking.json",
    "convert nowhere.pt": "File nowhere.pt does not exist",
    "new drafter": "The following arguments are required: NAME",
}
TOLD = {
    "run --help": "max_new_tokens: 128",
    "report --help": "--import",
    "advise --help": "python -m specdec.advise ",
    "certify --help": "6 not lossless",
}

CONFIGURED = {
    "run +experiment=serving study.slots=x": "Bad value study.slots",
    "run +experiment=serving sampling.temperature=1": "Bad value sampling.temperature=1",
    "run +experiment=serving measurement.null=true": "study 'serving' has no null control",
    "run +experiment=serving measurement.drafters=[suffix]": "measurement.drafters=[suffix]: study 'serving'",
    "run +drafter=ngram measurement.peers=[vllm]": "Unknown measurement.peers 'vllm'",
    "run +drafter=ngram drafter.order_min=9": "Bad value drafter.order_min=9",
    "run +drafter=bigram drafter.order=3": "Bad values in drafter",
    "run +drafter=retrieval drafter.model=a drafter.corpus=b": "Bad value drafter.corpus=b",
    "run +drafter=mixed drafter.fill=false drafter.context_rows=null": "Bad value drafter.fill=false",
    "run +drafter=adaptive drafter.of.dtype=x": "Bad value drafter.of.dtype='x'",
    "run +drafter=adaptive drafter.of.name=adaptive": "Missing key drafter.of.",
    "run +drafter=ngram structure.gamma=5000": "Bad value structure.gamma=5000",
    "run +drafter=ngram structure=rows structure.k=1000 structure.w=1000": "Bad value structure.k=1000",
    "run +drafter=ngram structure=expansion structure.widths=[1000,1000]": "Bad value structure.widths",
    "run +drafter=ngram structure=tree structure.accuracy=null": "structure=tree has no tree",
    "run +drafter=ngram structure=tree structure.accuracy=[2]": "Bad value structure.accuracy=[2]",
    "run +drafter=ngram structure=tree verifier.name=block": "Bad value structure=tree: verifier 'block' handles only",
    "run +drafter=ngram verifier.name=greedy sampling.temperature=1.0": "Bad value sampling.temperature=1.0: verifier",
    "run +drafter=oracle sampling.temperature=1.0": "Bad value sampling.temperature=1.0: drafter 'oracle'",
    "run +drafter=ngram verifier=lenient verifier.lenience=2": "Bad value verifier.lenience=2",
    "run +drafter=ngram verifier=lenient measurement.lossless=true": "Bad value verifier=lenient",
    "run +drafter=ngram target.dtype=int3": "Bad value target.dtype='int3'",
    "run +drafter=recycling target=replay target.path=x target.vocab_size=9": "Bad value drafter=recycling",
    "run +drafter=ngram prompts=jsonl prompts.path=nowhere.jsonl": "prompts.path=nowhere.jsonl does not exist",
    "run +drafter=ngram measurement.repeats=0": "Bad value measurement.repeats=0",
    "run +drafter=ngram measurement.gammas=[0]": "Bad value measurement.gammas.0=0",
    "run +drafter=ngram target=table measurement.peers=[transformers]": "Bad value measurement.peers",
    "run +drafter=ngram target=table measurement.original=pocket": "Bad value measurement.original=pocket",
    "run +drafter=ngram measurement.batch_size=2 measurement.workers=2": "Bad value measurement.batch_size=2",
    "run +drafter=ngram +measurement.drafter_settings.suffix.drafter={}": "Bad value measurement.drafter_settings",
    "run +drafter=none measurement.drafters=[suffix]": "Bad value measurement.drafters: +drafter=none",
    "run +drafter=ngram seed=-1": "Bad value seed=-1",
    "run +drafter=ngram measurement.null=perhaps": "Bad value measurement.null",
    "run +drafter=ngram target.evaluation=x": "Bad value target.evaluation='x'",
    "run +drafter=ngram prompts.name=1": "Unknown prompts 1",
    "run +drafter=ngram tracking.required=maybe": "Bad value tracking.required='maybe'",
    "run +drafter=ngram measurement.sampled_temperature=hot": "measurement.sampled_temperature='hot'",
    "run +drafter=ngram +measurement.drafter_settings.bigram.drafter.q=1": "settings.bigram",
    "run +drafter=ngram +measurement.drafter_settings.ngram.drafter.q=1": "use drafter.*",
    "run +drafter=ngram measurement.drafters=[suffix] +measurement.drafter_settings.suffix.rule=1": "suffix.rule",
    "run +drafter=ngram measurement.drafters=[suffix] +measurement.drafter_settings.suffix.drafter.qq=1": (
        "That is drafter 'suffix'"
    ),
    "run +drafter=oracle measurement.drafters=[suffix] drafter.forced=true": "forced=true",
    "run +drafter=oracle measurement.batch_size=2 drafter.forced=true": (
        "use drafter.forced=false, or measurement.batch_size=1"
    ),
    "run +drafter=oracle drafter.forced=true drafter.alpha=0.5 measurement.lossless=true": "drafter.forced=true",
    "run +drafter=ngram measurement.budget_seconds=60 measurement.workers=2": (
        "2 workers begin prompts side by side; use measurement.workers=null"
    ),
    "run +drafter=ngram measurement.budget_seconds=60 measurement.batch_size=4": "a batch decodes 4 prompts at once",
    "run +drafter=ngram verifier=blockwise verifier.minimum_block=2 measurement.lossless=true": "verifier=blockwise",
    "run +drafter=ngram measurement.budget_seconds=0": "greater than 0",
    "run +drafter=ngram target=replay target.path=x verifier=blockwise verifier.minimum_block=2": (
        "target 'replay' knows"
    ),
    "run +drafter=ngram target=replay target.path=x verifier=blockwise measurement.batch_size=2": (
        "target=replay decodes one sequence at a time"
    ),
    "run +drafter=ngram measurement.batch_size=2 target.evaluation=rows": "use target.evaluation=packed",
    "run +drafter=ngram measurement.batch_size=2 measurement.peers=[transformers]": "peers decode one prompt at a time",
    "run +drafter=ngram target.tensor_parallel=2": (
        "one process runs; start as many processes as it says, with torchrun"
    ),
    "run": "No drafter: add +drafter=NAME, one of",
    "advise +drafter=ngram structure.gamma=0": "Bad value structure.gamma=0",
    "advise +drafter=ngram advice.text=''": "Bad value advice.text",
    "advise +drafter=ngram +advice.txt=x": "advice.txt",
    "advise +drafter=ngram measurement.drafters=[suffix]": "Bad value measurement.drafters=[suffix]",
    "advise +drafter=ngram measurement.batch_size=2": "Bad value measurement.batch_size=2",
    "advise +drafter=ngram measurement.budget_seconds=60": "specdec.advise leaves no prompt out",
    "advise +drafter=ngram measurement.null=true": "specdec.advise has no null control",
    "certify +drafter=ngram target=replay target.path=x target.vocab_size=9": "Bad value target=replay",
    "certify +drafter=ngram certificate.rounds=0": "Bad value certificate.rounds=0",
    "certify +drafter=ngram +certificate.draws=5": "certificate.draws",
    "certify +drafter=ngram measurement.drafters=[suffix]": "certifies one drafter",
    "certify +drafter=ngram verifier.name=greedy": "add sampling=greedy",
    "train": "No recipe: add +recipe=NAME, one of ngram, +heads=NAME",
    "train +recipe=pocket_target +heads=grounded": "Two recipes: choose one, +recipe=NAME",
    "train +heads=grounded target.dtype=x": "Bad value target.dtype='x'",
}
RIGHT = [
    "run +drafter=ngram measurement.drafters=[suffix]",
    "run +drafter=mixed sampling.temperature=0.7",
    "run +drafter=ngram verifier=blockwise measurement.lossless=true",
    "run +experiment=serving",
    "certify +drafter=ngram sampling.temperature=0.7",
    "train +heads=grounded",
]


class Passed(Exception):
    """Nothing was refused."""


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`refusal("run +drafter=ngram")` returns what a command answers before it opens its parts; "" where it goes on."""

    def go_on(*_: Any) -> None:
        raise Passed

    stand_in_for_hydra(monkeypatch, tmp_path)
    monkeypatch.setattr(loop, "prepare", go_on)
    for module in (experiment, run_study):
        monkeypatch.setattr(module, "open_tracked", go_on)
    for module in (advisor, certifier):
        monkeypatch.setattr(module, "open_parts", go_on)

    def asked(line: str) -> str:
        task, values = values_of(line)
        try:
            task(values)
        except UsageError as error:
            return str(error)
        except Passed:
            return ""
        raise AssertionError(f"{line} ended")

    return asked


@pytest.mark.parametrize("line", CONFIGURED)
def test_a_configuration_is_refused_before_a_model_is_read(refusal, line, tmp_path):
    assert CONFIGURED[line] in refusal(line)
    assert not list(tmp_path.iterdir()), "a refusal leaves nothing behind"


def test_a_budget_is_refused_where_several_processes_decode_one_prompt(refusal, monkeypatch):
    monkeypatch.setattr("specdec.run.ranks.check_count", lambda size: None)
    line = "run +drafter=ngram target.tensor_parallel=2 measurement.budget_seconds=60"
    assert "have to decode the same prompts" in refusal(line)


@pytest.mark.parametrize("line", RIGHT)
def test_a_right_configuration_passes(refusal, line):
    assert refusal(line) == ""


def test_a_refused_run_leaves_no_folder_and_no_store(in_process, tmp_path):
    ended = in_process(run, "+drafter=ngram", "+debug=tiny", "prompts=jsonl", "prompts.path=nowhere.jsonl")
    assert ended.code == 2 and "does not exist" in ended.error
    assert not [path for path in tmp_path.rglob("*") if path.name != ".mlflow.db.lock"]


@pytest.mark.parametrize("group", FAMILIES)
def test_names_and_keys_of_the_yaml_files_are_those_of_the_registries(group):
    """What is light to read says the same as what is heavy to import."""
    package = importlib.import_module(f"specdec.{FAMILIES[group]}")
    registry = next(each for each in vars(package).values() if isinstance(each, Registry))
    with pytest.raises(UsageError) as registered:
        registry.get("nothing of this name")
    with pytest.raises(UsageError) as written:
        check_names({group: {"name": "nothing of this name"}})
    assert str(written.value) == str(registered.value)
    for name in registry.all_names():
        with pytest.raises(UsageError, match=f"Unknown key {group}.no_key: {group} {name!r} has the keys") as written:
            check_names({group: {"name": name, "no_key": 1}})
        with pytest.raises(UsageError, match="Unknown key|Missing key") as registered:
            registry.config({"name": name, "no_key": 1})
        said = [str(each.value).partition("keys ")[2].rstrip(".").split(", ") for each in (written, registered)]
        assert sorted(said[0]) == sorted(said[1]) or "Missing" in str(registered.value)


COMMANDS = """
import json, os, sys
from importlib import import_module
import hydra, pydantic  # which all have to import; nothing of ours
for number, line in enumerate(json.loads(sys.argv[1])):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    os.mkdir(f"{number}")
    for stream, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(f"{number}")
    command, *arguments = line.split()
    sys.argv = [f"specdec.{command}", *arguments]
    code = 0
    try:
        import_module(f"specdec.{command}").main()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    heavy = [name for name in HEAVY if name in sys.modules]
    with open(f"../{number}.json", "w") as file:
        json.dump([code, heavy], file)
    os._exit(0)
"""


@pytest.mark.slow
def test_a_command_refuses_and_helps_before_heavy_imports(tmp_path):
    lines, script = [*REFUSED, *TOLD], COMMANDS.replace("HEAVY", repr(HEAVY))
    subprocess.run([sys.executable, "-c", script, json.dumps(lines)], cwd=tmp_path, check=True, timeout=300)
    for number, line in enumerate(lines):
        code, heavy = json.loads((tmp_path / f"{number}.json").read_text())
        out, error = ((tmp_path / f"{number}.{stream}").read_text() for stream in ("out", "error"))
        assert not heavy and "Traceback" not in error, (line, heavy, error)
        if line in TOLD:
            assert code == 0 and TOLD[line] in out, line
            continue
        said = [each for each in error.splitlines() if each.startswith("specdec: ")]
        assert code == 2 and len(said) == 1 and said[0].startswith(f"specdec: {REFUSED[line]}"), (line, error)
        left = [path for path in (tmp_path / str(number)).rglob("*") if path.is_file()]
        assert not left, f"{line}: no folder and no store is left behind"

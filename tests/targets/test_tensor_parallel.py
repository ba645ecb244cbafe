"""A target shared out over two processes: torchrun starts them once, and they do several runs that each check much."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from fixtures import ranks_at_work
from fixtures.tiny_checkpoints import PUBLISHED, write_checkpoint
from mlflow import MlflowClient
from transformers import GPT2Config, GPT2LMHeadModel

from specdec import ranks, run, train
from specdec.analysis.figures import style

ROOT = Path(__file__).resolve().parents[2]
WIDTH, VOCABULARY = 32, 65  # a vocabulary that two processes cannot share evenly
COMMON = """prompts=random_tokens prompts.vocabulary=64 prompts.length=20 prompts.limit=2 target.compile=false
measurement.max_new_tokens=16 measurement.gammas=[] measurement.warmup_tokens=0 measurement.calibration_calls=1
measurement.bootstrap=10 measurement.cost_contexts=[]""".split()
DRAFTERS = {
    "small_model": "{drafter: {model: small, dtype: float32}}",
    "medusa": "{drafter: {model: heads}, structure: {name: chain, gamma: 3}}",
    "early_exit": "{drafter: {exit_layer: 1}}",
}
UNTRACKED = ["tracking.enabled=false"]
GREEDY = ["+drafter=ngram", f"measurement.drafters=[{','.join(DRAFTERS)}]", "target.dtype=float32", *UNTRACKED]
GREEDY += [f"+measurement.drafter_settings.{name}={values}" for name, values in DRAFTERS.items()]
SAMPLED = ["+drafter=small_model", "drafter.model=small", "drafter.dtype=float64", "target.dtype=float64"]
SAMPLED += ["structure=tree", "structure.nodes=6", "structure.depth=3", "sampling=temperature", *UNTRACKED]


@pytest.fixture(scope="module")
def workplace(save_llama, tmp_path_factory) -> Path:
    """A folder with a target, a small model and heads, and two models that cannot be shared out."""
    folder = tmp_path_factory.mktemp("ranks")
    shape = {"hidden_size": WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    save_llama(folder / "target", intermediate_size=48, num_hidden_layers=3, **shape)
    save_llama(folder / "small", seed=1, intermediate_size=48, num_hidden_layers=1, **shape)
    save_llama(folder / "odd", intermediate_size=33, num_hidden_layers=1, **shape)
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16)).save_pretrained(folder / "unplanned")
    write_checkpoint(folder / "heads", PUBLISHED["medusa_1"], WIDTH, VOCABULARY)
    return folder


def commands(processes: int) -> list[dict[str, object]]:
    name = "together" if processes > 1 else "alone"
    more = [*COMMON, "target.model=target", f"target.tensor_parallel={processes}"]
    runs = {"greedy": (GREEDY, None), "sampled": (SAMPLED, None)}
    if processes > 1:
        runs["dead"] = (["+drafter=ngram", "target.dtype=float32"], 1)
    return [
        {"arguments": [*more, *own, f"hydra.run.dir={name}/{kind}"], "kill": kill} for kind, (own, kill) in runs.items()
    ]


@pytest.fixture(scope="module")
def launched(workplace, empty_database):
    """Both sets of runs, at once: exit codes of rank 0, what torchrun said, and its own exit code."""
    (workplace / "mlflow.db").write_bytes(empty_database.read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, processes in (("together", 2), ("alone", 1)):
        (workplace / f"{name}.json").write_text(json.dumps(commands(processes)))
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    together = subprocess.Popen(
        [sys.executable, *torchrun, ranks_at_work.__file__, "together.json"],
        cwd=workplace, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(workplace)
            patch.setattr(sys, "argv", [])
            patch.setattr(style, "save", style.save)  # to be put back
            ranks_at_work.main(workplace / "alone.json")
        assert json.loads((workplace / "alone.ended.json").read_text()) == [0, 0]
        _, said = together.communicate(timeout=400)
    finally:
        together.kill()
    codes = json.loads((workplace / "together.ended.json").read_text())
    return codes, said, together.returncode


pytestmark = pytest.mark.xdist_group("ranks")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_two_processes_write_what_one_does(launched, workplace, kind):
    """Greedy in float32 and at a temperature in float64: every token and every round of every drafter."""
    assert launched[0][:2] == [0, 0], launched[1]
    folders = [workplace / name / kind for name in ("together", "alone")]
    rounds = [pd.read_parquet(folder / "rounds.parquet") for folder in folders]
    own = ("cell", "beta", "tv", "disturbed")
    untimed = [name for name in rounds[1] if not name.endswith("_s") and name not in own]
    pd.testing.assert_frame_equal(rounds[0][untimed], rounds[1][untimed])
    lines = [[json.loads(line) for line in (folder / "generations.jsonl").open()] for folder in folders]
    texts = [[(line["method"], line["gamma"], line["generated_token_ids"]) for line in each] for each in lines]
    assert texts[0] == texts[1]
    assert {line["method"] for line in lines[0]} >= ({"ngram", *DRAFTERS} if kind == "greedy" else {"small_model"})


@pytest.mark.slow
def test_a_dead_rank_ends_the_run_as_failed(launched, workplace):
    codes, said, ended = launched
    assert codes[2] == 4 and ended == 1
    (sentence,) = (line for line in said.splitlines() if line.startswith("specdec: "))
    assert sentence.startswith("specdec: Rank 1 of the 2 processes")
    (experiment,) = MlflowClient(f"sqlite:///{workplace}/mlflow.db").search_experiments(filter_string="name='specdec'")
    (logged,) = MlflowClient(f"sqlite:///{workplace}/mlflow.db").search_runs([experiment.experiment_id])
    assert logged.info.status == "FAILED" and logged.data.tags["tensor_parallel"] == "2"


@pytest.mark.slow
def test_only_rank_0_writes_and_each_holds_its_own_heads_of_the_cache(launched, workplace):
    """One folder a run; a rank that wrote too would have made outputs/ of its own, or rounds twice."""
    made = {path.name for path in workplace.iterdir()}
    given = {"target", "small", "heads", "odd", "unplanned"}
    given |= {"mlflow.db", ".mlflow.db.lock", "mlartifacts", "together.json", "alone.json"}
    assert made - given == {"together", "alone", "together.ended.json", "alone.ended.json"}
    assert {path.name for path in (workplace / "together").iterdir()} == {"greedy", "sampled", "dead"}
    notes = json.loads((workplace / "together" / "greedy" / "plan.json").read_text())["notes"]
    assert "shared out over 2 processes" in notes[0]
    sessions = [json.loads((workplace / name / "greedy/session.json").read_text()) for name in ("together", "alone")]
    assert 2 * sessions[0]["cache_bytes"] == sessions[1]["cache_bytes"]


@pytest.fixture
def refused(in_process, undrawn_pictures, monkeypatch, workplace, tmp_path):
    """`refused(processes, arguments...)` runs specdec.run where torchrun would have started so many; it gives the
    sentence, and has met no other process.
    """
    monkeypatch.setattr(ranks, "join", lambda *_: pytest.fail("met the others before the check"))

    def call(processes: int, *arguments: str, module=run) -> str:
        if processes > 1:
            monkeypatch.setenv("WORLD_SIZE", str(processes))
            monkeypatch.setenv("RANK", "0")
        ended = in_process(module, *UNTRACKED, *arguments)
        assert ended.code == 2, ended.error
        assert not list(tmp_path.rglob("rounds*"))
        return ended.error

    return call


NO_TEXT = ("prompts=random_tokens", "prompts.vocabulary=64")  # these models have no tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "arguments", "says"),
    [
        (2, [], "target.tensor_parallel=1: torchrun started 2 processes"),
        (3, ["target.tensor_parallel=2"], "target.tensor_parallel=2: torchrun started 3 processes"),
        (2, ["target.tensor_parallel=2"], "model {pocket} has 5 attention heads, which 2 processes cannot share"),
        (4, ["target.tensor_parallel=4", "target.model={target}", *NO_TEXT], "has 2 key-value heads, which 4 process"),
        (2, ["target.tensor_parallel=2", "target.model={odd}", *NO_TEXT], "has 33 columns in its MLP, which 2 process"),
        (2, ["target.tensor_parallel=2", "target.model={unplanned}", *NO_TEXT], "(gpt2) has no plan in transformers"),
        (2, ["target.tensor_parallel=2", "target=random_110m"], "random weights are made, not read in shares"),
        (2, ["target.tensor_parallel=2", "measurement.peers=[transformers]"], "Bad value measurement.peers"),
        (2, ["target.tensor_parallel=2", "measurement.workers=2"], "Bad value measurement.workers=2"),
        (2, ["target.tensor_parallel=2", "+experiment=lenience"], "Bad value study"),
        (2, ["target.tensor_parallel=2", "target.device_map=auto"], "does not go with target.tensor_parallel=2"),
        (2, ["structure.gamma=1,2", "-m"], "torchrun started 2 processes, and a sweep (-m) is the work of one"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_loading(refused, workplace, processes, arguments, says):
    places = {name: workplace / name for name in ("target", "odd", "unplanned")}
    places |= {"pocket": ROOT / "specdec" / "pocket" / "target"}
    drafter = [] if "+experiment=lenience" in arguments else ["+drafter=ngram"]
    said = refused(processes, *drafter, *(argument.format(**places) for argument in arguments))
    assert says.format(**places) in said and said.count("\n") == 1


def test_other_commands_are_the_work_of_one_process(refused):
    assert "a training with +recipe= is the work of one" in refused(2, "+recipe=pocket_drafter", module=train)


def test_a_decision_of_one_process_is_its_own():
    assert ranks.agreed([3, 1]) == [3, 1]

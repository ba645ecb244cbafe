"""Bad input that no configuration alone can tell: models, files, folders, stores and servers. Each is answered in one
sentence, with its exit code, before anything is decoded. `tests/plan/test_refusals.py` has what configuration alone can
tell, `tests/models/test_load.py` folders of models, and the tests of each command what it reads.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from fixtures.command_lines import stand_in_for_hydra, values_of
from fixtures.commands import Ended

from specdec import convert, report, run, sync
from specdec.commands.failures import ending
from specdec.errors import SpecdecError

pytestmark = pytest.mark.slow


TEXT = "no model, no tree, no folder, no database\n"
SMALL = "run +drafter=ngram"
CAUSAL = "+drafter=ngram target=causal target.model="
NGRAM = "run +drafter=bigram drafter.corpus="
READ = f"{SMALL} prompts=jsonl prompts.path="
DOWN = "tracking.enabled=true tracking.uri=http://127.0.0.1:9 tracking.required=true"
LINES = f"{SMALL} target=replay target.vocab_size=9 target.path="

# The command line, and what the sentence must name: the file or the key.
BAD = {
    # Models.
    f"run {CAUSAL}nowhere/model": "nowhere/model",
    f"run {CAUSAL}text.txt": "text.txt",
    f"run {CAUSAL}./empty": "empty",
    f"run {CAUSAL}pocket target.device=cuda:7": "cuda",
    "run +drafter=small_model drafter.model=nowhere/model": "nowhere/model",
    "run +drafter=medusa drafter.model=nowhere.safetensors": "nowhere.safetensors",
    "run +drafter=medusa drafter.model=garbage.safetensors": "garbage.safetensors",
    # Files that a run reads.
    f"{READ}empty": "empty",
    f"{READ}garbage.jsonl": "garbage.jsonl",
    f"{READ}broken.jsonl": "broken.jsonl:2",
    f"{NGRAM}nowhere.txt": "nowhere.txt",
    f"{NGRAM}broken.jsonl drafter.field=tokens": "broken.jsonl",
    f"{NGRAM}tokens.jsonl drafter.field=tokens drafter.cache_dir=text.txt": "cache_dir",
    f"{SMALL} structure=tree structure.file=nowhere.yaml": "nowhere.yaml",
    f"{SMALL} structure=tree structure.file=text.txt": "text.txt",
    f"{LINES}nowhere.jsonl": "nowhere.jsonl",
    f"{LINES}tokens.jsonl": "tokens.jsonl",
    f"{LINES}recording.jsonl target.cost=nowhere": "nowhere",
    f"{SMALL} resume=nowhere": "nowhere",
    "advise +drafter=ngram advice.text=nowhere.jsonl": "nowhere.jsonl",
    f"certify {CAUSAL}nowhere/model": "nowhere/model",
    "train +heads=medusa target.model=nowhere/model": "nowhere/model",
    # Stores.
    f"{SMALL} tracking.enabled=true tracking.uri=sqlite:///text.txt": "text.txt",
    f"{SMALL} tracking.enabled=true tracking.uri=sqlite:///empty": "empty",
    f"{SMALL} tracking.enabled=true tracking.uri=ftp.example": "tracking.uri",
    f"{SMALL} {DOWN}": "does not answer",
}
# Hydra's own start meets these: folders, and the arguments of a sweep.
AT_THE_START = {
    "+drafter=ngram hydra.run.dir=text.txt": "text.txt",
    "+drafter=ngram hydra.run.dir=text.txt/below": "text.txt",
    "-m +drafter=ngram structure.gamma=1,2 hydra.sweep.dir=text.txt": "text.txt",
    "+drafter=ngram -m structure.gamma=0": "structure.gamma=0",
    f"-m +drafter=ngram structure.gamma=1,2 {DOWN}": "does not answer",
}
# Commands that read what runs left.
READING = [(report, "--import auto text.txt", "text.txt"), (sync, "empty", "empty"), (convert, "a.pt b c", "--help")]


@pytest.fixture
def surroundings(tmp_path: Path) -> Path:
    """Make the files and folders that are bad in some way."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "broken.jsonl").write_text('{"text": "a b c"}\n{"text": \n')
    (tmp_path / "tokens.jsonl").write_text('{"tokens": [0, 1, 2, 0, 1]}\n')
    (tmp_path / "recording.jsonl").write_text('{"prompt_token_ids": [1], "generated_token_ids": [2, 3]}\n')
    for name in ("garbage.jsonl", "garbage.safetensors"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00garbage" * 9)
    return tmp_path


def check(surroundings: Path, said: str, code: int, words: str) -> None:
    assert code == (4 if words == "does not answer" else 2), said
    assert words in said and "\n" not in said.strip() and "Traceback" not in said, said
    assert "for details" not in said.lower() and "report above" not in said, said
    assert (surroundings / "text.txt").read_text() == TEXT


@pytest.mark.parametrize("line", BAD)
def test_one_sentence_and_the_right_code(line: str, surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_hydra(monkeypatch, surroundings)
    tiny = " +debug=tiny" * (not line.startswith("train"))
    off = " tracking.enabled=false" * ("tracking.enabled" not in line)
    task, values = values_of(line + tiny + off)
    with pytest.raises(SpecdecError) as refusal:
        task(values)
    check(surroundings, *(ending(refusal.value) or ("", 0)), BAD[line])


@pytest.mark.parametrize(
    ("module", "line", "words"),
    [*((run, f"{line} +debug=tiny", words) for line, words in AT_THE_START.items()), *READING],
)
def test_whole_commands_say_one_sentence(
    module: ModuleType, line: str, words: str, surroundings: Path, in_process: Callable[..., Ended]
) -> None:
    off = ["tracking.enabled=false"] * (module is run and "tracking.enabled" not in line)
    ended = in_process(module, *line.split(), *off)
    before, mark, said = ended.error.partition("specdec: ")
    assert mark and "Traceback" not in before
    check(surroundings, said, ended.code, words)

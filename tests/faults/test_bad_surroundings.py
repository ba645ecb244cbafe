"""Bad input that no configuration alone can tell: models, files, folders, stores and servers. Each is answered in one
sentence, with its exit code, before anything is decoded. `tests/plan/test_refusals.py` has what configuration alone can
tell, `tests/models/test_load.py` folders of models, and the tests of each command what it reads.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from specdec import advise, certify, convert, report, run, sync, train


class Bad(NamedTuple):
    """One bad input.

    Attributes:
        call: arguments of the command, in a folder with the files of `surroundings`.
        words: what the sentence must name: the file or the key.
        code: exit code.
        module: the command.
    """

    call: str
    words: str
    code: int = 2
    module: object = run


TEXT = "no model, no tree, no folder, no database\n"
SMALL = "+drafter=ngram"
CAUSAL = f"{SMALL} target=causal target.model="
NGRAM = "+drafter=bigram drafter.corpus="
READ = f"{SMALL} prompts=jsonl prompts.path="
DOWN = "tracking.uri=http://127.0.0.1:9"
LINES = "target=replay target.vocab_size=9 target.path="

BAD = {
    # Models.
    "no such model": Bad(f"{CAUSAL}nowhere/model", "nowhere/model"),
    "a file for a model": Bad(f"{CAUSAL}text.txt", "text.txt"),
    "an empty folder for a model": Bad(f"{CAUSAL}./empty", "empty"),
    "no such GPU": Bad(f"{CAUSAL}pocket target.device=cuda:7", "cuda"),
    "no such model to draft with": Bad("+drafter=small_model drafter.model=nowhere/model", "nowhere/model"),
    "no such heads": Bad("+drafter=medusa drafter.model=nowhere.safetensors", "nowhere.safetensors"),
    "garbage for heads": Bad("+drafter=medusa drafter.model=garbage.safetensors", "garbage.safetensors"),
    # Files that a run reads.
    "a folder without prompts": Bad(f"{READ}empty", "empty"),
    "prompts that are no text": Bad(f"{READ}garbage.jsonl", "garbage.jsonl"),
    "a line that is no JSON": Bad(f"{READ}broken.jsonl", "broken.jsonl:2"),
    "no such corpus": Bad(f"{NGRAM}nowhere.txt", "nowhere.txt"),
    "a corpus without the key": Bad(f"{NGRAM}broken.jsonl drafter.field=tokens", "broken.jsonl"),
    "a file for a cache": Bad(f"{NGRAM}tokens.jsonl drafter.field=tokens drafter.cache_dir=text.txt", "cache_dir"),
    "no such tree": Bad(f"{SMALL} structure=tree structure.file=nowhere.yaml", "nowhere.yaml"),
    "no tree in a file": Bad(f"{SMALL} structure=tree structure.file=text.txt", "text.txt"),
    "no such recording": Bad(f"{SMALL} {LINES}nowhere.jsonl", "nowhere.jsonl"),
    "a recording of other lines": Bad(f"{SMALL} {LINES}tokens.jsonl", "tokens.jsonl"),
    "no such cost model": Bad(f"{SMALL} {LINES}recording.jsonl target.cost=nowhere", "nowhere"),
    "no such run to go on with": Bad(f"{SMALL} resume=nowhere", "nowhere"),
    "no such text for advice": Bad(f"{SMALL} advice.text=nowhere.jsonl", "nowhere.jsonl", module=advise),
    "a certificate without a model": Bad(f"{CAUSAL}nowhere/model", "nowhere/model", module=certify),
    "a training without a model": Bad(
        "+heads=medusa target.model=nowhere/model tracking.enabled=false", "nowhere/model", module=train
    ),
    # Folders that a run writes to.
    "a file for the output folder": Bad(f"{SMALL} hydra.run.dir=text.txt", "text.txt"),
    "a file above the output folder": Bad(f"{SMALL} hydra.run.dir=text.txt/below", "text.txt"),
    "a file for the folder of a sweep": Bad(f"-m {SMALL} structure.gamma=1,2 hydra.sweep.dir=text.txt", "text.txt"),
    "a sweep that is asked for after an override": Bad(f"{SMALL} -m structure.gamma=0", "structure.gamma=0"),
    # Stores.
    "a store that is no database": Bad(f"{SMALL} tracking.enabled=true tracking.uri=sqlite:///text.txt", "text.txt"),
    "a store that is a folder": Bad(f"{SMALL} tracking.enabled=true tracking.uri=sqlite:///empty", "empty"),
    "an address of no store": Bad(f"{SMALL} tracking.enabled=true tracking.uri=ftp.example", "tracking.uri"),
    "a required server that is down": Bad(
        f"{SMALL} tracking.enabled=true {DOWN} tracking.required=true", "does not answer", 4
    ),
    "the same for a sweep": Bad(
        f"-m {SMALL} structure.gamma=1,2 tracking.enabled=true {DOWN} tracking.required=true", "does not answer", 4
    ),
    # Commands that read what runs left.
    "an import of an unknown kind": Bad("--import auto text.txt", "text.txt", module=report),
    "an upload of nothing": Bad("empty", "empty", module=sync),
    "a conversion with too many names": Bad("a.pt b c", "--help", module=convert),
}


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


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_one_sentence_and_the_right_code(bad: Bad, surroundings: Path, in_process: Callable[..., object]) -> None:
    words = bad.call.split()
    if bad.module in (run, advise, certify):
        off = [] if "tracking.enabled=true" in words else ["tracking.enabled=false"]
        words = [*words[: words[0] == "-m"], "+debug=tiny", *off, *words[words[0] == "-m" :]]
    ended = in_process(bad.module, *words)
    assert ended.code == bad.code, ended.error
    said = [line for line in ended.error.splitlines() if line.startswith("specdec: ")]
    assert len(said) == 1 and bad.words in said[0] and "Traceback" not in ended.error, ended.error
    assert (surroundings / "text.txt").read_text() == TEXT
    assert "for details" not in ended.error.lower() and "report above" not in ended.error

"""Bad surroundings of whole commands: models, files, folders, stores and servers. Each is answered in one sentence,
with its exit code, before anything is decoded. Tests of each reader have what can be wrong with its files, and
`tests/plan/test_refusals.py` what configuration alone can tell.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.commands import Ended

from specdec import run

pytestmark = pytest.mark.slow


TEXT = "no folder, no database\n"
NGRAM = "+drafter=ngram"
DOWN = "tracking.enabled=true tracking.uri=http://127.0.0.1:9 tracking.required=true"

# The command line, and what the sentence must name: the file or the key.
BAD = {
    f"{NGRAM} target=causal target.model=nowhere/model": "nowhere/model",
    f"{NGRAM} prompts=jsonl prompts.path=garbage.jsonl": "garbage.jsonl",
    f"{NGRAM} tracking.enabled=true tracking.uri=sqlite:///text.txt": "text.txt",
    f"{NGRAM} {DOWN}": "does not answer",
    # Hydra's own start meets these: folders, and the arguments of a sweep.
    f"{NGRAM} hydra.run.dir=text.txt": "text.txt",
    f"{NGRAM} hydra.run.dir=text.txt/below": "text.txt",
    f"-m {NGRAM} structure.gamma=1,2 hydra.sweep.dir=text.txt": "text.txt",
    f"{NGRAM} -m structure.gamma=0": "structure.gamma=0",
    f"-m {NGRAM} structure.gamma=1,2 {DOWN}": "does not answer",
}


@pytest.fixture
def surroundings(tmp_path: Path) -> Path:
    """Make the files and folders that are bad in some way."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "garbage.jsonl").write_bytes(b"\xff\xfe\x00garbage" * 9)
    return tmp_path


@pytest.mark.parametrize(("line", "words"), BAD.items())
def test_whole_commands_say_one_sentence(
    line: str, words: str, surroundings: Path, in_process: Callable[..., Ended]
) -> None:
    off = ["tracking.enabled=false"] * ("tracking.enabled" not in line)
    ended = in_process(run, *line.split(), "+debug=tiny", *off)
    before, mark, said = ended.error.partition("specdec: ")
    assert mark and "Traceback" not in before and ended.code == (4 if words == "does not answer" else 2), said
    assert words in said and "\n" not in said.strip() and "Traceback" not in said, said
    assert "for details" not in said.lower() and "report above" not in said, said
    assert (surroundings / "text.txt").read_text() == TEXT

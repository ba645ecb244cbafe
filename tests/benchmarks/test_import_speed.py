"""The page of an imported trace of a million tokens, every gamma to 15 and predictions included: four minutes of one
core and a gigabyte.

The texts are public-domain books in the folder that SPECDEC_TEXTS names (`*.txt.gz`), read with GPT-2's `encoder.json`
and `vocab.bpe` in SPECDEC_GPT2; without them there is nothing to measure. Lengths are those of our own drafters at
every position.
"""

import gzip
import json
import os
import random
import time
from pathlib import Path

import pytest
from fixtures.measuring import Anywhere, alone
from tokenizers import ByteLevelBPETokenizer

from specdec.drafters import drafters
from specdec.drafters.base.lookup import Lookup
from specdec.records import TextStart
from specdec.structures import structures

pytestmark = pytest.mark.benchmark
TOKENS, PROMPT, LONGEST = 1_000_000, 64, 15
SECONDS, MEMORY = 240, 2**30
MEASURED = """
import resource, sys, time
from specdec.report import main
sys.argv = ["report", *sys.argv[1:]]
main()
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def books() -> list[list[int]]:
    """The tokens of the books, cut into texts of very different lengths, as requests have them."""
    folder, tokenizer = (os.environ.get(name) for name in ("SPECDEC_TEXTS", "SPECDEC_GPT2"))
    if not folder or not tokenizer:
        pytest.skip("set SPECDEC_TEXTS and SPECDEC_GPT2 to folders with books and with GPT-2's tokenizer")
    gpt2 = ByteLevelBPETokenizer(f"{tokenizer}/encoder.json", f"{tokenizer}/vocab.bpe")
    tokens: list[int] = []
    for path in sorted(Path(folder).glob("*.txt.gz")):
        tokens += gpt2.encode(gzip.decompress(path.read_bytes()).decode("utf-8")).ids
    dice, texts, start = random.Random(0), [], 0
    while start < min(TOKENS, len(tokens)):
        size = PROMPT + min(20_000, int(dice.lognormvariate(6.0, 0.9)) + 8)
        texts.append(tokens[start : start + size])
        start += size
    return texts


def accepted_lengths(drafter: Lookup, text: list[int], prompt: int) -> list[int]:
    """Draft at every position; return how many tokens a round which starts there would commit."""
    structure = structures.build({"name": "chain", "gamma": LONGEST})
    drafter.start(TextStart(tuple(text[:prompt]), len(text) + LONGEST + 1))
    lengths = []
    for place in range(prompt, len(text)):
        tokens, right = drafter.propose(structure).tokens, 0
        while right < len(tokens) and place + right < len(text) and tokens[right] == text[place + right]:
            right += 1
        lengths.append(right + 1)
        drafter.commit(text[place : place + 1])
    return lengths


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_a_million_tokens_in_four_minutes_and_a_gigabyte(name, books, group_values, tmp_path, log_figure):
    drafter = drafters.build(group_values("drafter", name), target=Anywhere())
    trace = tmp_path / "trace.jsonl"
    with trace.open("w") as file:
        for number, text in enumerate(books):
            line = {
                "id": f"t{number}",
                "prompt_token_ids": text[:PROMPT],
                "generated_token_ids": text[PROMPT:],
                f"acc_{name}": {"acc_len": accepted_lengths(drafter, text, PROMPT)},
            }
            file.write(json.dumps(line) + "\n")
    began = time.perf_counter()
    seconds, peak = map(float, alone(MEASURED, "--import", "accepted_lengths", trace, "--out", tmp_path))
    log_figure(
        **{"what": "page of an imported trace", "drafter": name, "texts": len(books)},
        tokens=sum(map(len, books)) - PROMPT * len(books),
        **{"cpu_seconds": round(seconds, 1), "wall_seconds": round(time.perf_counter() - began, 1)},
        peak_mib=round(peak / 2**20),
    )
    assert seconds < SECONDS and peak < MEMORY

"""Accuracy of the heads that come with specdec on every held-out text, with counts by text: for intervals, and for
claims about two kinds of heads at the same positions. `analysis/research/heads_accuracy.py` reads what it writes.
"""

import hashlib

import pytest
import torch
from torch import Tensor

from specdec.analysis.research.heads_accuracy import KINDS
from specdec.prompts.stdlib import module_source
from specdec.published.network_files import TRAINED_HEADS, shipped_file
from specdec.text.document_store import encode_texts
from specdec.text.python_sources import held_out_modules
from specdec.training.data.sequences import SpecialTokens
from specdec.training.students.head_student import HeadStudent
from specdec.training.students.loss_and_accuracy import HeadAccuracy
from specdec.training.students.state_student import load_target

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

LENGTH, BATCH = 256, 16  # tokens of a piece, as the heads were trained; pieces evaluated together
PIECES = 16  # of a text at most, spread over it: more of the longest texts would say little more about texts


def pieces(tokens: list[int], padding: int) -> tuple[Tensor, Tensor]:
    """Cut a text into pieces and keep at most PIECES [N, LENGTH], with what is scored: all but the padding."""
    count = -(-len(tokens) // LENGTH)
    filled = torch.tensor(tokens + [padding] * (count * LENGTH - len(tokens))).view(count, LENGTH)
    scored = (torch.arange(count * LENGTH) < len(tokens)).view(count, LENGTH)
    kept = torch.linspace(0, count - 1, min(count, PIECES)).long()
    return filled[kept], scored[kept]


@torch.inference_mode()
def test_accuracy_of_the_shipped_heads_by_text(group_values, log_figure):
    values = group_values("target", "causal", dtype="float32", compile=False)
    target = load_target(values, torch.device("cpu"))
    special = SpecialTokens.of(target.tokenizer)
    heads = {name: TRAINED_HEADS.load(shipped_file(name), target) for name in KINDS}
    # All read the last layer's states.
    assert {each.config.offset_of(target.hidden.layers) for each in heads.values()} == {0}
    by_text = {name: {"asked": [], "top1": [], "top5": []} for name in heads}
    texts = {module: source for module in held_out_modules() if (source := module_source(module))}
    for source in texts.values():
        encoded = map(int, encode_texts(target.tokenizer, [source])[0])
        tokens, scored = pieces([*special.before, *encoded], special.padding)
        counts = {name: HeadAccuracy(len(each)) for name, each in heads.items()}
        for part in range(0, len(tokens), BATCH):
            some, where = tokens[part : part + BATCH], scored[part : part + BATCH]
            states, _ = target.hidden.sequence(some, 0)
            for name, each in heads.items():
                HeadStudent.count(counts[name], each, states, some, where)
        for name, count in counts.items():
            by_text[name]["asked"].append(count.seen.tolist())
            by_text[name]["top1"].append(count.hits[:, 0].tolist())
            by_text[name]["top5"].append(count.hits[:, 4].tolist())
    for name, found in by_text.items():
        stored = TRAINED_HEADS.read(shipped_file(name))
        log_figure(
            heads=name,
            file_sha256=hashlib.sha256(shipped_file(name).read_bytes()).hexdigest(),
            **{"target": stored.target, "trained_tokens": stored.training["tokens"]},
            text="held-out modules of the standard library",
            **{"piece_tokens": LENGTH, "pieces": PIECES, "dtype": "float32", "texts": list(texts)},
            **found,
        )
        assert sum(asked[0] for asked in found["asked"]) > 50_000

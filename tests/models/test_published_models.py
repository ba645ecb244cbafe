"""The small published models of ../shared/data, decoded through our loop to what is stated beside them.

Nothing of them is in this repository; without the folder these tests are skipped with its name. That drafts leave a
model's own text alone is shown in `contracts/test_greedy_identity.py`, and on a real model in `test_smollm2.py`.
"""

import pytest
from fixtures.decoding import decode, seeded

from specdec.drafters.small_model import SmallModel
from specdec.targets.causal import Causal

START = 1  # <s> begins a story, and a model that has finished one writes it again


@pytest.fixture
def target_of(published_model, sampling):
    def make(name):
        target = Causal(published_model(name), sampling(temperature=0.0))
        target.end_tokens = frozenset()
        return target

    return make


def test_stories260k_writes_its_known_text(target_of, tok512):
    """The text that karpathy/llama2.c states for this checkpoint: 200 greedy tokens from <s>, 464 characters."""
    generation = decode(target_of("stories260K"), "none", 4, [START], 200, **seeded())
    text = tok512.decode(list(generation.tokens))
    assert len(generation.tokens) == 200 and len(text) == 464
    assert text.startswith("Once upon a time, there was a little girl named Lily.") and text.endswith("so she")


@pytest.mark.slow
def test_a_published_pair(target_of, published_model, tok512, shared_data):
    """stories260K drafts for bit_model_3M in float32, gamma 4: 5 prompts of 20 tokens, 80 new ones. Elsewhere 3.46
    tokens a round were measured on 16 such prompts.
    """
    target = target_of("bit_model_3M")
    drafter = SmallModel(published_model("stories260K"), target)
    written = rounds = 0
    tokens = tok512.encode((shared_data / "text/tinystories/valid_first.txt").read_text()[:20_000])
    for start in range(0, 5 * 255, 255):
        prompt = [START, *tokens[start : start + 19]]
        drafted, plain = (decode(target, each, 4, prompt, 80, **seeded()) for each in (drafter, "none"))
        assert drafted.tokens == plain.tokens
        written, rounds = written + len(drafted.tokens), rounds + len(drafted.rounds)
    assert written == 5 * 80 and written / rounds == pytest.approx(3.46, abs=0.3)

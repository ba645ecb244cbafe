"""Speculation on tiny random T5s in float64: greedy output is the model's own, and sampling sees exact laws.

The reference is transformers' own `generate` and plain forward passes, which know nothing of our caches; drafters and
verifiers come from the registries, those that are models as T5s themselves. Every drafter is tried; structures,
verifiers and both kinds of T5 take turns, and the second tier has every drafter with every verifier and structure.
"""

from functools import cache

import pytest
import torch
from fixtures.decoding import decode, seeded
from fixtures.drafting import shaken
from fixtures.tiny_models import ENCODER_DECODERS
from fixtures.two_tiers import pairwise

from specdec.certification.greedy_identity import PROMPT
from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.records import Request
from specdec.replay.expected_rounds import TextReplay
from specdec.sampling import probabilities
from specdec.structures.base import structures
from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder
from specdec.verifiers.base import verifiers

pytestmark = pytest.mark.usefixtures("models_opened_once")
LENGTH = 18
LOSSLESS = [name for name in verifiers.names() if verifiers.get(name).capabilities.lossless]
CASES = [
    (kind, drafter, verifier, shape, gamma)
    for kind in sorted(ENCODER_DECODERS)
    for drafter in drafters.names()
    for verifier in LOSSLESS
    for shape in structures.names()
    for gamma in ((1, 4) if shape == "chain" else (3,))
    if drafters.get(drafter).capabilities.lossless
    and shape in drafters.get(drafter).capabilities.fills & verifiers.get(verifier).capabilities.handles
]
IN_TURN = pairwise(CASES, [(0, 3), (1, 1), (2, 3), (3, 4)])  # 1, 1: each drafter
PRODUCT = {case for case in CASES if case[0] == CASES[0][0] and case[4] > 1}


@pytest.fixture(scope="module")
def own_greedy(tiny_encoder_decoder):
    """`own_greedy("t5")`: what transformers' generate writes, without the start token, computed once."""

    @cache
    def run(kind: str) -> tuple[int, ...]:
        output = tiny_encoder_decoder(kind).generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            max_new_tokens=LENGTH,
            do_sample=False,
        )
        text = tuple(output[0, 1:].tolist())
        assert len(set(text)) >= 6, "a text that repeats one token would hide nearly every fault"
        return text

    return run


@pytest.fixture(scope="module")
def target_of(tiny_encoder_decoder, sampling):
    @cache
    def make(kind: str, temperature: float, top_k: int | None = None) -> EncoderDecoder:
        how = sampling(temperature=temperature, top_k=top_k)
        return EncoderDecoder(tiny_encoder_decoder(kind), how)

    return make


@pytest.fixture(scope="module")
def shaken_folder(tiny_encoder_decoder, tmp_path_factory):
    """`shaken_folder("t5")` has the target's model, its weights moved so that the two agree on part of a text."""

    @cache
    def save(kind: str) -> str:
        folder = tmp_path_factory.mktemp(kind)
        shaken(tiny_encoder_decoder(kind), 0.05).save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="module")
def drafter_of(group_values, drafter_values, shaken_folder):
    """`drafter_of("ngram", target, "t5")`: a registered drafter; one that is a model gets a T5 of the target's kind."""

    def build(name: str, target: EncoderDecoder, kind: str):
        values = drafter_values(name, target.vocab_size, target)
        small = group_values("drafter", "small_model", model=shaken_folder(kind))
        if "name" in values.get("of", {}):
            values = {**values, "of": small}
        elif "of" in values:  # several
            parts = {label: small if part["name"] == small["name"] else part for label, part in values["of"].items()}
            values = {**values, "of": parts}
        return drafters.build(small if name == "small_model" else values, target=target)

    return build


def law(model, text, how):
    """Standardised laws after every prefix of `text`, by a forward pass of the model alone."""
    output = model(input_ids=torch.tensor([PROMPT]), decoder_input_ids=torch.tensor([[0, *text]]), use_cache=False)
    return probabilities(output.logits[0], how)


@pytest.mark.parametrize(
    ("encoder_decoder", "drafter", "verifier", "shape", "gamma"),
    [*sorted(IN_TURN), *(pytest.param(*case, marks=pytest.mark.slow) for case in sorted(PRODUCT - IN_TURN))],
)
def test_output_is_the_models_own(
    encoder_decoder, own_greedy, target_of, drafter_of, make_structure, drafter, verifier, shape, gamma
):
    target, own = target_of(encoder_decoder, 0.0), own_greedy(encoder_decoder)
    try:
        built = drafter_of(drafter, target, encoder_decoder)
        reference = own if built.capabilities.needs_reference else None
        how = {"reference": reference, **seeded()}
        generation = decode(target, built, make_structure(shape, gamma), PROMPT, LENGTH, verifier, **how)
    except UsageError as refusal:
        assert "encoder-decoder" in str(refusal)
        pytest.skip(str(refusal))
    assert generation.tokens == own
    assert sum(len(row.committed) for row in generation.rounds) == LENGTH
    if drafter in ("oracle", "small_model"):
        accepted = sum(row.accepted for row in generation.rounds)
        assert 0 < accepted and any(row.rejected for row in generation.rounds), "both branches must have been taken"


def test_sampling_sees_exact_laws(encoder_decoder, target_of, drafter_of, make_structure, monkeypatch):
    """p and q of every round of a sampled text, rejections included: with them, the rules' own tests do the rest."""
    target = target_of(encoder_decoder, 0.8, 9)
    drafter = drafter_of("small_model", target, encoder_decoder)
    seen = []
    verify = target.verify
    monkeypatch.setattr(target, "verify", lambda draft: seen.append((draft, verify(draft))) or seen[-1][1])
    shape = make_structure("chain", 4)
    generation = decode(target, drafter, shape, PROMPT, LENGTH, "speculative_sampling", **seeded())
    assert any(row.rejected for row in generation.rounds) and any(row.accepted for row in generation.rounds)
    text: list[int] = []
    for (draft, p), row in zip(seen, generation.rounds, strict=True):
        whole = [*text, *draft.tokens.tolist()]
        assert (p - law(target.model, whole, target.sampling)[len(text) :]).abs().max() < 1e-12
        if len(draft):
            assert (draft.q - law(drafter.model, whole, target.sampling)[len(text) : -1]).abs().max() < 1e-12
        text += row.committed


def test_the_drafters_laws_are_those_it_drafts_from(encoder_decoder, target_of, drafter_of, own_greedy):
    """The teacher-forced pass that replay takes, against alpha counted by hand."""
    target = target_of(encoder_decoder, 1.0)
    drafter = drafter_of("small_model", target, encoder_decoder)
    text = own_greedy(encoder_decoder)
    p, q = (law(model, text, target.sampling)[:-1] for model in (target.model, drafter.model))
    assert (drafter.laws(PROMPT, text) - q).abs().max() < 1e-12
    structure = structures.build({"name": "chain", "gamma": 4})
    along = TextReplay(drafter, target, structure, text, Request(PROMPT, len(text))).agreement()
    assert along.beta == pytest.approx(torch.minimum(p, q).sum(-1).tolist(), abs=1e-12)
    assert 0.05 < along.beta.mean() < 0.95


def test_both_models_of_a_pair_are_of_one_kind(group_values, shaken_folder, tiny_model, target_of, sampling, tmp_path):
    causal = Causal(tiny_model("llama"), sampling())
    with pytest.raises(UsageError, match="encoder-decoder") as raised:
        drafters.build(group_values("drafter", "small_model", model=shaken_folder("t5")), target=causal)
    assert shaken_folder("t5") in str(raised.value) and "\n" not in str(raised.value)
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="encoder-decoder"):
        drafters.build(group_values("drafter", "small_model", model=str(tmp_path)), target=target_of("t5", 1.0))

"""Measures what a call on several tokens costs in a mixture of experts: t(n) / t(1) as timed, beside the bytes of
weights that its n tokens read over those of one token, with the experts that they chose (recorded), and with as many as
independent tokens would choose, by their own chances and by equal ones.

Two mixtures are too large for the caches: one of random weights, and one that is trained for a minute on the spot, so
that its routers are not even.
"""

import gzip
import time
from statistics import median

import numpy as np
import pytest
import torch
from fixtures.measuring import VOCABULARY, load, seconds_of
from tokenizers import ByteLevelBPETokenizer

from specdec.compiled.passes import compile_decoder
from specdec.models.decoder import Decoder
from specdec.models.routing import Mixture
from specdec.records import chain_tree
from specdec.theory.roofline import distinct_experts

pytestmark = pytest.mark.benchmark

SIZES = range(1, 17)
CONTEXT, PLACES = 64, 24  # cached tokens behind which a text is verified, at so many places of it
SECONDS = 60.0  # of the timed calls of a model
TRAINING_S = 90.0
HELD_OUT = 8192  # tokens of the text that is verified
SHAPE = dict(num_hidden_layers=6, hidden_size=512, intermediate_size=768, num_attention_heads=8, num_key_value_heads=2)
SHAPE |= dict(num_local_experts=16, num_experts_per_tok=2, vocab_size=VOCABULARY, max_position_embeddings=1024)


def book(folder) -> list[int]:
    """Return the tokens of a book, by a tokenizer of its own."""
    text = gzip.decompress((folder / "text" / "gutenberg" / "darwin.txt.gz").read_bytes()).decode("ascii", "replace")
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text[:1_000_000]], vocab_size=VOCABULARY, show_progress=False)
    return tokenizer.encode(text[:600_000]).ids


def trained(model, tokens: list[int]) -> list[float]:
    """Train a model on tokens for `TRAINING_S`, without the loss that evens routers out; return the losses."""
    optimiser = torch.optim.AdamW(model.train().parameters(), lr=1e-3)
    source, dice = torch.tensor(tokens), torch.Generator().manual_seed(0)
    losses, until = [], time.perf_counter() + TRAINING_S
    while time.perf_counter() < until:
        starts = torch.randint(len(source) - 128, (4,), generator=dice).tolist()
        batch = torch.stack([source[start : start + 128] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["random", "trained"])
@pytest.mark.timeout(1800)
def test_time_of_a_call_by_the_experts_that_it_reads(name, request, log_figure):
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    model = MixtralForCausalLM(MixtralConfig(**SHAPE, bos_token_id=None, eos_token_id=None))
    losses, text = [], torch.randint(VOCABULARY, (HELD_OUT,)).tolist()
    if name == "trained":
        tokens = book(request.getfixturevalue("shared_data"))
        losses, text = trained(model, tokens[:-HELD_OUT]), tokens[-HELD_OUT:]
    with torch.inference_mode():
        figures = measured(model.eval().requires_grad_(False), text)
    log_figure(
        **{"what": name, "weights": sum(weight.numel() for weight in model.parameters())},
        **{"experts": SHAPE["num_local_experts"], "chosen": SHAPE["num_experts_per_tok"], "context": CONTEXT},
        **{"losses": [round(losses[0], 2), round(median(losses[-10:]), 2)] if losses else [], "steps": len(losses)},
        **{"kernel": model.config._experts_implementation, "threads": torch.get_num_threads()},
        **{"n": list(SIZES), **figures, **load()},
    )
    # Generous, because a shared machine may be busy: a call grows with what it reads, and not with its tokens.
    assert 1 < figures["timed"][-1] < max(SIZES) / 2


def measured(model, text: list[int]) -> dict[str, list[float]]:
    """Return t(n) / t(1) and its predictions for all `SIZES`: means over places of the text, and medians of times."""
    mixture, decoder = Mixture.of(model), Decoder(model, "mixture", 512)
    widest, experts = max(SIZES), SHAPE["num_local_experts"]
    places = np.linspace(CONTEXT, len(text) - widest, PLACES).astype(int).tolist()

    def begin(place: int) -> None:
        decoder.start(text[place - CONTEXT : place], CONTEXT + widest)

    def call(place: int, n: int) -> None:
        decoder.length = CONTEXT - 1
        decoder.forward(torch.tensor(text[place - 1 : place - 1 + n]), chain_tree(n - 1))

    chosen = []  # [places, layers, widest, k]: a token chooses the same whatever follows it in its call
    for place in places:
        begin(place)
        with mixture.recorded() as choices:
            call(place, widest)
        chosen.append(np.stack([calls[0].numpy() for calls in choices]))
    used = np.stack(chosen)[..., None] == np.arange(experts)  # [places, layers, widest, k, E]
    laws = used.any(axis=3).mean(axis=(0, 2))  # [layers, E]
    laws_of = {"independent": laws, "uniform": np.full_like(laws, mixture.chosen[0] / experts)}
    distinct = {name: np.stack([distinct_experts(law, n) for n in SIZES]) for name, law in laws_of.items()}
    distinct["recorded"] = np.stack([used[:, :, :n].any(axis=(2, 3)).sum(-1).mean(axis=0) for n in SIZES])

    compile_decoder(decoder, set(SIZES), CONTEXT + widest, "trace")
    times: dict[int, list[float]] = {n: [] for n in SIZES}
    order, until = np.random.default_rng(0), time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(times[1]) < PLACES:
        place = places[len(times[1]) % PLACES]
        begin(place)
        call(place, 1)  # the processor's caches are as a call left them
        for n in order.permutation(SIZES).tolist():
            times[n].append(seconds_of(lambda place=place, n=n: call(place, n)))
    one, medians = mixture.weight_bytes(mixture.chosen), [median(times[n]) for n in SIZES]
    return {
        **{name: np.round(each.mean(axis=1), 3).tolist() for name, each in distinct.items()},
        **{f"read_{name}": np.round(mixture.weight_bytes(each) / one, 3).tolist() for name, each in distinct.items()},
        "timed": np.round(np.array(medians) / medians[0], 3).tolist(),
        "ms": np.round(1e3 * np.array(medians), 3).tolist(),
        "largest_chance": laws.max(axis=1).round(3).tolist(),
        "read_mb": [round(float(one) / 1e6, 1)],
        "gigabytes_a_second": [round(float(one / medians[0] / 1e9), 2)],
    }

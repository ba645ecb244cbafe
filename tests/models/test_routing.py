"""Mixtures are recognised whatever their router is, and what is recorded of it is what transformers gives out."""

from functools import partial

import pytest
import torch
from fixtures.tiny_mixtures import CHOSEN, EXPERTS, FAMILIES, LAYERS, routed, tiny_mixture
from transformers import Llama4ForCausalLM, Llama4TextConfig

from specdec.models.routing import Mixture, names_experts
from specdec.targets.causal import Causal, matrix_products

TOKENS = [7, 3, 60, 7, 21, 4, 4, 33, 58]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@torch.inference_mode()
def test_choices_and_bytes_of_a_family(family):
    model = tiny_mixture(family)
    mixture = Mixture.of(model)
    assert mixture is not None and names_experts(model.config)
    assert mixture.experts.tolist() == [EXPERTS] * LAYERS and mixture.chosen.tolist() == [CHOSEN] * LAYERS
    with mixture.recorded() as choices:
        for part in (TOKENS[:5], TOKENS[5:]):
            model(input_ids=torch.tensor([part]), use_cache=False)
    model(input_ids=torch.tensor([TOKENS]), use_cache=False)
    expected = [[layer.sort().values for layer in routed(model, part)] for part in (TOKENS[:5], TOKENS[5:])]
    assert [len(calls) for calls in choices] == [2] * LAYERS, "after the block nothing is recorded"
    for layer, calls in enumerate(choices):
        assert all(torch.equal(call.sort().values, part[layer]) for call, part in zip(calls, expected, strict=True))
    everything = sum(weight.nbytes for weight in model.parameters())
    looked_up = 0 if model.config.tie_word_embeddings else model.get_input_embeddings().weight.nbytes
    assert mixture.weight_bytes([[EXPERTS] * LAYERS]) == pytest.approx(everything - looked_up)
    grown = mixture.weight_bytes([[2, 3], [3, 3]])
    assert grown[1] - grown[0] == pytest.approx(mixture.expert_bytes[0])


def test_the_products_of_a_mixture_hold_its_weights_and_read_those_of_the_experts():
    products = matrix_products(model := tiny_mixture("mixtral"))
    experts = [product for product in products if product.experts > 1]
    assert {(product.experts, product.chosen, product.matrices) for product in experts} == {(EXPERTS, CHOSEN, LAYERS)}
    held = sum(product.experts * product.values(0) for product in products)
    routers = sum(weight.numel() for name, weight in model.named_parameters() if "gate.weight" in name)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
    assert held == matrices - routers - 61 * 32  # embeddings are looked up


def test_what_is_no_mixture_and_a_router_that_is_not_known(tiny_model, sampling):
    """Llama 4 computes every expert for every token: its experts are not told which tokens are theirs."""
    target = partial(Causal, sampling=sampling(temperature=0.0))
    dense = tiny_model("llama")
    assert Mixture.of(dense) is None and not names_experts(dense.config)
    assert not target(dense).remarks and target(tiny_mixture("olmoe")).mixture is not None
    torch.manual_seed(0)
    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=24, intermediate_size_mlp=24, num_hidden_layers=1)
    sizes |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=4, pad_token_id=None)
    unknown = Llama4ForCausalLM(Llama4TextConfig(**sizes, layer_types=["full_attention"]))
    assert Mixture.of(unknown) is None and names_experts(unknown.config) and matrix_products(unknown) == []
    apart = target(tiny_mixture("olmoe"))
    apart.in_one_piece = False
    assert apart.mixture is None and "no factor `experts`" in "".join(apart.remarks)

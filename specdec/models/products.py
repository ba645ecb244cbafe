"""Reads the matrix products of a transformers decoder off its modules, for `specdec.theory.roofline`."""

from collections import Counter
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from specdec.models.routing import Mixture
from specdec.theory.roofline import Product

_COVERED = 0.9  # least share of the multiplied parameters that the linear layers must hold


def matrix_products(model: Any) -> list[Product]:
    """List linear layers and stacks of experts grouped by name and shape, in the order of the model, then attention.

    The list is empty where they hold less than `_COVERED` of the weights (experts that are not recognised): a roofline
    without most of the weights would mislead.
    """
    weights: Counter[tuple[str, int, int, int, int, int]] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            # Conv1D, which GPT-2 uses, stores [inputs, outputs]; Linear stores the transpose.
            outputs, inputs = module.weight.shape if isinstance(module, nn.Linear) else module.weight.shape[::-1]
            weights[name.rpartition(".")[2], inputs, outputs, module.weight.element_size(), 1, 1] += 1
    if (mixture := Mixture.of(model)) is not None:
        for layer, chosen in zip(mixture.layers, mixture.chosen.tolist(), strict=True):
            for name, stack in layer.named_parameters(recurse=False):
                if stack.dim() == 3 and chosen:  # [E, outputs, inputs], or transposed
                    experts, outputs, inputs = stack.shape
                    weights[name, inputs, outputs, stack.element_size(), experts, chosen] += 1
    products = [
        Product(name, ins, outs, number, size, experts=experts, chosen=chosen)
        for (name, ins, outs, size, experts, chosen), number in weights.items()
    ]
    # A tied output head is multiplied too, though the same weight is looked up at the input.
    head = getattr(model.get_output_embeddings(), "weight", None)
    looked_up = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)} - {head}
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1 and weight not in looked_up)
    covered = sum(product.experts * product.values(0) for product in products)
    if covered < _COVERED * matrices:
        return []
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    number, value = config.num_hidden_layers * kv_heads, model.dtype.itemsize
    return [
        *products,
        Product("attention scores", size, None, number, value, queries=heads // kv_heads),
        Product("attention values", None, size, number, value, queries=heads // kv_heads),
    ]

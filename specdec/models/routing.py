"""Finds the experts of a transformers mixture, and writes down which of them its routers choose for every token.

A layer of experts is recognised by two things that such layers of transformers 5 have in common, whatever the router
is: a stack of weights over the experts, and a `forward` that is handed the experts of every token by their numbers.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

_CHOICES = ("top_k_index", "router_indices")  # what layers call the numbers [T, k] of the experts of each token


def names_experts(config: Any) -> bool:
    """Return whether the text configuration of a model speaks of several experts, recognised or not."""
    parts = [config, *(each for each in vars(config).values() if isinstance(each, PreTrainedConfig))]  # DBRX nests them
    values = [value for part in parts for value in vars(part).items()]
    return any("expert" in key and isinstance(value, int) and value > 1 for key, value in values)


@dataclass(frozen=True)
class Mixture:
    """The layers of experts of a model, in its order: the modules that hold the experts, each with its weights as
    stacks [E, ...], and the argument of its `forward` that says which experts each token takes.
    """

    model: Any
    layers: Mapping[nn.Module, str]

    @classmethod
    def of(cls, model: Any) -> "Mixture | None":
        """Return the mixture that a model is; None for a dense model, and where no layer of experts is recognised."""
        layers = {}
        for module in model.modules():
            stacks = [weight.shape[0] for weight in module.parameters(recurse=False) if weight.dim() == 3]
            name = next((name for name in _CHOICES if name in signature(type(module).forward).parameters), None)
            if stacks and name is not None and len({*stacks}) == 1 < stacks[0]:
                layers[module] = name
        return cls(model, layers) if layers else None

    @cached_property
    def experts(self) -> np.ndarray:
        """The number of experts E of each layer [L]."""
        return np.array([next(w.shape[0] for w in layer.parameters(False) if w.dim() == 3) for layer in self.layers])

    @cached_property
    def chosen(self) -> np.ndarray:
        """The number of experts k that one token chooses in each layer [L], found by a call on one token."""
        with self.recorded() as choices, torch.inference_mode():
            device = self.model.get_input_embeddings().weight.device
            self.model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=False)
        return np.array([calls[0].shape[1] if calls else 0 for calls in choices])

    @cached_property
    def expert_bytes(self) -> np.ndarray:
        """The bytes of one expert of each layer [L]."""
        return np.array([sum(w.nbytes for w in layer.parameters(False)) for layer in self.layers]) / self.experts

    @cached_property
    def shared_bytes(self) -> float:
        """The bytes of all weights that every call reads: all but experts and embeddings that are only looked up."""
        embedding, head = self.model.get_input_embeddings().weight, self.model.get_output_embeddings()
        apart = {id(w) for layer in self.layers for w in layer.parameters(False)}
        apart |= set() if head is not None and head.weight is embedding else {id(embedding)}
        return float(sum(weight.nbytes for weight in self.model.parameters() if id(weight) not in apart))

    def weight_bytes(self, distinct: np.ndarray) -> np.ndarray:
        """Return the bytes of weights that calls [...] read, given the distinct experts [..., L] that they choose."""
        return self.shared_bytes + np.asarray(distinct) @ self.expert_bytes

    @contextmanager
    def recorded(self) -> Iterator[list[list[Tensor]]]:
        """Yield a list for each layer, to which every call of the model's own modules adds the experts [T, k] of its
        tokens. What serves calls in place of the modules (compiled or traced passes) adds nothing.
        """
        choices: list[list[Tensor]] = [[] for _ in self.layers]

        def keep(name: str, calls: list[Tensor], module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            bound = signature(type(module).forward).bind(module, *args, **kwargs)
            calls.append(bound.arguments[name].detach().flatten(0, -2))

        with ExitStack() as hooks:
            for (layer, name), calls in zip(self.layers.items(), choices, strict=True):
                hooks.callback(layer.register_forward_pre_hook(partial(keep, name, calls), with_kwargs=True).remove)
            yield choices

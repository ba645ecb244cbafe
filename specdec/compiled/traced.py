"""Traced passes: Dynamo's record of one forward pass, replayed without the Python of the model's modules.

The kernels write the same bits, so that the numbers are those of the eager pass.
"""

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

from specdec.compiled.packed_products import pack_products
from specdec.compiled.weight_reads import read_weights_first
from specdec.models.cache import KVCache
from specdec.models.forward_pass import Pass, only_sequence, run_model
from specdec.models.masks import Masks

Result = TypeVar("Result")

_TYPICAL = 5  # tokens: the calls on more than one are timed with as many as the default drafts of four ask for


class TracedStep:
    """One record for every context length up to the cache's capacity, replayed as it is.

    Only Dynamo's guards on shapes are kept: the model and the cache are fixed when the step is made, and checking them
    would cost about 0.7 ms a call for a model of eight layers. The first call raises Dynamo's error for a model whose
    pass does not fit in one graph, because it decides by numbers that it computes.

    Attributes:
        packed, read_first: number of matrix products with packed weights (`pack_products`), and of those whose weights
            are read first (`read_weights_first`), once the first call was made.
    """

    def __init__(self, model: Any, cache: KVCache, tokens: int | None, kept: Sequence[int] = ()) -> None:
        """
        Args:
            tokens: number of tokens in every call; None for any number from 2 on. If the first call is then a batch,
                all calls are batches, of any number of sequences from 2 on; so they are for a given number.
            kept: layers whose states are wanted (see `run_model`).
        """

        def step(tokens: Tensor, positions: Tensor, masks: Masks) -> Pass:
            cache.length = next(iter(masks.values())).shape[-1] - tokens.shape[-1]
            return run_model(model, cache, kept, tokens, positions, masks)

        self._step = recorded(step, backend=self._replayed)
        self._any = tokens is None
        self._made = False
        self.packed = self.read_first = 0

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Masks) -> Pass:
        """Evaluate tokens [N] at positions [N], or a batch of chains [B, N], whose logits are then [B, N, V]."""
        step = self._step if self._made else self._make
        batch = tokens if tokens.dim() == 2 else tokens.unsqueeze(0)
        result = step(batch, positions.expand(len(batch), -1), masks)
        return result if tokens.dim() == 2 else only_sequence(result)

    def _replayed(self, record: torch.fx.GraphModule, inputs: Sequence[Tensor], **options: Any) -> Callable[..., Any]:
        """Return a record of a call to be replayed: a backend of `torch.compile`, given example inputs and options."""
        self.packed = pack_products(record)
        self.read_first = read_weights_first(record, _TYPICAL if self._any else 1)
        # A module looks its weights up in Python, at every use: 2% of a call of a small model.
        vars(record).update(record.named_parameters())
        vars(record).update(record.named_buffers())
        return record.forward

    def _make(self, tokens: Tensor, positions: Tensor, masks: Masks) -> Pass:
        from torch._inductor import config

        for view in masks.values():
            torch._dynamo.mark_dynamic(view, [2, 3] if self._any else 3)
        dynamic = [*([0] if len(tokens) > 1 else []), *([1] if self._any else [])]
        for each in (tokens, positions) if dynamic else ():
            torch._dynamo.mark_dynamic(each, dynamic)
        self._made = True
        # Set globally, not as an option of `torch.compile`: Dynamo itself must know, to keep weights out of the inputs.
        with config.patch(freezing=True):
            return self._step(tokens, positions, masks)


def recorded(function: Callable[..., Result], **options: Any) -> Callable[..., Result]:
    """Compile a function as one graph, with `options` of `torch.compile`. All later calls must have the shapes of the
    first one, but for those that were marked as varying: nothing else of Dynamo's guards is kept.

    The function is copied together with its code object: Dynamo files its records by code object, and without guards on
    the cache it could not tell the records of two caches apart.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    own = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    kept: dict[str, Any] = {"guard_filter_fn": lambda guards: [guard.guard_type == "SHAPE_ENV" for guard in guards]}
    return torch.compile(own, fullgraph=True, options=kept, **options)

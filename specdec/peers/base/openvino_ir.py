"""A loaded decoder as a model of OpenVINO: a float32 graph that holds keys and values as its state.

Inputs and state stand as OpenVINO GenAI looks for them, and attention stays one operation, which it replaces by its
paged attention. The graph comes from OpenVINO's frontend for PyTorch, and not from `openvino.convert_model`, which
reports every conversion to its maker.
"""

import copy
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from specdec.models.attention import stock_attention
from specdec.models.cache import CACHE

MODEL_FILE = "openvino_model.xml"  # as GenAI looks for it
_INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")
_SEQUENCES, _TOKENS, _PAST = 2, 5, 3  # of the example: all differ, or the graph would take equal ones for one size


def write_openvino(model: Any, kinds: Collection[str], folder: Path) -> None:
    """Write a decoder-only model into a folder that exists; the model itself stays as it is.

    Every layer sees the whole text: windows are not written. 16-bit weights are written as float32, which holds them
    exactly; the arithmetic is chosen when the file is read.

    Args:
        kinds: of its attention layers, as its masks are keyed.
    Raises:
        Exception: of many unrelated types, where OpenVINO has no operation for a part of the model.
    """
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation, apply_moc_transformations
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    graph = _Graph(copy.deepcopy(model).float().eval(), kinds)
    with torch.no_grad(), warnings.catch_warnings(), stock_attention(graph.model):
        warnings.simplefilter("ignore")  # tracing warns of every branch that depends on a shape
        shapes = graph.state_shapes()
        frontend = FrontEndManager().load_by_framework("pytorch")
        traced = TorchScriptPythonDecoder(graph, example_input=_example(shapes))
        written = frontend.convert(frontend.load(traced))
    apply_moc_transformations(written, False)
    past = [f"past_key_values.{place // 2}.{('key', 'value')[place % 2]}" for place in range(len(shapes))]
    present = [name.replace("past_key_values", "present") for name in past]
    sizes = [(-1, -1), (-1, -1), (-1, -1), (-1,), *((-1, heads, -1, size) for heads, size in shapes)]
    for port, name, size in zip(written.inputs, (*_INPUTS, *past), sizes, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(openvino.PartialShape(list(size)))
    for port, name in zip(written.outputs, ("logits", *present), strict=True):
        port.get_tensor().set_names({name})
    written.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(written, dict(zip(past, present, strict=True)))
    _begin_empty(written)
    openvino.save_model(written, folder / MODEL_FILE, compress_to_fp16=False)


def written_bytes(model: Any) -> int:
    """Return the size of the file that `write_openvino` writes, nearly."""
    return 4 * sum(weight.numel() for weight in model.parameters())


class _JoinedLayer(CacheLayerMixin):
    """Keys and values [B, H, S, head] of one layer in a graph: what a call is given with its own behind."""

    is_sliding = False

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("the layer begins with what it is given")

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.keys = key_states if self.keys is None else torch.cat([self.keys, key_states], dim=2)
        self.values = value_states if self.values is None else torch.cat([self.values, value_states], dim=2)
        return self.states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def get_max_length(self) -> int:
        return -1

    # transformers 5.17 asks for the same number under this name.
    get_max_cache_shape = get_max_length


class _Graph(nn.Module):
    """A decoder as a function of tokens and of the keys and values before them."""

    def __init__(self, model: Any, kinds: Collection[str]) -> None:
        super().__init__()
        self.model, self._kinds = model, list(kinds)

    def state_shapes(self) -> list[tuple[int, int]]:
        """Return heads and size of a head for the keys and the values of every layer in turn."""
        layers = [_JoinedLayer() for _ in range(self.model.config.get_text_config().num_hidden_layers)]
        token = torch.zeros(1, 1, dtype=torch.long)
        self._logits(token, torch.ones_like(token), token, layers)
        return [(states.shape[1], states.shape[3]) for layer in layers for states in layer.states]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, beam_idx: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Return logits [B, S, V], then keys and values of every layer, those of `past` in front.

        Args:
            attention_mask: ones [B, P + S]; only its shape differs from call to call.
            beam_idx: the sequence [B] of `past` that each sequence continues.
            past: keys and values [B, H, P, head] of every layer in turn.
        """
        kept = [states.index_select(0, beam_idx) for states in past]
        layers = [_JoinedLayer(*kept[place : place + 2]) for place in range(0, len(kept), 2)]
        logits = self._logits(input_ids, attention_mask, position_ids, layers)
        return logits, *(states for layer in layers for states in layer.states)

    def _logits(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, layers: list[_JoinedLayer]
    ) -> Tensor:
        slots = torch.arange(attention_mask.shape[1])
        own = slots[attention_mask.shape[1] - input_ids.shape[1] :]
        seen = (slots[None, :] <= own[:, None])[None, None] & attention_mask[:, None, None].bool()  # [B, 1, S, P + S]
        mask = seen if len(self._kinds) == 1 else dict.fromkeys(self._kinds, seen)
        return self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            use_cache=True,
            **{CACHE: Cache(layers=layers)},
        ).logits


def _example(shapes: list[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Return arguments of `_Graph` to trace it with."""
    places = torch.arange(_PAST, _PAST + _TOKENS)
    tokens = torch.zeros(_SEQUENCES, _TOKENS, dtype=torch.long)
    return (
        tokens,
        torch.ones(_SEQUENCES, _PAST + _TOKENS, dtype=torch.long),
        places + tokens,
        torch.arange(_SEQUENCES, dtype=torch.int32),
        *(torch.zeros(_SEQUENCES, heads, _PAST, size) for heads, size in shapes),
    )


def _begin_empty(written: Any) -> None:
    """Let every state of a graph begin with the call's number of sequences and no tokens."""
    from openvino import opset13 as operations

    tokens = operations.shape_of(written.input("input_ids"), "i64")
    sequences = operations.gather(tokens, np.array([0]), np.array(0))
    for node in written.get_ops():
        if node.get_type_name() == "ReadValue":
            _, heads, _, size = node.get_output_partial_shape(0)
            rest = [np.array([length]) for length in (heads.get_length(), 0, size.get_length())]
            shape = operations.concat([sequences, *map(operations.constant, rest)], 0)
            node.set_arguments([operations.broadcast(np.float32(0), shape)])
    written.validate_nodes_and_infer_types()

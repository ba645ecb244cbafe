"""A transformers encoder-decoder over our own cache: the interface of `decoder.Decoder`, for chains and rows.

The prompt goes through the encoder once; what is decoded starts from the model's own start token. Knows neither
sampling nor acceptance.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from specdec.errors import ModelLoadError
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder, end_tokens_of
from specdec.models.masks import Masks
from specdec.models.path_batch import row_batch
from specdec.records import Tree, chain_tree

# Keys and values of the cross-attention, under T5's names and under BART's.
_OF_THE_PROMPT = re.compile(r"(EncDecAttention\.[kv]|encoder_attn\.[kv]_proj)$")


class Seq2SeqDecoder:
    """One encoder-decoder model, and the caches of one prompt and one output.

    The self-attention cache is ours and is rolled back like any other; the cross-attention's keys and values depend
    on the prompt alone and stay. T5 derives relative positions from the row numbers of the cache, so a row must stand
    where its position is: a tree is evaluated as the batch of its paths, over copies of the self-attention cache alone.

    Attributes:
        model: the transformers model, unpatched.
        cache: the self-attention half; its rows are the start token and the output, not the prompt.
        vocab_size, end_tokens: of the model.
        context_length: learned positions limit encoder and decoder alike (BART); relative ones limit neither (T5),
            whatever length it was trained at.
    """

    def __init__(self, model: Any, name: str) -> None:
        """
        Raises:
            ModelLoadError: no decoder start token.
        """
        self.model, self.name = model, name
        self.device: torch.device = model.device
        config = model.config
        self.vocab_size: int = config.vocab_size
        self.context_length: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.end_tokens = end_tokens_of(model)
        # T5's and BART's names; `num_hidden_layers` counts the encoder's.
        self._layers: int = getattr(config, "num_decoder_layers", None) or config.decoder_layers
        self._start_token = _start_token(model, name)
        self.cache = KVCache(self._layers, 1)
        self._caches = EncoderDecoderCache(self.cache, KVCache(self._layers, 1))
        self._encoded = torch.empty(0)
        self._masks = Masks({"full_attention": None}, model.dtype, self.device)

    @property
    def length(self) -> int:
        """Rows in the self-attention cache; setting it forgets the rows behind."""
        return self.cache.length

    @length.setter
    def length(self, value: int) -> None:
        self.cache.length = value

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text: encode all of the prompt, project it for every cross-attention, and return the decoder's
        start token, which is the root of round 1.

        Args:
            prompt: at least one token, for the encoder.
            capacity: rows that prompt, output and the largest draft need together; those of the prompt are not made.
            copies: of the decoded text's rows, for batches of up to so many (see `forward_rows`).
        """
        ids = torch.tensor([list(prompt)], device=self.device)
        self._encoded = self.model.get_encoder()(input_ids=ids).last_hidden_state  # [1, S, D]
        self.cache = KVCache(self._layers, capacity - len(prompt), copies)
        self._caches = EncoderDecoderCache(self.cache, KVCache(self._layers, len(prompt)))
        # Models project the prompt inside their first decoder call: it belongs to the prefill, not to round 1.
        self.forward(torch.tensor([self._start_token], device=self.device), chain_tree(0))
        self.length = 0
        return self._start_token

    @staticmethod
    def rows_of(prompt: int, capacity: int, copies: int) -> int:
        """Rows of keys and values that `start` makes room for: those of the prompt once, the others in all copies."""
        return prompt + (capacity - prompt) * copies

    def forward(self, tokens: Tensor, tree: Tree) -> Tensor:
        """Append `tokens` [N+1], the first the root of the chain `tree` and the others its nodes.

        Returns:
            logits [N+1, V].
        Raises:
            ValueError: a draft that is no chain.
        """
        if not tree.is_chain:
            raise ValueError("a row of an encoder-decoder model holds chains only: its positions are cache rows")
        return self._logits(tokens.unsqueeze(0), tree)[0]

    def forward_rows(self, tokens: Tensor, tree: Tree) -> Tensor:
        """See `Decoder.forward_rows`. What belongs to the prompt is shared by all rows."""
        batch = row_batch(tree)
        if len(batch) > self.cache.copies:
            self._caches.self_attention_cache = self.cache = self.cache.grown(len(batch))
        logits = self._logits(tokens[batch.index.to(self.device, non_blocking=True)], batch.chain)
        return logits.flatten(0, 1)[batch.places.to(self.device, non_blocking=True)]

    def _logits(self, rows: Tensor, chain: Tree) -> Tensor:
        """[B, L] tokens -> [B, L, V]."""
        self._caches.cross_attention_cache.read_by(len(rows))
        logits: Tensor = self.model(
            encoder_outputs=(self._encoded.expand(len(rows), -1, -1),),
            decoder_input_ids=rows,
            decoder_attention_mask=self._masks.view(chain, self.length, self.cache.capacity),
            past_key_values=self._caches,
            use_cache=True,
        ).logits
        return logits

    def score(self, prompt: Sequence[int], text: Sequence[int], model: Any = None) -> Tensor:
        """Teacher-forced logits of `text` after `prompt`: [len(text) + 1, V], row i before token i.

        One forward pass of encoder and decoder without the cache, by `model` where another copy of the weights is
        given.
        """
        return (model or self.model)(
            input_ids=torch.tensor([list(prompt)], device=self.device),
            decoder_input_ids=torch.tensor([[self._start_token, *text]], device=self.device),
            use_cache=False,
        ).logits[0]

    @property
    def flops_per_token(self) -> float:
        """2 x the weights that a generated token is multiplied with: the decoder's and the output head's. The encoder
        and the cross-attention's keys and values are applied to the prompt, once.
        """
        matrices = [
            module.weight
            for name, module in self.model.get_decoder().named_modules()
            if isinstance(module, nn.Linear) and not _OF_THE_PROMPT.search(name)
        ]
        return 2.0 * sum(weight.numel() for weight in (*matrices, self.model.get_output_embeddings().weight))


def decoder_of(model: Any, name: str, prefill_chunk: int) -> Decoder | Seq2SeqDecoder:
    """The decoder that a model's kind needs; `prefill_chunk` is for decoder-only ones (an encoder sees all at once).

    Raises:
        ModelLoadError: see both.
    """
    if model.config.is_encoder_decoder:
        return Seq2SeqDecoder(model, name)
    return Decoder(model, name, prefill_chunk)


def _start_token(model: Any, name: str) -> int:
    for config in (model.generation_config, model.config):
        token = getattr(config, "decoder_start_token_id", None)
        if token is not None:
            return int(token)
    raise ModelLoadError(f"Model {name} names no decoder_start_token_id in its config.json: decoding cannot begin.")

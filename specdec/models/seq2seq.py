"""A transformers encoder-decoder over our own cache, with the interface of `decoder.Decoder`; a tree becomes a batch.

The prompt goes through the encoder once; the decoded text begins with the model's own start token. Knows neither
sampling nor acceptance.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from specdec.errors import ModelLoadError
from specdec.models.cache import CACHE, KVCache
from specdec.models.decoder import CachedModel, Decoder, attention_windows
from specdec.models.forward_pass import PathBatch
from specdec.models.masks import MaskBuffers, for_model
from specdec.records import Tree, chain_tree

# The modules that make keys and values of the cross-attention, under the names of T5, BART and T5Gemma.
_OF_THE_PROMPT = re.compile(r"(EncDecAttention\.[kv]|(encoder|cross)_attn\.[kv]_proj)$")


class Seq2SeqDecoder(CachedModel):
    """One encoder-decoder model, and the caches of one prompt and one output.

    The self-attention cache is rolled back like any other. The keys and values of the cross-attention depend on the
    prompt alone and stay. T5 derives relative positions from the slot numbers of the cache, so every token must stand
    in the slot of its position, and nodes of a packed tree would need the same one twice: a tree is evaluated as the
    batch of its paths, over copies of the self-attention cache.
    `cache` is that of self-attention; its slots hold the start token and the output, not the prompt.
    """

    def __init__(self, model: Any, name: str) -> None:
        """Raises ModelLoadError: the configuration names no start token for the decoder; or see `attention_windows`."""
        config = model.config.get_text_config(decoder=True)
        super().__init__(model, name, config)
        # Learned positions limit encoder and decoder alike (BART; LED's decoder has fewer), relative ones neither (T5).
        self.context_length = getattr(config, "max_decoder_position_embeddings", None) or self.context_length
        # T5 has this name beside the encoder's `num_hidden_layers`; BART's names are told apart by transformers.
        self.layers = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
        begins = [getattr(each, "decoder_start_token_id", None) for each in (model.generation_config, model.config)]
        start = next((token for token in begins if token is not None), None)
        if start is None:
            raise ModelLoadError(
                f"Model {name} names no start token, so decoding cannot begin: set decoder_start_token_id in its "
                "config.json."
            )
        self.start_token = int(start)
        self.cache = KVCache(self.layers, 1)
        self._caches = EncoderDecoderCache(self.cache, KVCache(self.layers, 1))
        self._encoded = torch.empty(0)
        self._masks = MaskBuffers(attention_windows(config, name), model.dtype, self.device)

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text (see `Decoder.start`): encode the prompt, project it for every cross-attention, and return
        the decoder's start token, the root of round 1. The self-attention cache has no slots for the prompt.
        """
        ids = torch.tensor([list(prompt)], device=self.device)
        self._encoded = self.model.get_encoder()(input_ids=ids).last_hidden_state  # [1, S, D]
        self.cache = KVCache(self.layers, capacity - len(prompt), copies)
        self._caches = EncoderDecoderCache(self.cache, KVCache(self.layers, len(prompt)))
        # Models project the prompt in their first decoder call; this one makes that part of the prefill.
        self.forward(torch.tensor([self.start_token], device=self.device), chain_tree(0))
        self.length = 0
        return self.start_token

    def forward(self, tokens: Tensor, tree: Tree) -> Tensor:
        """Append `tokens` [N+1], the root and the nodes of the chain `tree`; return logits [N+1, V]. Raises ValueError:
        the tree is no chain; `forward_paths` takes trees.
        """
        if not tree.is_chain:
            raise ValueError(
                "an encoder-decoder evaluates chains only, or trees as batches: its positions are cache slots"
            )
        return self._logits(tokens.unsqueeze(0), tree)[0]

    def forward_batch(self, tokens: Tensor, batch: PathBatch) -> Tensor:  # all sequences share the prompt
        if len(batch) > self.cache.copies:
            self._caches.self_attention_cache = self.cache = self.cache.grown(len(batch))
        logits = self._logits(tokens[batch.index.to(self.device, non_blocking=True)], batch.chain)
        return logits.flatten(0, 1)[batch.places.to(self.device, non_blocking=True)]

    def _logits(self, tokens: Tensor, chain: Tree) -> Tensor:
        """Return the logits [B, L, V] of tokens [B, L]."""
        self._caches.cross_attention_cache.read_by(len(tokens))
        masks = self._masks.view(chain, self.length, self.cache.capacity, len(tokens))
        encoded = BaseModelOutput(self._encoded.expand(len(tokens), -1, -1))
        options: dict[str, Any] = {"decoder_attention_mask": for_model(masks), CACHE: self._caches}
        return self.model(encoder_outputs=encoded, decoder_input_ids=tokens, use_cache=True, **options).logits

    def score(self, prompt: Sequence[int], text: Sequence[int], model: Any = None) -> Tensor:
        """Return the logits of a text after `prompt` (see `Decoder.score`), by one pass of encoder and decoder."""
        return next(self.scores(prompt, [text], model))

    def scores(self, prompt: Sequence[int], texts: Sequence[Sequence[int]], model: Any = None) -> Iterator[Tensor]:
        """Yield the `score` of several texts after one prompt, which the first pass encodes for all."""
        reads: dict[str, Any] = {"input_ids": torch.tensor([list(prompt)], device=self.device)}
        for text in texts:
            begun = torch.tensor([[self.start_token, *text]], device=self.device)
            output = (model or self.model)(**reads, decoder_input_ids=begun, use_cache=False)
            reads = {"encoder_outputs": BaseModelOutput(output.encoder_last_hidden_state)}
            yield output.logits[0]

    @property
    def flops_per_token(self) -> float:
        """2 x the weights that a generated token is multiplied with: those of the decoder and of the output head. The
        encoder, and keys and values of the cross-attention, are computed once, from the prompt.
        """
        matrices = [
            module.weight
            for name, module in self.model.get_decoder().named_modules()
            if isinstance(module, nn.Linear) and not _OF_THE_PROMPT.search(name)
        ]
        return 2.0 * sum(weight.numel() for weight in (*matrices, self.model.get_output_embeddings().weight))


AnyDecoder = Decoder | Seq2SeqDecoder


def decoder_of(model: Any, name: str, prefill_chunk: int, states: bool = False) -> AnyDecoder:
    """Make the decoder that a model needs; raise ModelLoadError where that refuses it. An encoder reads all at once, so
    `prefill_chunk` and `states` are those of a decoder-only model.
    """
    if model.config.is_encoder_decoder:
        return Seq2SeqDecoder(model, name)
    return Decoder(model, name, prefill_chunk, states)

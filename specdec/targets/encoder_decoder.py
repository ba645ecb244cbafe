"""Any transformers encoder-decoder (T5 and its kin) as a target: one pass of the encoder over the prompt, then chains
and batches of rows verified over our own cache.
"""

from typing import Any, Literal

from specdec.config import typed
from specdec.models.load import Dtype, load_model, load_tokenizer, model_path, resolve_device, resolve_dtype
from specdec.models.seq2seq import Seq2SeqDecoder
from specdec.sampling import SamplingConfig
from specdec.targets.base import targets
from specdec.targets.causal import Causal
from specdec.theory.roofline import Product


@typed
class EncoderDecoderConfig:
    name: Literal["encoder_decoder"]
    model: str
    dtype: Dtype
    device: str
    attention: Literal["auto", "sdpa", "eager"]
    evaluation: Literal["rows"]


@targets.register("encoder_decoder")
class EncoderDecoder(Causal):
    """An encoder-decoder transformers model: everything but the decoder underneath is that of `Causal`.

    Drafts that branch are evaluated by rows: these models' positions are rows of the cache, which a packed tree would
    need to have twice. The rows share one encoder output and one cross-attention cache.

    The whole prompt goes to the encoder, in the prefill, and the root of round 1 is the model's start token; drafters
    that copy see the prompt followed by the output, without it.
    """

    evaluation = "rows"

    def __init__(self, config: EncoderDecoderConfig, sampling: SamplingConfig) -> None:
        self.name = model_path(config.model)
        self.device = resolve_device(config.device)
        model = load_model(
            self.name,
            dtype=resolve_dtype(config.dtype),
            device=self.device,
            attention=config.attention,
            kind="encoder_decoder",
        )
        self._init(model, load_tokenizer(self.name), sampling, Seq2SeqDecoder(model, self.name))

    @classmethod
    def from_model(cls, model: Any, sampling: SamplingConfig, tokenizer: Any = None) -> "EncoderDecoder":
        """Around a model that is already in memory: tests and notebooks make small ones on the spot."""
        target = cls.__new__(cls)
        target.name = type(model).__name__
        target.device = model.device
        model.eval().requires_grad_(False)
        target._init(model, tokenizer, sampling, Seq2SeqDecoder(model, target.name))
        return target

    def products(self) -> list[Product]:
        # Read off the modules, they would count the encoder in every call.
        return []

"""Encoder-decoder transformers models (T5 and its kin) as targets: one pass of the encoder over the prompt, then chains
and batches of paths verified over our own cache.
"""

from typing import Any, Literal

from specdec.config import Named, NonEmpty, typed
from specdec.errors import UsageError
from specdec.models.load import Dtype, load_model, load_tokenizer, model_path, resolve_device, resolve_dtype
from specdec.models.model_files import check_revision
from specdec.models.seq2seq import Seq2SeqDecoder
from specdec.sampling import SamplingConfig
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import HiddenStates, TargetCapabilities, targets
from specdec.targets.base.model_target import ModelTarget


@typed
class EncoderDecoderConfig(Named):
    model: str
    dtype: Dtype
    device: str
    attention: Literal["auto", "sdpa", "eager"]
    evaluation: Literal["rows"]
    revision: NonEmpty | None


@targets.register("encoder_decoder")
class EncoderDecoder(ModelTarget):
    """An encoder-decoder transformers model (see `Seq2SeqDecoder`). The whole prompt goes to the encoder, in the
    prefill; drafters that copy see the prompt followed by the output, without the start token.
    """

    capabilities = TargetCapabilities(structures=EVERY_STRUCTURE, evaluations=("rows",))

    def __init__(self, model: Any, sampling: SamplingConfig, tokenizer: Any = None, name: str = "") -> None:
        """Take a model whose folder, or place on the hub, has this name; "" for one that was made in memory."""
        super().__init__(Seq2SeqDecoder(model, name or type(model).__name__), sampling, tokenizer, "rows")

    @classmethod
    def from_config(cls, config: EncoderDecoderConfig, sampling: SamplingConfig) -> "EncoderDecoder":
        name, revision = model_path(config.model), config.revision
        check_revision(name, revision, "target.revision")
        dtype, device = resolve_dtype(config.dtype), resolve_device(config.device)
        model = load_model(
            name, dtype=dtype, device=device, attention=config.attention, kind="encoder_decoder", revision=revision
        )
        return cls(model, sampling, load_tokenizer(name, revision), name)

    @property
    def hidden(self) -> HiddenStates:
        raise UsageError("An encoder-decoder gives no hidden states to heads: use target=causal.")

"""A check that a model can forget: its cache is rolled back, and its logits have to be those of a plain pass."""

import torch

from specdec.errors import ModelLoadError
from specdec.models.decoder import Decoder
from specdec.models.seq2seq import Seq2SeqDecoder
from specdec.records import chain_tree


@torch.inference_mode()
def check_rollback(decoder: Decoder | Seq2SeqDecoder) -> None:
    """Decode a few tokens, roll back and decode again.

    Raises:
        ModelLoadError: the model fails, its logits are not finite, or they differ from those of a plain pass.
    """
    who = f"Model {decoder.name} ({type(decoder.model).__name__})"
    tokens = [index % decoder.vocab_size for index in range(1, 5)]
    try:
        root = decoder.start(tokens[:2], 8)
        kept = decoder.length + 1
        decoder.forward(torch.tensor([root, tokens[0], tokens[0]], device=decoder.device), chain_tree(2))
        decoder.cache.commit(kept, [])
        again = decoder.forward(torch.tensor([tokens[2]], device=decoder.device), chain_tree(0))[-1]
        plain = decoder.score(tokens[:2], tokens[2:3])[-1]
    except torch.OutOfMemoryError:
        raise
    except (TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelLoadError(
            f"{who} does not work with a rolled-back key-value cache ({reason}): use another model."
        ) from None
    scale = plain.abs().amax().clamp_min(1.0)
    if not torch.isfinite(scale):
        raise ModelLoadError(f"{who} cannot be used: its logits are not finite; try another dtype, as float32.")
    tolerance = 0.1 if decoder.model.dtype in (torch.bfloat16, torch.float16) else 1e-3
    if not ((again - plain).abs().amax() <= tolerance * scale):
        raise ModelLoadError(
            f"{who} cannot be used: after rolling back its cache, its logits differ from those of a plain forward "
            "pass; use another model."
        )

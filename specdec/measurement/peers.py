"""Other engines on the same model and prompts, in the same process, between our own generations (DESIGN 6)."""

import time
from collections.abc import Mapping
from typing import Any

import torch

from specdec.decode import cut
from specdec.prompts import Prompt
from specdec.targets.causal import Causal


class TransformersGenerate:
    """`transformers` `generate` on our target's own model object; the peer of our baseline.

    Its time includes its prefill, so it is set against ours with prefill; tokens are counted by our one rule.
    """

    name = "generate"

    def __init__(self, target: Causal, max_new_tokens: int) -> None:
        self._target, self._limit = target, max_new_tokens

    def __call__(self, prompt: Prompt) -> Mapping[str, Any]:
        target, sampling = self._target, self._target.sampling
        ids = torch.tensor([prompt.tokens], device=target.device)
        options: dict[str, Any] = {"do_sample": False}
        if not sampling.greedy:
            options = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k or 0,
                "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
                "min_p": sampling.min_p,
            }
        _synchronize(target.device)
        start = time.perf_counter()
        with torch.inference_mode():
            output = target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self._limit,
                eos_token_id=sorted(target.end_tokens) or None,
                pad_token_id=min(target.end_tokens, default=0),
                **options,
            )
        _synchronize(target.device)
        seconds = time.perf_counter() - start
        new = output[0, len(prompt.tokens) :].tolist()
        return {
            "peer": self.name,
            "tokens": len(cut(new[:-1], new[-1], self._limit, target.end_tokens)),
            "seconds": seconds,
        }


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

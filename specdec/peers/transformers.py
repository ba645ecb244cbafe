"""transformers' `generate` on our target's own model: plain, assisted by the small model, or with prompt lookup."""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch

from specdec.clock import clock_for
from specdec.compiled.passes import Mode
from specdec.decode import cut
from specdec.drafters.small_model import SmallModel
from specdec.models.attention import stock_attention
from specdec.peers.base.contract import ASSISTED, GENERATE, PROMPT_LOOKUP, Engine, Peer, Setting, Work, engines
from specdec.prompts import Prompt
from specdec.sampling import SamplingConfig


def settings(device: torch.device, mode: Mode | None) -> list[Setting]:
    """Return the default and, where ours is traced or compiled, transformers' static cache with the same done to it.
    Its ways to speculate only take the default.
    """
    found = [Setting("dynamic cache, eager", {})]
    if mode is not None:
        from transformers import CompileConfig

        if mode == "trace":
            how = CompileConfig(backend="eager", mode=cast(Any, None))
            how._compile_all_devices = cast(Any, True)
        elif device.type == "cuda":
            how = CompileConfig()  # CUDA graphs
        else:
            # generate compiles on a CPU only when told to. Frozen as far as it bears: with inductor's global setting,
            # which our own engine uses, the static cache's position becomes a constant and the call fails.
            how = CompileConfig(mode=cast(Any, None), options={"freezing": True})
            how._compile_all_devices = cast(Any, True)
        name = "static cache, traced" if mode == "trace" else "static cache, compiled"
        found.append(Setting(name, {"cache_implementation": "static", "compile_config": how}))
    return found


class TransformersPeer(Peer):
    """`transformers` `generate` on our target's own model object."""

    def __init__(self, kind: str, work: Work, settings: Sequence[Setting]) -> None:
        from transformers import GenerationConfig

        super().__init__(kind, kind, work, settings)
        self._options: dict[str, Any] = {}  # of the method, for `generate`
        # A checkpoint's own generation config may hold penalties or a temperature, which our engine does not apply.
        self._configs: list[tuple[Any, Any]] = [(work.target.model, GenerationConfig())]
        if kind == PROMPT_LOOKUP:
            self._options = {"prompt_lookup_num_tokens": self.ours[1], "max_matching_ngram_size": work.match_length}
        elif kind == ASSISTED:
            small = cast(SmallModel, work.drafter)
            self._options = {"assistant_model": small.model}
            if small.translation is not None:  # transformers' own way between two tokenizers
                self._options |= {"tokenizer": work.target.tokenizer, "assistant_tokenizer": small.tokenizer}
            constant = GenerationConfig(
                num_assistant_tokens=self.ours[1],
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,  # falsy: transformers neither stops early nor adapts it
            )
            self._configs.append((small.model, constant))

    def generate(self, prompt: Prompt, setting: Setting, sampling: SamplingConfig) -> tuple[tuple[int, ...], float]:
        target, limit, ends = self._target, self._work.max_new_tokens, self._target.end_tokens
        clock, ids = clock_for(target.device), torch.tensor([prompt.tokens], device=target.device)
        options: dict[str, Any] = {"do_sample": not sampling.greedy, **self._options, **setting.options}
        options |= {"eos_token_id": sorted(ends) or None, "pad_token_id": min(ends, default=0)}
        if not sampling.greedy:
            options |= {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "min_p": sampling.min_p}
            options |= {"top_p": 1.0 if sampling.top_p is None else sampling.top_p, "typical_p": sampling.typical_p}
        with ExitStack() as stack, torch.inference_mode():
            # Models run as transformers does: with its own attention, and the given generation configs.
            for model, config in self._configs:
                stack.enter_context(stock_attention(model))
                stack.callback(setattr, model, "generation_config", model.generation_config)
                model.generation_config = config
            _GENERATING.addFilter(_not_of_its_own)
            stack.callback(_GENERATING.removeFilter, _not_of_its_own)
            clock.synchronize()
            start = time.perf_counter()
            output = target.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, **options)
            clock.synchronize()
            seconds = time.perf_counter() - start
        new = output[0, ids.shape[1] :].tolist()
        return cut(new, limit, ends), seconds


@engines.register("transformers")
class Transformers(Engine):
    needs = {"transformers": "transformers"}

    def peers(self, work: Work, held: ExitStack) -> list[TransformersPeer]:
        tried = settings(work.target.device, work.target.compilation)
        # Compiled over a static cache, a draft that reaches past its end raises no error: it ends the process.
        return [TransformersPeer(kind, work, tried if kind == GENERATE else tried[:1]) for kind in work.kinds]


_GENERATING = logging.getLogger("transformers.generation.utils")


def _not_of_its_own(record: logging.LogRecord) -> bool:
    """Leave out what transformers says of its own call of an assistant: no argument of ours would change it."""
    return not record.getMessage().startswith("Passing `generation_config` together with generation-related arguments")

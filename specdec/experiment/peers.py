"""Other engines on the same models and prompts, in the same process, between our own generations.

`transformers` in three forms, each set against the arm of ours that does the same: plain generation, assisted
generation by the same small model, prompt lookup with the same match length. A peer that fails says why and stops.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from specdec.config import BASELINE
from specdec.decode import cut
from specdec.drafters.base import Drafter
from specdec.drafters.small_model import SmallModel
from specdec.models.attention import stock_attention
from specdec.models.compile import Mode
from specdec.prompts import Prompt
from specdec.structures import Structure
from specdec.targets.causal import Causal

_TIMED_CALLS = 3  # of each setting, after the one that compiles


@dataclass(frozen=True)
class Setting:
    """One way to run a peer: what `generate` is given beside the method's own options."""

    name: str
    options: Mapping[str, Any]


def settings(device: torch.device, mode: Mode | None) -> list[Setting]:
    """Return the default and, where ours is traced or compiled, transformers' static cache with the same done to it."""
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


class TransformersPeer:
    """`transformers` `generate` on our target's own model object, at the fastest of its settings.

    Its time includes its prefill, so it is set against ours with prefill; tokens are counted by our one rule.

    Attributes:
        name: as in the metric `peer.<name>.ratio`.
        ours: method and gamma of the arm that it is set against.
        failure: why it does not run, or ran no further; "" while it runs.
    """

    def __init__(
        self,
        name: str,
        target: Causal,
        max_new_tokens: int,
        ours: tuple[str, int],
        tried: Sequence[Setting],
        options: Mapping[str, Any] | None = None,
        assistant: Any = None,
    ) -> None:
        """
        Args:
            tried: settings, of which `tune` keeps the fastest; the first until then.
            options: of the method, for `generate`.
            assistant: the transformers model that drafts for assisted generation, `ours[1]` tokens in every round.
        """
        from transformers import GenerationConfig

        self.name, self.ours, self.failure = name, ours, ""
        self._target, self._limit = target, max_new_tokens
        self._settings = list(tried)
        self._chosen = self._settings[0]
        self._options = dict(options or {})
        self._tried: list[dict[str, Any]] = []
        # A checkpoint's own generation config may hold penalties or a temperature, which our engine does not apply.
        self._configs: list[tuple[Any, Any]] = [(target.model, GenerationConfig())]
        if assistant is not None:
            self._options["assistant_model"] = assistant
            constant = GenerationConfig(
                num_assistant_tokens=ours[1],
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,  # falsy: transformers neither stops early nor adapts it
            )
            self._configs.append((assistant, constant))

    def tune(self, prompt: Prompt) -> None:
        """Warm up and time every setting on `prompt`; keep the fastest that runs."""
        fastest = float("inf")
        for setting in self._settings:
            try:
                self._generate(prompt, setting)
                seconds = min(self._generate(prompt, setting)[1] for _ in range(_TIMED_CALLS))
            except Exception as error:  # transformers, torch and its compiler raise some ten unrelated types here
                self._tried.append({"setting": setting.name, "failed": _one_line(error)})
                continue
            self._tried.append({"setting": setting.name, "seconds": seconds})
            if seconds < fastest:
                fastest, self._chosen = seconds, setting
        if fastest == float("inf"):
            self.failure = self._tried[0]["failed"]

    def keep(self, prompt: Prompt, before: Mapping[str, Any], running: bool) -> None:
        """Warm up in the setting that an earlier sitting of the run has chosen, instead of choosing again.

        Args:
            before: what `describe` said then.
            running: it still ran at the last prompt of that sitting.
        """
        self._tried = list(before["tried"])
        self._chosen = next((each for each in self._settings if each.name == before["setting"]), self._chosen)
        self.failure = before["failure"] if running or before["failure"] else "before the run was interrupted"
        if not self.failure:
            self(prompt)

    def __call__(self, prompt: Prompt) -> dict[str, Any] | None:
        """Time one generation; None once it has failed."""
        if self.failure:
            return None
        try:
            tokens, seconds = self._generate(prompt, self._chosen)
        except Exception as error:  # as in `tune`: another engine's fault does not end our run
            self.failure = f"at prompt {prompt.id}: {_one_line(error)}"
            return None
        return {
            "peer": self.name,
            "ours_method": self.ours[0],
            "ours_gamma": self.ours[1],
            "tokens": len(tokens),
            "seconds": seconds,
            "generated_token_ids": list(tokens),
        }

    def describe(self) -> dict[str, Any]:
        """Return for `peers.json` what was tried on the longest prompt, what was chosen, what failed."""
        return {
            "peer": self.name,
            "ours": {"method": self.ours[0], "gamma": self.ours[1]},
            "setting": self._chosen.name,
            "tried": self._tried,
            "failure": self.failure,
        }

    def _generate(self, prompt: Prompt, setting: Setting) -> tuple[tuple[int, ...], float]:
        """Return the new tokens by our rule, and seconds."""
        target = self._target
        ids = torch.tensor([prompt.tokens], device=target.device)
        with _as_published(self._configs):
            return self._timed(ids, setting)

    def _timed(self, ids: torch.Tensor, setting: Setting) -> tuple[tuple[int, ...], float]:
        target = self._target
        _synchronize(target.device)
        start = time.perf_counter()
        with torch.inference_mode():
            output = target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self._limit,
                eos_token_id=sorted(target.end_tokens) or None,
                pad_token_id=min(target.end_tokens, default=0),
                **_sampling_options(target),
                **self._options,
                **setting.options,
            )
        _synchronize(target.device)
        seconds = time.perf_counter() - start
        new = output[0, ids.shape[1] :].tolist()
        return cut(new[:-1], new[-1], self._limit, target.end_tokens), seconds


def transformers_peers(
    drafter_values: Mapping[str, Any],
    drafter: Drafter,
    target: Causal,
    structure: Structure,
    max_new_tokens: int,
    mode: Mode | None,
) -> list[TransformersPeer]:
    """Make plain generation, against our baseline, and what transformers has for our drafter at the same gamma.

    Args:
        drafter_values: the drafter's configuration.
        structure: the primary one; transformers drafts chains, so rows and trees have plain generation only.
        mode: what is done to our own passes.
    """
    name = drafter_values["name"]
    tried = settings(target.device, mode)
    peers = [TransformersPeer("generate", target, max_new_tokens, (BASELINE, 0), tried)]
    if not structure.single:
        return peers
    gamma = structure.gamma
    if name == "small_model":
        small = cast(SmallModel, drafter)
        languages: dict[str, Any] = {}
        if small.translation is not None:  # transformers' own way between two tokenizers
            languages = {"tokenizer": target.tokenizer, "assistant_tokenizer": small.tokenizer}
        peers.append(
            TransformersPeer("assisted", target, max_new_tokens, (name, gamma), tried, languages, assistant=small.model)
        )
    elif name == "ngram":
        q = drafter_values["q"]
        longest = q if isinstance(q, int) else drafter_values["order_max"]
        lookup = {"prompt_lookup_num_tokens": gamma, "max_matching_ngram_size": longest}
        peers.append(TransformersPeer("prompt_lookup", target, max_new_tokens, (name, gamma), tried, lookup))
    return peers


def _sampling_options(target: Causal) -> dict[str, Any]:
    sampling = target.sampling
    if sampling.greedy:
        return {"do_sample": False}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
    }


@contextmanager
def _as_published(configs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Run models as transformers does, for the time of a call: its own attention, the given generation configs."""
    with ExitStack() as stack:
        for model, config in configs:
            stack.enter_context(stock_attention(model))
            stack.callback(setattr, model, "generation_config", model.generation_config)
            model.generation_config = config
        yield


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

"""llama.cpp through llama-cpp-python: plain generation, its prompt lookup, and a second model as its draft model.

The weights are written as GGUF from the loaded models into a temporary folder, in the format that ours are in.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch

from specdec.decode import cut
from specdec.drafters.small_model import SmallModel
from specdec.peers.base.contract import (
    ASSISTED,
    GENERATE,
    PROMPT_LOOKUP,
    Absent,
    Engine,
    LeftOut,
    Peer,
    Setting,
    Work,
    engines,
    one_line,
)
from specdec.peers.base.gguf_file import write_gguf
from specdec.prompts import Prompt
from specdec.sampling import SamplingConfig

Drafting = Callable[[np.ndarray], np.ndarray]
"""A draft model of llama-cpp-python: the tokens [S] of a text to those [N] that it proposes next."""

_PREFILL = 512  # tokens of a call of the prefill, as ours


@engines.register("llama_cpp")
class LlamaCpp(Engine):
    needs = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}
    extra = "llama-cpp"

    def peers(self, work: Work, held: ExitStack) -> list[Peer | Absent]:
        import llama_cpp

        target = work.target
        if not sampled_alike(target.sampling):
            raise LeftOut(
                "llama.cpp cuts by top_p, min_p and typical_p before it applies the temperature, so that it would "
                "sample from another law: compare with sampling=greedy, or with temperature and top_k alone."
            )
        if target.device.type == "cuda" and not llama_cpp.llama_supports_gpu_offload():
            raise LeftOut("this llama-cpp-python was built without a GPU: reinstall it with CMAKE_ARGS=-DGGML_CUDA=on.")
        folder = Path(held.enter_context(TemporaryDirectory(prefix="specdec_gguf_")))
        files = {"target": folder / "target.gguf", "drafter": folder / "drafter.gguf"}
        write_gguf(target.model, files["target"], work.longest)
        found: list[Peer | Absent] = []
        for kind, ours in work.kinds.items():
            name = f"{self.name}.{kind}"
            try:
                drafting = self._drafting(kind, ours[1], work, files["drafter"])
            except LeftOut as error:
                found.append(Absent(name, one_line(error)))
                continue
            peer = LlamaPeer(name, work, ours, files["target"], drafting)
            held.callback(peer.close)
            found.append(peer)
        return found

    def _drafting(
        self, kind: str, gamma: int, work: Work, path: Path
    ) -> Callable[[Mapping[str, Any]], Drafting | None]:
        """Return what makes the draft model of a peer for a setting; it makes none for plain generation.

        Raises:
            LeftOut: a drafter that llama.cpp cannot use.
        """
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        if kind == GENERATE:
            return lambda options: None
        if kind == PROMPT_LOOKUP:
            lookup = LlamaPromptLookupDecoding(max_ngram_size=work.match_length, num_pred_tokens=gamma)
            return lambda options: cast(Drafting, lookup)
        assert kind == ASSISTED
        small = cast(SmallModel, work.drafter)
        if small.translation is not None:
            raise LeftOut("llama-cpp-python has no drafter with another tokenizer than the target's.")
        write_gguf(small.model, path, work.longest)
        return lambda options: SecondModel(llama_cpp.Llama(str(path), **options), gamma)


def sampled_alike(sampling: SamplingConfig) -> bool:
    """Return whether llama.cpp's chain (cuts first, then the temperature) samples from the law that ours does."""
    return sampling.greedy or (sampling.top_p, sampling.min_p, sampling.typical_p) == (None, None, None)


class LlamaPeer(Peer):
    """`llama_cpp.Llama.generate` on fresh texts: what is cached of the text before is forgotten, as in our engine."""

    converted = True

    def __init__(
        self,
        name: str,
        work: Work,
        ours: tuple[str, int],
        path: Path,
        drafting: Callable[[Mapping[str, Any]], Drafting | None],
    ) -> None:
        """
        Args:
            path: of the target's weights.
            drafting: makes the draft model of a setting, given the options of `llama_cpp.Llama`.
        """
        super().__init__(name, ours, work.target, settings(work))
        self._path, self._drafting, self._limit = path, drafting, work.max_new_tokens
        self._open: tuple[Setting, Any] | None = None

    def generate(self, prompt: Prompt, setting: Setting, sampling: SamplingConfig) -> tuple[tuple[int, ...], float]:
        engine = self._engine(setting)
        limit, end_tokens = self._limit, self._target.end_tokens
        engine.reset()
        if isinstance(engine.draft_model, SecondModel):
            engine.draft_model.engine.reset()
        new: list[int] = []
        start = time.perf_counter()
        for token in engine.generate(list(prompt.tokens), **sampling_options(sampling)):
            new.append(token)
            if len(new) == limit or token in end_tokens:
                break
        seconds = time.perf_counter() - start
        return cut(new[:-1], new[-1], limit, end_tokens), seconds

    def close(self) -> None:
        """Free the models that are open."""
        if self._open is not None:
            _, engine = self._open
            self._open = None
            if isinstance(engine.draft_model, SecondModel):
                engine.draft_model.engine.close()
            engine.close()

    def _engine(self, setting: Setting) -> Any:
        """Return the engine in a setting; one is open at a time, so that others take no memory."""
        import llama_cpp

        if self._open is None or self._open[0] is not setting:
            self.close()
            options = setting.options
            # With a draft model it keeps the logits of all tokens, without one those of the last.
            self._open = (
                setting,
                llama_cpp.Llama(str(self._path), draft_model=cast(Any, self._drafting(options)), **options),
            )
        return self._open[1]


class SecondModel:
    """A small model as the draft model of llama-cpp-python: it proposes its own greedy continuation of the text."""

    def __init__(self, engine: Any, gamma: int) -> None:
        """
        Args:
            engine: a `llama_cpp.Llama`, which evaluates only what its cache lacks of the text.
        """
        self.engine, self._gamma = engine, gamma

    def __call__(self, input_ids: np.ndarray, /, **options: Any) -> np.ndarray:
        """Return gamma tokens that follow a text [S]."""
        drafts = self.engine.generate(input_ids.tolist(), temp=0.0)
        return np.array([next(drafts) for _ in range(self._gamma)], dtype=np.intc)


def settings(work: Work) -> list[Setting]:
    """Return the settings to try: attention fused or not, over a cache in the format of the weights, or in float16
    where that is as wide.
    """
    from gguf import GGMLQuantizationType

    threads, dtype = torch.get_num_threads(), work.target.model.dtype
    gamma = work.structure.gamma
    shared = {
        # Drafts are evaluated to their end, beyond that of the text.
        "n_ctx": work.longest + gamma + 2,
        "n_batch": _PREFILL,
        "n_ubatch": _PREFILL,
        "n_threads": threads,
        "n_threads_batch": threads,
        "n_gpu_layers": -1 if work.target.device.type == "cuda" else 0,
        "seed": work.seed,
        "verbose": False,
    }
    kinds = {
        torch.float32: [("float32", GGMLQuantizationType.F32)],
        torch.bfloat16: [("bfloat16", GGMLQuantizationType.BF16), ("float16", GGMLQuantizationType.F16)],
        torch.float16: [("float16", GGMLQuantizationType.F16)],
    }
    dtype_name = str(dtype).removeprefix("torch.")
    return [
        Setting(
            f"{dtype_name}, {threads} threads, cache in {words}, flash attention {'on' if fused else 'off'}",
            {**shared, "flash_attn": fused, "type_k": int(kind), "type_v": int(kind)},
        )
        for words, kind in kinds[dtype]
        for fused in (True, False)
    ]


def sampling_options(sampling: SamplingConfig) -> dict[str, Any]:
    """Return what `Llama.generate` is given, whose own defaults cut by top_k, top_p and min_p."""
    return {
        "temp": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
    }

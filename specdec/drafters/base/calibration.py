"""The text on which parts of a target are compared with the whole: the beginnings come from a corpus, and the target
itself goes on. Prompts and outputs of a run have no part in it.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from specdec.config import AtLeastOne, NonEmpty, typed
from specdec.errors import UsageError
from specdec.models.cache import CACHE
from specdec.models.decoder import flops_per_token
from specdec.ngrams.cache_folder import made_once
from specdec.ngrams.corpus import CorpusPart, encoded, open_corpus, tokenizer_digest
from specdec.progress import stage
from specdec.sampling import generator_for, probabilities, sample
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.text.writing import write_json
from specdec.theory.capped_geometric import speedup

T = TypeVar("T")

_LONGEST = 16  # tokens of a draft: the choice is by the best length up to here
_PARTS = 4096  # of a corpus, from which the passages are taken
_CHARACTERS = 16  # of a text that are tokenised for each token of a passage: no tokenizer needs more


@typed
class CalibrationTextConfig:
    cache_dir: NonEmpty | None
    corpus: NonEmpty | None
    field: NonEmpty | None
    passages: AtLeastOne
    context: AtLeastOne
    tokens: AtLeastOne


def own_model(target: Target, drafter: str) -> Causal:
    """Return a target whose model can draft for it. Raises UsageError: it has no network, or an encoder-decoder's."""
    if isinstance(target, Causal):
        return target
    has = "has no network" if target.model is None else "is an encoder-decoder"
    raise UsageError(
        f"Bad value drafter={drafter}: it drafts with layers of the target's own model, and the target {has}; use "
        "target=causal."
    )


@dataclass(frozen=True)
class Worth:
    """The worth of a model as a drafter (Leviathan et al. 2211.17192, Theorem 3.8)."""

    alpha: float  # mean chance that a token of its draft is accepted, over the calibration text
    cost: float  # operations of one of its tokens over those of the target's
    gamma: int  # the draft length of 1 to 16 with the largest Omega / (1 + gamma cost)
    speedup: float  # that value


class CalibrationText:
    """The target's own text after passages of a corpus, and the target's laws along it. For a target without tokenizer
    and corpus, the passages are random tokens, the same in every run.
    """

    def __init__(self, config: CalibrationTextConfig, target: Causal) -> None:
        """Raises UsageError: a corpus that cannot be read, too short a corpus, too long passages."""
        if config.context + config.tokens > target.context_length:
            raise UsageError(
                f"Bad value drafter.tokens={config.tokens}: with drafter.context={config.context} a passage is longer "
                f"than the {target.context_length} tokens of the target's context; lower one of them."
            )
        self.model, self.name = target.model, target.name
        self._config, self._target = config, target
        random = config.corpus is None and target.tokenizer is None
        self._corpus = None if random else open_corpus(config.corpus, config.field)
        self.about: dict[str, Any] = {  # what determines the text, beside the target's weights
            "corpus": "random tokens" if self._corpus is None else self._corpus.digest(),
            "tokenizer": tokenizer_digest(target.tokenizer),
            **{key: getattr(config, key) for key in ("passages", "context", "tokens")},
            "sampling": {
                key: getattr(target.sampling, key) for key in ("temperature", "top_k", "top_p", "min_p", "typical_p")
            },
            "dtype": str(target.model.dtype).removeprefix("torch."),
        }

    def once(
        self, noun: str, settings: dict[str, Any], make: Callable[[], T],
        write: Callable[[T], dict[str, Any]], read: Callable[[dict[str, Any]], T],
    ) -> T:  # fmt: skip
        """Return what an earlier run found along the same text, for the same weights and settings, in a file of
        `cache_dir`; make and keep it, as `write` and `read` give its values, if it is not there. Raises as `made_once`.
        """
        about = {"weights": self._target.hidden.identity, **self.about, **settings}
        key = partial(json.dumps, about, sort_keys=True)

        def keep(path: Path, found: T) -> None:
            write_json(path, {"about": about, **write(found)})

        def kept(path: Path) -> T:
            return read(json.loads(path.read_text(encoding="utf-8")))

        return made_once(self._config.cache_dir, key, noun, make, keep, kept, suffix=".json")

    @torch.inference_mode()
    def worth(self, model: Any) -> Worth:
        """Return the worth of another model over the target's tokens. One pass over the text, without a cache."""
        text, p = self.text
        alpha = min(float(torch.minimum(p, self._laws(model, text)).sum(-1).mean()), 1.0)
        cost = flops_per_token(model) / flops_per_token(self.model)
        values = np.asarray(speedup(alpha, np.arange(1, _LONGEST + 1), cost))
        best = int(values.argmax())
        return Worth(alpha, cost, best + 1, float(values[best]))

    @cached_property
    def text(self) -> tuple[Tensor, Tensor]:
        """The text [B, S], written when first asked for, and the target's laws [B, tokens, V] along its last tokens."""
        config, target = self._config, self._target
        if self._corpus is None:
            generator, shape = generator_for(0, "calibration", "passages"), (config.passages, config.context)
            passages = torch.randint(target.vocab_size, shape, generator=generator)
        else:
            corpus, size = self._corpus, config.context

            def middles() -> Iterator[CorpusPart]:
                """Yield the middle of every part of the corpus, long enough for a passage where the part is."""
                for part in corpus.parts():
                    content = part.content[len(part.content) // 2 :]
                    yield replace(part, content=content[: _CHARACTERS * size if isinstance(content, str) else size])

            halves = encoded(replace(corpus, size=0, parts=middles), target.tokenizer, target.vocab_size)  # 0: no bar
            parts = (ids[:size] for _, ids in halves if len(ids) >= size)
            found = list(islice(parts, _PARTS))
            if len(found) < config.passages:
                raise UsageError(
                    f"Bad value drafter.passages={config.passages}: corpus {corpus.name} has {len(found)} texts "
                    f"of drafter.context={size} tokens; lower one of them, or give another corpus."
                )
            chosen = [found[index * len(found) // config.passages] for index in range(config.passages)]
            passages = torch.from_numpy(np.stack(chosen)).long()
        # The target goes on behind them: [B, context + tokens].
        text = tokens = passages.to(self.model.device)
        generator, cache = generator_for(0, "calibration", "continuation", text.device), None
        shorter = "the drafter's keys tokens=N and passages=N write less"
        count, sampling = config.tokens, target.sampling
        with stage("writing calibration text", total=count, told=False, shorter=shorter) as under_way:
            for _ in range(count):
                output = self.model(input_ids=tokens, use_cache=True, **{CACHE: cache})
                cache = output[CACHE]
                tokens = sample(probabilities(output.logits[:, -1], sampling), generator).unsqueeze(-1)
                text = torch.cat([text, tokens], -1)
                under_way.advance()
        return text, self._laws(self.model, text)

    def _laws(self, model: Any, text: Tensor) -> Tensor:
        logits = model(input_ids=text[:, :-1], use_cache=False).logits[:, self._config.context - 1 :]
        return probabilities(logits, self._target.sampling)

"""The part that all targets with a transformers model share: a decoder over our own cache."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specdec.errors import ModelLoadError, NumericsError, UsageError
from specdec.models.forward_pass import path_batch, root_batch
from specdec.models.load import describe_model
from specdec.models.memory import available_bytes
from specdec.models.probe import cross, open_decoder, said_of
from specdec.models.quantization import quantization_of, said_of_weights
from specdec.models.seq2seq import AnyDecoder, Seq2SeqDecoder
from specdec.records import EMPTY, Draft, TextStart, Tree, chain_tree
from specdec.sampling import SamplingConfig, checked_probabilities
from specdec.targets.base.contract import Evaluation, Target

# Keys of a generation configuration that say nothing of which tokens are chosen, and the end tokens, which count.
_SILENT = "_from_model_config transformers_version use_cache cache_implementation cache_config do_sample".split()
_SILENT_PARTS = ("token_id", "max_", "min_length", "min_new", "output_", "return_dict", "compile", "assist", "draft")
_SAMPLED = ("temperature", "top_k", "top_p", "min_p", "typical_p")
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "num_beams": 1}


class ModelTarget(Target):
    """A transformers model behind its decoder, which holds the cache of one text. Messages call the model `name`. It is
    `in_one_piece` if it lies on one device of this process.
    """

    decoder: AnyDecoder
    in_one_piece = True

    def __init__(self, decoder: AnyDecoder, sampling: SamplingConfig, tokenizer: Any, evaluation: Evaluation) -> None:
        """Raises ModelLoadError: a model that decoding cannot be trusted with, see `open_decoder`, or that takes drafts
        that branch in no way; UsageError: `evaluation` is "rows", and the model takes trees in one sequence only.
        """
        # The evaluation that the model can be trusted with: the one asked for, or else rows.
        probed, kind = open_decoder(decoder), decoder.model.config.model_type
        if not probed.packed and not probed.rows:
            raise ModelLoadError(
                f"Model {decoder.name} ({kind}) takes chains only: its logits differ from those of plain forward "
                "passes both under a tree mask and in a batch; use another model."
            )
        if not probed.rows and evaluation == "rows":
            raise UsageError(
                f"Bad value target.evaluation=rows: in a batch the logits of model {decoder.name} ({kind}) differ from "
                "those of plain forward passes; use packed."
            )
        if not probed.packed or not probed.rows:
            evaluation = "packed" if probed.packed else "rows"
            self.capabilities = replace(self.capabilities, evaluations=(evaluation,))
        self.decoder, self.model, self.name, self.device = decoder, decoder.model, decoder.name, decoder.device
        self.sampling, self.tokenizer, self.evaluation = sampling, tokenizer, evaluation
        self.vocab_size, self.context_length = decoder.vocab_size, decoder.context_length
        self.end_tokens, self.keeps_state = decoder.end_tokens, bool(decoder.recurrent)
        self._scorer: Any = None
        self._root = torch.zeros(1, dtype=torch.long, device=self.device)
        self._tree = chain_tree(0)  # of the last verified draft
        self._state_bytes = decoder.cache.state_bytes()
        self._slot_bytes = (decoder.cache.nbytes() - self._state_bytes) // decoder.cache.capacity

    def _copies(self, branches: int) -> int:
        return branches if self.evaluation == "rows" else 1

    def check_memory(self, prompt: int, capacity: int, branches: int = 1) -> None:
        copies = self._copies(branches)
        once = prompt if isinstance(self.decoder, Seq2SeqDecoder) else 0  # slots that all copies share
        slots = once + (capacity - once) * copies
        asked = slots * self._slot_bytes + copies * self._state_bytes
        free = available_bytes(self.device)
        if free is None or asked <= free + self.cache_bytes:  # the present cache is given up for the next
            return
        fault = f"take {asked:,} bytes, and {free:,} are free on {self.device}"
        if copies == 1:
            raise UsageError(
                f"Bad value measurement.max_new_tokens: {capacity:,} slots of key-value cache {fault}; lower it, or "
                "use shorter prompts."
            )
        instead = ", or use target.evaluation=packed" if "packed" in self.capabilities.evaluations else ""
        raise UsageError(
            f"Bad value target.evaluation=rows: {copies} copies of a key-value cache of {capacity:,} slots {fault}; "
            f"lower structure.k or measurement.max_new_tokens{instead}."
        )

    def start(self, text: TextStart) -> None:
        root = self.decoder.start(text.prompt, text.capacity, self._copies(text.branches))
        self._root = torch.tensor([root], device=self.device)

    def verify(self, draft: Draft) -> Tensor:
        self._prefix, self._tree = self.decoder.length, draft.tree
        tokens = torch.cat([self._root, draft.tokens]) if len(draft) else self._root
        return self._standardised(self._forward(tokens, draft.tree))

    def verify_roots(self, sequences: int) -> Tensor:
        if sequences == 1 or self.evaluation == "packed":
            return self.verify(EMPTY)
        self._prefix, self._tree = self.decoder.length, EMPTY.tree
        return self._standardised(self.decoder.forward_batch(self._root, root_batch(sequences)))

    def _standardised(self, logits: Tensor) -> Tensor:
        """Keep the logits [N+1, V] of a call, and return p."""
        self.logits = logits
        p, finite = checked_probabilities(logits, self.sampling)
        # Arrives while the host waits for the acceptance, which is decided later.
        self._finite = finite.to("cpu", non_blocking=True)
        if self.device.type == "cpu":
            self._check_finite()
        return p

    def _check_finite(self) -> None:
        if not self._finite:
            raise NumericsError(
                f"The target's logits are not finite after position {self._prefix}: the run stops here. "
                "Try target.dtype=float32, or check the model."
            )

    def _forward(self, tokens: Tensor, tree: Tree) -> Tensor:
        if self.evaluation == "rows" and not tree.is_chain:
            return self.decoder.forward_paths(tokens, tree)
        return self.decoder.forward(tokens, tree)

    def commit(self, path: Sequence[int], next_token: int) -> None:
        if self.device.type != "cpu":
            self._check_finite()  # the acceptance has waited for the device: known by now
        if self.evaluation == "rows":
            # The path stands in one piece, from the root on, in the only sequence or in one of the batch.
            sequence = 0 if self._tree.is_chain else path_batch(self._tree).sequence_of(path)
            self.decoder.cache.commit(self._prefix, range(self._prefix, self._prefix + 1 + len(path)), sequence)
        else:
            self.decoder.cache.commit(self._prefix + 1, [self._prefix + 1 + node for node in path])
        self._root = torch.full((1,), next_token, device=self.device)  # written there: copying would wait for it

    def discard(self) -> None:
        self.decoder.length = self._prefix

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        if self._scorer is None:
            wide = self.model.dtype in (torch.float32, torch.float64) or self.quantization is not None
            # A model on several devices is too large for a copy, and its parts know where they belong. Quantised
            # weights have no wider form.
            self._scorer = self.model if wide or not self.in_one_piece else deepcopy(self.model).float()
        return self.decoder.score(prompt, text, self._scorer)

    @torch.inference_mode()
    def score_as_decoded(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self.decoder.score(prompt, text)

    def disagreement(self, longest: int, seconds: float | None = None, batched: bool = False) -> str | None:
        return cross(self.decoder, longest, seconds, batched)

    @property
    def flops_per_token(self) -> float:
        return self.decoder.flops_per_token

    @property
    def cache_bytes(self) -> int:
        return self.decoder.cache.nbytes()

    def describe(self) -> dict[str, Any]:
        described = describe_model(self.model, self.name)
        probed = asdict(self.decoder.probed)
        probed.pop("pending")  # says what there was no time for, which changes no result
        return {**described, "compilation": self.compilation, "evaluation": self.evaluation, "probe": probed}

    @cached_property
    def quantization(self) -> dict[str, Any] | None:
        """The quantisation of the model's weights; None where it computes with dense ones."""
        return quantization_of(self.model)

    @property
    def remarks(self) -> tuple[str, ...]:
        weights = said_of_weights(self.model, "target", self.name)
        return (*weights, *said_of(self.decoder), *not_followed(self.model, self.sampling))


def not_followed(model: Any, sampling: SamplingConfig) -> tuple[str, ...]:
    """Return a sentence with the generation configuration's values that `sampling` does not follow, if any."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return ()
    asked = {}
    for key, value in config.to_diff_dict().items():
        silent = key in _SILENT or any(part in key for part in _SILENT_PARTS)
        if not silent and value not in (None, False, [], {}, 0) and value != _NEUTRAL.get(key):
            asked[key] = value
    if not getattr(config, "do_sample", False):
        asked = {key: value for key, value in asked.items() if key not in _SAMPLED}  # it does not use them either
    elif sampling.greedy:
        asked = {"do_sample": True, **asked}
    differing = {key: value for key, value in asked.items() if value != getattr(sampling, key, None)}
    if not differing:
        return ()
    told = ", ".join(f"{key}={value}" for key, value in sorted(differing.items()))
    return (
        f"The checkpoint's generation_config.json asks for {told}, which is not followed: sampling.* alone says how "
        "tokens are chosen, and of that file only the end tokens count.",
    )

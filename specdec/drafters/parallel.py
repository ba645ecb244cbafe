"""A model that drafts all tokens in one call: behind the text it reads mask tokens, one for each further token."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from specdec.compiled.passes import compile_decoder
from specdec.config import NonEmpty, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.network_drafter import Along, Drafts, DrawnConfig
from specdec.drafters.small_model import DraftModelConfig, SmallModel
from specdec.errors import UsageError
from specdec.models.decoder import Decoder
from specdec.models.load import model_path
from specdec.models.model_files import is_gguf
from specdec.published.checkpoint_files import open_checkpoint
from specdec.published.formats.pard import mask_token_of
from specdec.records import EMPTY, Draft, TextStart, Tree, chain_draft, chain_tree
from specdec.sampling import sample
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Siblings, grow

_ROWS = 256  # tokens in a call, when a text is replayed


@typed
class ParallelConfig(DraftModelConfig, DrawnConfig):
    model: NonEmpty
    mask_token: NonNegativeInt | None


@drafters.register("parallel")
class Parallel(SmallModel):
    """Drafts gamma tokens with one call of a decoder-only model (PARD, An et al. 2504.18583, section 3). The call is
    over the committed tokens that the model's cache lacks and gamma - 1 mask tokens at the positions that follow. The
    law of draft token 1 is read after the last committed token, that of token k after mask k - 1. The keys and values
    of the masks are forgotten again: between rounds the cache holds committed tokens only.

    q of token k is the model's law after k - 1 masks (see `NetworkDrafter`). It does not depend on the tokens drafted
    before, and each token is drawn on its own. All nodes of one level of rows or a tree have one law; siblings are
    drawn as `siblings` says.

    Text, cache and the end of the context are kept as `SmallModel` keeps them. The mask token is only read: it may lie
    beyond the target's tokens.
    """

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, replay="start")
    strategy = "parallel"
    _decoder: Decoder

    def __init__(
        self,
        model: Any,
        target: Target,
        tokenizer: Any = None,
        *,
        mask_token: int,
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
        prefill_chunk: int = 512,
    ) -> None:
        """Raises UsageError: a mask token that the model does not have; see `SmallModel`."""
        decoder = Decoder(model, model.name_or_path or type(model).__name__, prefill_chunk)
        if not 0 <= mask_token < decoder.vocab_size:
            raise UsageError(
                f"Bad value drafter.mask_token={mask_token}: {decoder.name} has the tokens 0 to "
                f"{decoder.vocab_size - 1}; give the one that it was trained with."
            )
        super().__init__(model, target, tokenizer, drafts=drafts, siblings=siblings, decoder=decoder)
        self.mask_token = mask_token

    @classmethod
    def from_config(cls, config: ParallelConfig, target: Target) -> "Parallel":  # type: ignore[override]
        """Raises UsageError: no mask token is known; see `recognise`, `load` and `SmallModel`."""
        name, mask_token = model_path(config.model, "parallel"), config.mask_token
        if not is_gguf(name):
            mask_token = mask_token_of(open_checkpoint(name), mask_token)
        elif mask_token is None:
            raise UsageError(
                f"Bad value drafter.mask_token=null: {name} is a GGUF file, which does not name it; give the one that "
                "the model was trained with."
            )
        model, tokenizer = config.load(name, target, "causal")
        how: dict[str, Any] = {key: getattr(config, key) for key in ("drafts", "siblings", "prefill_chunk")}
        return cls(model, target, tokenizer, mask_token=mask_token, **how)

    @torch.inference_mode()
    def prepare(self, capacity: int, structure: Structure) -> None:
        if self._compilation is not None:
            # A call has 1 to gamma + 1 committed tokens. One size serves all: masks behind the last that is read
            # change nothing.
            gamma, mode = structure.gamma, self._compilation
            compile_decoder(self._decoder, {2 * gamma}, capacity + gamma, mode, packages=self._packages)

    def draft(self, structure: Structure) -> Draft:
        gamma = self.reach(structure.gamma)
        if gamma < 1:
            return EMPTY
        shape, ranked = structure.clamped(gamma), self.how(structure) == "ranked"
        # 1. One call gives the laws of all levels, and leaves no mask in the cache.
        pending, decoder = self.lacking(), self._decoder
        kept = decoder.length + len(pending)
        size = self._compiled_size(len(pending) + gamma - 1)
        masks = [self.mask_token] * (size - len(pending))
        read = torch.tensor([*pending, *masks]).to(self._device, non_blocking=True)
        logits = decoder.forward(read, chain_tree(size - 1))[len(pending) - 1 : len(pending) - 1 + gamma]
        decoder.length = kept
        after = self.standardise(structure)(self.align(logits))  # [gamma, V]
        # 2. Tokens are drawn level by level, or ranked.
        if shape.single:
            drawn = after.max(-1).indices if ranked else sample(after, self.generator)
            return self.checked(chain_draft(drawn, self.strategy, None if ranked else after))
        growth = self.growth(shape)  # asks about the nodes of the deepest level so far
        return self.checked(grow(growth, lambda asked: after[asked.tree.depth].expand(len(asked.nodes), -1)))

    def _compiled_size(self, needed: int) -> int:
        """Return how many tokens a call has: `needed`, or those of a compiled pass, where that has room for them."""
        decoder, passes = self._decoder, self._decoder.passes
        if passes is None or decoder.cache is not passes.cache or 0 in passes.sizes:  # 0 serves every number of tokens
            return needed
        room = min(decoder.cache.capacity, decoder.context_length) - decoder.length
        return min((size for size in passes.sizes if needed <= size <= room), default=needed)

    def chances(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Tensor | None:
        return super().chances(prompt, text, states, depth) if self._decoder.probed.packed else None

    def along(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Along:
        """See `NetworkDrafter.along`. A call evaluates a piece of the text and, behind each of its tokens, a branch of
        masks that sees the text up to that token: `depth` tokens for each, as the paper's training does (section 3.2).
        """
        self.start(TextStart(prompt, len(prompt) + len(text) + _ROWS + depth))
        last = self._decoder.context_length + 1 - depth - len(prompt)  # position whose chain has every level
        begin = 0
        while begin < len(text):
            # Position 0, then pieces of the text as far as every level fits, then single positions.
            end = max(begin + 1, min(begin + max(1, _ROWS // depth), len(text), last + 1)) if begin else 1
            if begin:
                self.commit(text[begin - 1 : end - 1])
            levels = self.reach(depth)
            if levels < 1:
                return
            pending = self.lacking()
            count, kept = len(pending), self._decoder.length + len(pending)
            read = torch.tensor([*pending, *[self.mask_token] * (count * (levels - 1))], device=self._device)
            logits = self._decoder.forward(read, _branches(count, levels))
            self._decoder.length = kept
            yield begin, 0, self.align(logits[:count])
            for k, of_masks in enumerate(logits[count:].unflatten(0, (count, levels - 1)).unbind(1), 1):
                yield begin, k, self.align(of_masks)
            begin = end

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "mask_token": self.mask_token}


@lru_cache(maxsize=8)
def _branches(count: int, depth: int) -> Tree:
    """Return the topology of `count` tokens, the first the root, with `depth` - 1 masks in a row behind each."""
    parents = list(range(-1, count - 2))
    for token in range(count):
        parents += [token - 1] if depth > 1 else []
        parents += range(len(parents) - 1, len(parents) + depth - 3)
    return Tree(tuple(parents))

"""A smaller language model that drafts token by token, over a cache of its own."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec.compiled.cuda_graphs import Choice, StaticLoop, joined, trusted
from specdec.compiled.passes import compile_decoder
from specdec.config import AtLeastOne, Named, NonEmpty, typed
from specdec.drafters.base import BatchDrafter, DrafterCapabilities, drafters
from specdec.drafters.base.network_drafter import Drafts, DrawnConfig, GrowingChain, NetworkDrafter
from specdec.errors import NumericsError, UsageError
from specdec.models.decoder import Decoder
from specdec.models.load import Dtype, Kind, describe_model, load_model, load_tokenizer, model_path, resolve_dtype
from specdec.models.model_files import check_revision
from specdec.models.probe import open_decoder, said_of
from specdec.models.quantization import said_of_weights
from specdec.models.ragged_decoder import RaggedDecoder, SlotDecoder
from specdec.models.seq2seq import Seq2SeqDecoder, decoder_of
from specdec.records import EMPTY, Draft, TextStart, Tree, chain_draft, chain_tree
from specdec.sampling import probabilities
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Asked, Growth, Siblings, grow, grow_together, index_on
from specdec.tree_building.translation import Translation, check_same


@typed
class DraftModelConfig(Named):
    """The settings of a transformers model that drafts."""

    dtype: Dtype
    attention: Literal["auto", "sdpa", "eager"]
    prefill_chunk: AtLeastOne

    def load(self, name: str, target: Target, kind: Kind, revision: str | None = None) -> tuple[Any, Any]:
        """Return the model and its tokenizer, see `load_model` and `load_tokenizer`, on the target's device."""
        how: dict[str, Any] = {"dtype": resolve_dtype(self.dtype), "device": target.device, "attention": self.attention}
        return load_model(name, kind=kind, revision=revision, **how), load_tokenizer(name, revision)


@typed
class SmallModelConfig(DraftModelConfig, DrawnConfig):
    model: str
    translate: bool
    revision: NonEmpty | None


@drafters.register("small_model")
class SmallModel(NetworkDrafter):
    """Drafts with a second transformers model (Leviathan et al. 2211.17192, section 2; Chen et al. 2302.01318).

    q is the model's law (see `NetworkDrafter`), cut as the target's is. A draft takes gamma calls of the model, the
    first on the one or two committed tokens that its cache lacks. Where the structure has a `threshold`, the model's
    own probability of the drafted token (softmax at temperature 1) is read after every token, which waits for the
    device. Otherwise nothing in a draft waits, and where the target is captured in CUDA graphs, so is a whole draft of
    the primary gamma (see `StaticLoop`).

    Needs the target's tokenizer. Where output matrices are padded to different widths, q is 0 beyond the narrower one.
    With `translate`, any tokenizer that shares pieces will do (see `Translation`); a round then begins by tokenising
    the whole text anew, so a proposal depends on where the round began and the replay is the copying one.

    Rows and trees grow level by level (see `draft_tree`): children are drawn from q as `siblings` says, or ranked by
    likelihood where they are point masses. This works between decoder-only models of one tokenizer.

    Nothing is offered where the text is longer than the model's context; a draft that would pass its end stops there.
    """

    strategy = "small_model"
    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, reports_confidence=True, replay="position")

    def __init__(
        self,
        model: Any,
        target: Target,
        tokenizer: Any = None,
        *,
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
        translate: bool = False,
        decoder: Decoder | Seq2SeqDecoder | None = None,
    ) -> None:
        """Raises UsageError: a model of another kind than the target's, or another tokenizer; ModelLoadError: one whose
        cache cannot be rolled back.
        """
        self.name = model.name_or_path or type(model).__name__  # of its folder, or made in memory
        kinds = {False: "decoder-only", True: "encoder-decoder"}
        own, theirs = bool(model.config.is_encoder_decoder), _is_encoder_decoder(target)
        if own != theirs:
            raise UsageError(
                f"Bad value drafter.model={self.name}: it is {kinds[own]} and the target {kinds[theirs]}; use two of "
                "one kind."
            )
        if own and translate:
            raise UsageError("Bad value drafter.translate=true: it works between decoder-only models; use false.")
        super().__init__(target, drafts, siblings)
        self.model, self.tokenizer = model, tokenizer
        self._decoder = decoder or decoder_of(model, self.name, 512)
        self.prefill_chunk = self._decoder.prefill_chunk
        open_decoder(self._decoder)
        self._size = vocab_size = target.vocab_size
        self._loop: StaticLoop | None = None
        self.translation: Translation | None = None
        if translate:
            self.translation = Translation(self.name, tokenizer, self._decoder.vocab_size, target)
            self.capabilities = replace(self.capabilities, replay="copying")
        elif tokenizer is not None and target.tokenizer is not None:
            check_same(self.name, tokenizer, target.tokenizer)
        else:
            vocab_size = self._decoder.vocab_size
        self.capabilities = replace(self.capabilities, vocab_size=vocab_size)
        self._begin(None)

    @classmethod
    def from_config(cls, config: SmallModelConfig, target: Target) -> "SmallModel":
        name = model_path(config.model, "drafter")
        check_revision(name, config.revision, "drafter.revision")
        kind: Kind = "encoder_decoder" if _is_encoder_decoder(target) else "causal"
        model, tokenizer = config.load(name, target, kind, config.revision)
        how: dict[str, Any] = {key: getattr(config, key) for key in ("drafts", "siblings", "translate")}
        return cls(model, target, tokenizer, decoder=decoder_of(model, name, config.prefill_chunk), **how)

    def _begin(self, generator: torch.Generator | None) -> None:
        super()._begin(generator)
        self._text: list[int] = []  # the target's tokens where they are translated; from the root on behind an encoder
        self._cached: list[int] = []  # the model's own token in each slot of its cache
        self._sure = 0  # slots that a longer text cannot change
        self._capacity = 0
        self._drafted: Tensor | None = None  # [N] the model's own tokens, since the last commit

    @torch.inference_mode()
    def prepare(self, capacity: int, structure: Structure) -> None:
        if self._compilation is None or not isinstance(self._decoder, Decoder):
            return
        # A call has one token, or two at the start of a draft whose predecessor was accepted whole.
        compile_decoder(self._decoder, {1, 2}, capacity, self._compilation, packages=self._packages)
        passes = self._decoder.passes
        captures = self._compilation == "inductor" and self._device.type == "cuda" and passes and passes.sizes
        # A loop writes the slot before the root's again, which is not allowed in slots of another cache.
        loops = captures and self._decoder.probed.static and passes.cache.over is None
        if loops and structure.single and structure.threshold == 0:
            decoder, gamma = self._decoder, structure.gamma

            def loop() -> StaticLoop:
                return StaticLoop(decoder, gamma, lambda logits, uniform: self.choose(self.align(logits), uniform))

            self._loop = trusted(loop, decoder, f"a draft of {gamma} tokens")

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin(text.generator)
        translated = self.translation is not None
        self._text = list(text.prompt) if translated else self.known(text.prompt)
        context = self._context()
        root = self._prefill(context, max(text.capacity, 2 * len(context)) if translated else text.capacity)
        if root is not None and not translated:
            # An encoder-decoder's prompt is in its encoder, not in the cache: its own text begins at the root.
            self._text = [*self._cached, root]

    def _prefill(self, tokens: list[int], capacity: int) -> int | None:
        """Fill a new cache and return the root; None where the tokens do not fit in the model's context."""
        self._cached, self._sure = [], 0
        self._decoder.length = 0
        if not 0 < len(tokens) <= self._decoder.context_length:
            return None
        root = self._decoder.start(tokens, capacity)
        self._cached, self._capacity = tokens[: self._decoder.length], capacity
        self._sure = 0 if self.translation is not None else len(self._cached)
        return root

    def draft(self, structure: Structure) -> Draft:
        context = self._context()
        gamma = self.reach(structure.gamma, context)
        if gamma < 1:
            return EMPTY
        if not structure.single:
            shape = structure.clamped(gamma)
            return self.checked(draft_tree([self.tree_model(shape)], self.growth(shape)))
        pending, chain = self._pending(context, gamma), self.new_chain(gamma, structure.threshold)
        loop = self._loop
        if loop is not None and loop.gamma == gamma and not chain.threshold and loop.cache is self._decoder.cache:
            if len(pending) <= 2 <= len(context):
                return self._chain(loop(context[-2:], len(context) - 2, chain.uniforms))

        def after(tokens: Tensor) -> Tensor:
            return self.align(self._decoder.forward(tokens, chain_tree(len(tokens) - 1))[-1:])  # [1, V]

        # A call of the model for each token, until gamma or the threshold.
        first = after(torch.tensor(pending).to(self._device, non_blocking=True))
        return self._chain(self.drafted(chain, first, after))

    def _chain(self, drafted: Choice) -> Draft:
        """Return a draft of these tokens, and keep in mind what the cache holds of them."""
        self._drafted = drafted.read.to("cpu", non_blocking=True)
        return self.checked(chain_draft(drafted.tokens, self.strategy, drafted.q))

    def _context(self) -> list[int]:
        return self._text if self.translation is None else self.translation.read(self._text)

    def reach(self, gamma: int, context: Sequence[int] | None = None) -> int:
        """Return how many levels of `gamma` fit behind the text in the model's context, below 1 where none do."""
        context = self._context() if context is None else context
        return min(gamma, self._decoder.context_length + 1 - len(context)) if context else 0

    def tree_model(self, structure: Structure) -> "TreeModel":
        """Return the model as it drafts rows or a tree after the text, which has to fit in its context. Raises
        UsageError: between tokenizers, from an encoder-decoder, or for a model that computes otherwise under a tree's
        mask.
        """
        decoder = self._decoder
        if self.translation is not None or not isinstance(decoder, Decoder) or not decoder.probed.packed:
            who = "with drafter.translate=true" if self.translation is not None else "as an encoder-decoder"
            if isinstance(decoder, Decoder) and not decoder.probed.packed:
                who = f"with a {self.model.config.model_type} model, whose logits are others under a tree mask,"
            raise UsageError(
                f"Bad value structure={structure.name}: {who} drafter small_model drafts chains only; "
                "use structure=chain."
            )
        pending, laws = self.lacking(), self.standardise(structure)
        read = torch.tensor(pending).to(decoder.device, non_blocking=True)
        return TreeModel(decoder, read, decoder.length + len(pending), lambda logits: laws(self.align(logits)))

    def lacking(self) -> list[int]:
        """Return the committed tokens that the cache lacks, at least one, for a caller that evaluates them itself and
        leaves them, and nothing else, in the cache. The text has to fit in the context; not with `translate`.
        """
        self._drafted = None
        return self._pending(self._text, 0)

    def choose(self, logits: Tensor, uniform: Tensor | None) -> Choice:
        choice = super().choose(logits, uniform)
        if self.translation is None:
            return choice
        return choice._replace(read=self.translation.to_drafter(choice.tokens))

    def _pending(self, context: list[int], gamma: int) -> list[int]:
        """Roll the cache back to what it shares with the committed text; return the missing tokens, at least one."""
        if self.translation is not None and len(context) + gamma > self._capacity:
            # It is not known beforehand how many tokens a text takes in the other tokenizer.
            self._prefill(context, 2 * (len(context) + gamma))
        followed = self._decoder.follow()
        self._cached[:followed] = context[:followed]
        shared, most = max(self._sure, followed), min(len(self._cached), len(context) - 1)
        while shared < most and self._cached[shared] == context[shared]:
            shared += 1
        shared = min(shared, most)
        self._decoder.length = shared
        self._cached[shared:] = context[shared:]
        # Committed tokens stay; their tokenisation may still change with what follows.
        self._sure = len(context) if self.translation is None else 0
        return context[shared:]

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        super().commit(tokens)
        if self._drafted is not None:
            self._cached += self._drafted[:-1].tolist()
        self._drafted = None
        self._text += tokens if self.translation is not None else self.known(tokens)

    def take_for_drafted(self, tokens: Tensor) -> None:
        """Go on as if these tokens [N] had been drafted, after a draft that only took time: the slots hold others."""
        self._drafted = tokens.to("cpu", non_blocking=True)

    def retract(self, count: int) -> bool:
        length = len(self._text) - count
        if length < 1 or len(self._text) > self._decoder.context_length:
            return False
        del self._text[length:]
        self._sure = min(self._sure, length)  # `_pending` finds the slots that the next tokens leave as they are
        return True

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        """See `Drafter.laws`. None where a proposal depends on more than the text before it, and beyond the model's
        context. Raises NumericsError: q is not finite.
        """
        if self.capabilities.replay != "position" or len(prompt) + len(text) - 1 > self._decoder.context_length:
            return None
        logits = self.align(self._decoder.score(self.known(prompt), self.known(text)[:-1])[: len(text)])
        q = probabilities(logits, self.sampling)
        if not torch.isfinite(q).all():
            raise NumericsError(self.not_finite)
        return q

    def align(self, logits: Tensor) -> Tensor:
        """Return the model's logits over the target's tokens [..., V], -inf for tokens that it cannot propose."""
        if self.translation is not None:
            return self.translation.align(logits)
        missing = self._size - logits.shape[-1]
        # A negative padding cuts.
        return logits if missing == 0 else pad(logits, (0, missing), value=-torch.inf)

    def known(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens that the model knows: ids beyond its matrix stand for no token; it reads its first one."""
        size = self._decoder.vocab_size
        return list(tokens) if size >= self._size else [token if token < size else 0 for token in tokens]

    def batched(self, slots: int) -> "BatchedSmallModel | None":
        """See `Drafter.batched`; None with `translate`, for a model that does not compute so, for a part of the
        target's own, and where one call drafts all tokens.
        """
        if self.capabilities.replay != "position" or self.capabilities.runs_target:
            return None
        if not isinstance(self._decoder, Decoder) or not self._decoder.probed.batch:
            return None
        ragged = RaggedDecoder(self._decoder, slots)
        texts = [copy.copy(self) for _ in range(slots)]
        for slot, text in enumerate(texts):
            text._decoder, text._loop = SlotDecoder(ragged, slot), None
            text._begin(None)
        return BatchedSmallModel(ragged, texts)

    def describe(self) -> dict[str, Any]:
        probed = asdict(self._decoder.probed)
        probed.pop("pending")  # as for targets
        return {**describe_model(self.model, self.name), "probe": probed}

    @property
    def notes(self) -> tuple[str, ...]:
        return (*said_of_weights(self.model, "drafter", self.name), *said_of(self._decoder))

    @property
    def passes(self) -> Mapping[str, Mapping[str, Any]]:
        return self._decoder.choices if isinstance(self._decoder, Decoder) else {}

    @property
    def flops_per_token(self) -> float:
        return self._decoder.flops_per_token


@dataclass(frozen=True)
class TreeModel:
    """A model that drafts a tree, at the beginning of a round: the calls that it takes, and the laws that it gives."""

    decoder: Decoder
    pending: Tensor  # committed tokens that its cache lacks, the root last
    committed: int  # slots of the text in the cache, once it has read what is pending
    of_logits: Callable[[Tensor], Tensor]  # turns its logits [M, D] into laws or scores [M, V] of the target's tokens

    def reads(self, asked: Asked) -> tuple[Tensor, Tree]:
        """Return what the next call evaluates, for laws after nodes of the draft so far: ids beyond the model's own
        stand for no token; it reads its first one instead.
        """
        if len(asked.tree) == 0:
            return self.pending, chain_tree(len(self.pending) - 1)
        self.decoder.length = self.committed - 1
        known = torch.where(asked.tokens < self.decoder.vocab_size, asked.tokens, 0)
        return torch.cat([self.pending[-1:], known]), asked.tree

    def laws(self, logits: Tensor, asked: Asked) -> Tensor:
        """Return the laws after the nodes, by the logits of that call."""
        if len(asked.tree) == 0:
            return self.of_logits(logits[-1:])
        wanted = index_on(logits.device, tuple(node + 1 for node in asked.nodes))
        return self.of_logits(logits.index_select(0, wanted))


def draft_tree(models: Sequence[TreeModel], growth: Growth) -> Draft:
    """Draft with one call of each model for each level (see `growing` for how several models share the siblings). The
    first call is over `pending`, the others over root and all nodes so far, from the root's place in the cache on, with
    the tree's mask. Nodes are evaluated again at every level, because the cache holds one sequence and none of the
    branches beside it. Afterwards each cache has the committed text and no node of the draft.
    """

    def after(asked: Asked) -> Tensor:
        laws = [model.laws(model.decoder.forward(*model.reads(asked)), asked) for model in models]
        return torch.stack(laws) if len(laws) > 1 else laws[0]  # [K, M, V]

    draft = grow(growth, after)
    for model in models:
        model.decoder.length = model.committed
    return draft


class BatchedSmallModel(BatchDrafter):
    """One model that drafts for several texts, over a cache with a length for each: every token of the drafts, or every
    level of trees, takes one call on all texts. Its calls are eager.
    """

    texts: Sequence[SmallModel]

    def __init__(self, ragged: RaggedDecoder, texts: Sequence[SmallModel]) -> None:
        super().__init__(texts)
        self._ragged = ragged

    def reserve(self, capacity: int) -> None:
        self._ragged.reserve(capacity)

    def draft(self, structures: Mapping[int, Structure]) -> dict[int, Draft]:
        drafts, trees, growths = dict.fromkeys(structures, EMPTY), dict[int, TreeModel](), dict[int, Growth]()
        chains, read = dict[int, GrowingChain](), dict[int, Tensor]()  # and what the next call reads
        for slot, structure in structures.items():
            text = self.texts[slot]
            shape = structure.clamped(max(0, text.reach(structure.gamma)))
            if structure.single and shape.gamma:
                chains[slot] = text.new_chain(shape.gamma, shape.threshold)
                read[slot] = torch.tensor(text.lacking()).to(self._ragged.device, non_blocking=True)
            elif shape.gamma:
                trees[slot], growths[slot] = text.tree_model(shape), text.growth(shape)

        def after(asked: Mapping[int, Asked]) -> dict[int, Tensor]:
            read = [trees[slot].reads(wanted) for slot, wanted in asked.items()]
            calls = self._ragged.forward(list(asked), [tokens for tokens, _ in read], [tree for _, tree in read])
            return {slot: trees[slot].laws(logits, asked[slot]) for slot, logits in zip(asked, calls, strict=True)}

        # One call for each level of all trees, as `draft_tree` does for one text.
        for slot, grown in grow_together(growths, after).items():
            trees[slot].decoder.length = trees[slot].committed
            drafts[slot] = self.texts[slot].checked(grown)
        any_text = self.texts[0]
        # Chains take a call for each token; a text leaves when its draft is long enough or no longer likely.
        while read:
            slots = list(read)
            calls = self._ragged.forward(slots, list(read.values()))
            logits = any_text.align(torch.cat([each[-1:] for each in calls]))  # [B, V]
            numbers = [uniform for slot in slots if (uniform := chains[slot].next_uniform) is not None]
            chosen = any_text.choose(logits, torch.stack(numbers).unsqueeze(-1) if numbers else None)
            read = {}
            for place, slot in enumerate(slots):
                at = slice(place, place + 1)
                q = None if chosen.q is None else chosen.q[at]
                if chains[slot].goes_on(Choice(chosen.tokens[at], chosen.read[at], q), logits[at]):
                    read[slot] = chosen.read[at]
        return drafts | {slot: self.texts[slot]._chain(joined(chain.choices)) for slot, chain in chains.items()}

    def release(self, slot: int) -> None:
        self.texts[slot]._begin(None)
        self._ragged.release(slot)


def _is_encoder_decoder(target: Target) -> bool:
    return target.model is not None and bool(target.model.config.is_encoder_decoder)

"""A smaller language model that drafts token by token, over a cache of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.errors import NumericsError, UsageError
from specdec.models.decoder import Decoder
from specdec.models.draft_loop import Choice, StaticLoop, joined
from specdec.models.load import Dtype, describe_model, load_model, load_tokenizer, model_path, resolve_dtype
from specdec.models.rollback import check_rollback
from specdec.models.seq2seq import Seq2SeqDecoder, decoder_of
from specdec.records import EMPTY, Draft, Source, TextStart, chain_tree
from specdec.sampling import all_finite, drawn, generator_on, one_hot, probabilities
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.model_tree import TreeModel, draft_tree
from specdec.tree_building.siblings import How, Siblings
from specdec.tree_building.translation import Translation, check_same


@typed
class SmallModelConfig:
    name: Literal["small_model"]
    model: str
    dtype: Dtype
    attention: Literal["auto", "sdpa", "eager"]
    drafts: Literal["sampled", "greedy"]
    siblings: Siblings
    translate: bool
    prefill_chunk: AtLeastOne


@drafters.register("small_model")
class SmallModel(Drafter):
    """Drafts with a second transformers model (Leviathan et al. 2211.17192, section 2; Chen et al. 2302.01318).

    q is the model's law, standardised by the target's own sampling so that both are cut alike, and each token is drawn
    from it. Under a greedy target, or with `drafts=greedy`, each token is the most likely one, a point mass. A draft
    takes gamma calls of the model, the first on the one or two committed tokens that its cache lacks. Where the
    structure has a `threshold`, the model's own probability of the drafted token (softmax at temperature 1) is read
    after every token, which waits for the device. Otherwise nothing in a draft waits, and where the target is captured
    in CUDA graphs, so is a whole draft of the primary gamma (see `StaticLoop`).

    Needs the target's tokenizer. Where output matrices are padded to different widths, q is 0 beyond the narrower one.
    With `translate`, any tokenizer that shares pieces will do (see `Translation`); a round then begins by tokenising
    the whole text anew, so a proposal depends on where the round began and the replay is the copying one.

    Rows and trees grow level by level (see `draft_tree`): children are drawn from q as `siblings` says, or ranked by
    likelihood where they are point masses. This works between decoder-only models of one tokenizer.

    Nothing is offered where the text is longer than the model's context; a draft that would pass its end stops there.

    Attributes:
        model: the transformers model.
        sampling: makes laws of its logits: the target's, or the greedy one.
        strategy: the name in `Source`; a drafter that drafts in this way with a model of its own making sets its own.
        translation: between the tokenizers, where they differ.
    """

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, reports_confidence=True, replay="position")

    def __init__(
        self,
        model: Any,
        target: Target,
        tokenizer: Any = None,
        *,
        drafts: Literal["sampled", "greedy"] = "sampled",
        siblings: Siblings = "without_replacement",
        translate: bool = False,
        decoder: Decoder | Seq2SeqDecoder | None = None,
    ) -> None:
        """
        Args:
            decoder: of the model; None for one with the usual settings.
        Raises:
            UsageError: a model of another kind than the target's, or another tokenizer.
            ModelLoadError: a model whose cache cannot be rolled back.
        """
        self.name = model.name_or_path or type(model).__name__  # of its folder, or made in memory
        model.eval().requires_grad_(False)
        _check_kind(self.name, model, target, translate)
        self.model, self.tokenizer = model, tokenizer
        self._greedy = drafts == "greedy" or target.sampling.greedy
        self.sampling = replace(target.sampling, temperature=0.0) if self._greedy else target.sampling
        self._decoder = decoder or decoder_of(model, self.name, 512)
        self.strategy = "small_model"
        check_rollback(self._decoder)
        self._device, self._size = target.device, target.vocab_size
        self._compilation = target.compilation
        self._siblings: Siblings = siblings
        self._loop: StaticLoop | None = None
        self.translation: Translation | None = None
        vocab_size = target.vocab_size
        if translate:
            self.translation = Translation(self.name, tokenizer, self._decoder.vocab_size, target)
            self.capabilities = replace(self.capabilities, replay="copying")
        elif tokenizer is not None and target.tokenizer is not None:
            check_same(self.name, tokenizer, target.tokenizer)
        else:
            vocab_size = self._decoder.vocab_size
        self.capabilities = replace(self.capabilities, vocab_size=vocab_size)
        self._reset(None)

    @classmethod
    def from_config(cls, config: SmallModelConfig, target: Target) -> "SmallModel":
        name = model_path(config.model, "drafter")
        model = load_model(
            name,
            dtype=resolve_dtype(config.dtype),
            device=target.device,
            attention=config.attention,
            kind="encoder_decoder" if _is_encoder_decoder(target) else "causal",
        )
        return cls(
            model,
            target,
            load_tokenizer(name),
            drafts=config.drafts,
            siblings=config.siblings,
            translate=config.translate,
            decoder=decoder_of(model, name, config.prefill_chunk),
        )

    def _reset(self, generator: torch.Generator | None) -> None:
        self._generator = generator_on(generator, self._device)
        # The text so far: in the target's tokens where they are translated, from the root on where an encoder has the
        # rest.
        self._text: list[int] = []
        self._cached: list[int] = []  # the model's own token in each slot of its cache
        self._sure = 0  # slots that a longer text cannot change
        self._capacity = 0
        self._drafted: Tensor | None = None  # [N] the model's own tokens, since the last commit
        self._finite: Tensor | None = None

    @torch.inference_mode()
    def prepare(self, capacity: int, structure: Structure) -> None:
        if self._compilation is None or not isinstance(self._decoder, Decoder):
            return
        # A call has one token, or two at the start of a draft whose predecessor was accepted whole.
        self._decoder.compile({1, 2}, capacity, self._compilation)
        captures = self._compilation == "inductor" and self._device.type == "cuda" and self._decoder.compiled
        if captures and self._decoder.loops and structure.single and structure.threshold == 0:
            self._loop = self._static_loop(structure.gamma)
            self._loop.capture()

    def _static_loop(self, gamma: int) -> StaticLoop:
        """Return a loop over the decoder's present cache."""
        assert isinstance(self._decoder, Decoder)
        return self._decoder.static_loop(gamma, lambda logits, uniform: self._choose(self.align(logits), uniform))

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._reset(text.generator)
        if self.translation is not None:
            self._text = list(text.prompt)
            context = self.translation.read(text.prompt)
            self._prefill(context, max(text.capacity, 2 * len(context)))
            return
        self._text = self._known(text.prompt)
        if len(self._text) <= self._decoder.context_length:
            root = self._prefill(self._text, text.capacity)
            # An encoder-decoder's prompt is in its encoder, not in the cache: its own text begins at the root.
            self._text = [*self._cached, root]

    def _prefill(self, tokens: list[int], capacity: int) -> int:
        """Fill a new cache and return the root. Nothing happens where the tokens do not fit in the model's context."""
        self._cached, self._sure = [], 0
        self._decoder.length = 0
        if not 0 < len(tokens) <= self._decoder.context_length:
            return -1
        root = self._decoder.start(tokens, capacity)
        self._cached, self._capacity = tokens[: self._decoder.length], capacity
        self._sure = 0 if self.translation is not None else len(self._cached)
        return root

    def draft(self, structure: Structure) -> Draft:
        if not structure.single:
            return self._branching(structure)
        context = self._context()
        gamma = self._within(structure.gamma, context)
        if gamma < 1:
            return EMPTY
        pending = self._pending(context, gamma)
        # Drawn at once, so that every way of drafting uses the same numbers.
        uniforms = None
        if not self._greedy:
            uniforms = torch.rand(gamma, generator=self._generator, device=self._device, dtype=torch.float64)
        if self._loops(pending, context, gamma, structure.threshold):
            assert self._loop is not None
            drafted = self._loop(context[-2:], len(context) - 2, uniforms)
        else:
            drafted = self._step_by_step(pending, gamma, uniforms, structure.threshold)
        self._drafted = drafted.read.to("cpu", non_blocking=True)
        self._finite = all_finite(drafted.q)
        size = len(drafted.tokens)
        return Draft(drafted.tokens, chain_tree(size), drafted.q, (Source(self.strategy, 0),) * size)

    def _context(self) -> list[int]:
        return self._text if self.translation is None else self.translation.read(self._text)

    def _within(self, gamma: int, context: Sequence[int]) -> int:
        """Return how many of `gamma` tokens fit in the model's context, below 1 where none do."""
        return min(gamma, self._decoder.context_length + 1 - len(context)) if context else 0

    def _branching(self, structure: Structure) -> Draft:
        """Draft rows or a tree; raises UsageError as `tree_model` does."""
        ranked = self._greedy or structure.beam is not None
        gamma = self.reach(structure.gamma)
        if gamma < 1:
            return EMPTY
        how: How = "ranked" if ranked else self._siblings
        shape = structure.clamped(gamma)
        draft = draft_tree([self.tree_model(shape, ranked, self.strategy)], shape, how, self._generator)
        self._finite = all_finite(draft.q)
        return draft

    def reach(self, gamma: int) -> int:
        """Return how many levels of `gamma` fit in the model's context; 0 or fewer where the text does not."""
        return self._within(gamma, self._context())

    def tree_model(self, structure: Structure, ranked: bool, strategy: str) -> TreeModel:
        """Return this model as one that drafts rows or a tree after the text so far, which has to fit in its context.

        Args:
            ranked: children are the most likely tokens, not draws.
            strategy: the name in `Source`.
        Raises:
            UsageError: between tokenizers, or from an encoder-decoder.
        """
        decoder = self._decoder
        if self.translation is not None or not isinstance(decoder, Decoder):
            who = "with drafter.translate=true" if self.translation is not None else "as an encoder-decoder"
            raise UsageError(
                f"Bad value structure={structure.name}: {who} drafter small_model drafts chains only; "
                "use structure=chain."
            )

        def laws(logits: Tensor) -> Tensor:
            logits = self.align(logits)
            return logits if ranked else probabilities(logits, self.sampling)

        self._drafted = None
        return TreeModel(strategy, decoder, self._pending(self._text, structure.gamma), laws)

    def _loops(self, pending: list[int], context: list[int], gamma: int, threshold: float) -> bool:
        """Return whether the captured loop can make this draft: of its length, in its cache, without a threshold."""
        loop = self._loop
        if loop is None or loop.gamma != gamma or threshold > 0 or loop.cache is not self._decoder.cache:
            return False
        return len(pending) <= 2 <= len(context)

    def _step_by_step(self, pending: list[int], gamma: int, uniforms: Tensor | None, threshold: float) -> Choice:
        """Draft with a call of the model for each token, until gamma or the threshold."""
        tokens = torch.tensor(pending).to(self._device, non_blocking=True)
        choices: list[Choice] = []
        chance = 1.0
        while True:
            logits = self.align(self._decoder.forward(tokens, chain_tree(len(tokens) - 1))[-1:])  # [1, V]
            choices.append(self._choose(logits, None if uniforms is None else uniforms[len(choices)]))
            if len(choices) == gamma:
                break
            if threshold > 0:
                # Read after the draw, which is never undone: withdrawing unlikely tokens would bias the output.
                confidence = logits.softmax(-1, dtype=torch.float32).gather(-1, choices[-1].tokens.unsqueeze(-1))
                chance *= float(confidence)
                if chance < threshold:
                    break
            tokens = choices[-1].read
        return joined(choices)

    def _choose(self, logits: Tensor, uniform: Tensor | None) -> Choice:
        """Choose the next token by logits [1, V] over the target's tokens; greedy drafts need no `uniform` []."""
        q = None
        if self._greedy:
            tokens = logits.max(dim=-1).indices
        else:
            assert uniform is not None
            q = probabilities(logits, self.sampling)
            tokens = drawn(q, uniform)
        return Choice(tokens, tokens if self.translation is None else self.translation.to_drafter(tokens), q)

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
        """See `Drafter.commit`.

        Raises:
            NumericsError: the q of the round's draft was not finite. It is seen only here, because by now the host
                has waited for the device.
        """
        if self._finite is not None and not self._finite:
            raise NumericsError(_NOT_FINITE)
        if self._drafted is not None:
            self._cached += self._drafted[:-1].tolist()
        self._drafted = self._finite = None
        self._text += tokens if self.translation is not None else self._known(tokens)

    def retract(self, count: int) -> bool:
        length = len(self._text) - count
        if length < 1 or len(self._text) > self._decoder.context_length:
            return False
        del self._text[length:]
        self._sure = min(self._sure, length)  # `_pending` finds the slots that the next tokens leave as they are
        return True

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        """See `Drafter.laws`. None with `translate`, and for a text that is longer than the model's context.

        Raises:
            NumericsError: q is not finite.
        """
        if self.translation is not None or len(prompt) + len(text) - 1 > self._decoder.context_length:
            return None
        logits = self.align(self._decoder.score(self._known(prompt), self._known(text)[:-1])[: len(text)])
        if self._greedy:
            return one_hot(logits.max(dim=-1).indices, self._size)
        q = probabilities(logits, self.sampling)
        if not torch.isfinite(q).all():
            raise NumericsError(_NOT_FINITE)
        return q

    def align(self, logits: Tensor) -> Tensor:
        """Return the model's logits over the target's tokens [..., V], -inf for tokens that it cannot propose."""
        if self.translation is not None:
            return self.translation.align(logits)
        missing = self._size - logits.shape[-1]
        # A negative padding cuts.
        return logits if missing == 0 else pad(logits, (0, missing), value=-torch.inf)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens that the model knows: ids beyond its matrix stand for no token; it reads its first one."""
        size = self._decoder.vocab_size
        return list(tokens) if size >= self._size else [token if token < size else 0 for token in tokens]

    @property
    def prefill_chunk(self) -> int:
        """The number of tokens that one call of a decoder-only model's prefill evaluates."""
        assert isinstance(self._decoder, Decoder)
        return self._decoder.prefill_chunk

    def describe(self) -> dict[str, Any]:
        return describe_model(self.model, self.name)

    @property
    def flops_per_token(self) -> float:
        return self._decoder.flops_per_token


_NOT_FINITE = (
    "The drafter's logits are not finite: the run stops here. Try drafter.dtype=float32, or check drafter.model."
)


def _is_encoder_decoder(target: Target) -> bool:
    return target.model is not None and bool(target.model.config.is_encoder_decoder)


def _check_kind(name: str, model: Any, target: Target, translate: bool) -> None:
    """Check that drafter and target are both decoder-only or both encoder-decoders; raises UsageError."""
    kinds = {False: "decoder-only", True: "encoder-decoder"}
    own, theirs = bool(model.config.is_encoder_decoder), _is_encoder_decoder(target)
    if own != theirs:
        raise UsageError(
            f"Bad value drafter.model={name}: it is {kinds[own]} and the target {kinds[theirs]}; use two of one kind."
        )
    if own and translate:
        raise UsageError("Bad value drafter.translate=true: it works between decoder-only models; use false.")

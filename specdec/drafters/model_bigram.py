"""The target's own bigram: its most likely tokens after each single token of its vocabulary, in a table made once."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import drafters
from specdec.drafters.base.lookup import TokenLookup
from specdec.errors import UsageError
from specdec.models.load import Dtype
from specdec.ngrams.bigram_table import BigramTable, Form, tabulate, tabulate_law
from specdec.ngrams.cache_folder import made_once, read_arrays, write_arrays
from specdec.ngrams.source_model import SourceModel, source_model
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_FORMAT = "specdec bigram table 1"
_SHARED = 0.9  # of the tokens: beyond it a table says the same of all
_LARGEST_LAW = 4096  # tokens of a target without a model, which is asked token by token


Extend = Literal["chain", "greedy"]


@typed
class ModelBigramConfig:
    name: Literal["model_bigram"]
    model: Annotated[str, Field(min_length=1)] | None
    dtype: Dtype
    begin: bool
    k: AtLeastOne
    extend: Extend
    extend_k: AtLeastOne
    extend_w: AtLeastOne
    batch_size: AtLeastOne
    cache_dir: Annotated[str, Field(min_length=1)] | None

    @model_validator(mode="after")
    def _extends_what_is_ranked(self) -> Self:
        """Check that there is a token for each row that is written out. Raises UsageError."""
        if self.extend == "greedy" and self.extend_k > self.k:
            raise UsageError(f"Bad value drafter.extend_k={self.extend_k}: it should be at most drafter.k={self.k}.")
        return self


@drafters.register("model_bigram")
class ModelBigram(TokenLookup):
    """Proposes the k most likely tokens of p(. | x), x the last token, under the target itself (N-Grammys 2411.03786).
    x is alone in the model's context, unless `begin` puts the begin token in front.

    Deterministic: q is a point mass. Further tokens of a row follow the table from token to token (`extend=chain`), or
    are those that greedy decoding writes after the pair (`extend=greedy`): these are tabulated for the first `extend_k`
    choices after every token and for `extend_w` tokens of a row; what is beyond follows the table. A node of a tree
    takes the choice of its rank among its siblings, after its parent. A draft costs a few list look-ups and no model.

    Needs the target's model, or `drafter.model` for a target that has none; a target with an explicit law of few tokens
    is asked for that. Tables of models are kept in `cache_dir`. With `extend=chain` a token depends only on the text
    before it, so the replay is position-wise; with `extend=greedy` it depends on where the round began.
    """

    strategy = "model_bigram"

    def __init__(
        self, table: BigramTable, target: Target, k: int, extend: Extend, described: Mapping[str, Any]
    ) -> None:
        """
        Args:
            described: what is recorded about the model of the table.
        """
        super().__init__(target, k)
        if extend == "greedy":
            self.capabilities = replace(self.capabilities, replay="start")
        self._described = {**described, "bigram_tokens": int(table.first.shape[1]), "extend": extend}
        self._ranked, self._rest = table.first, table.rest
        self._next: list[int] = table.first[:, 0].tolist()  # the most likely token after each

    @classmethod
    def from_config(cls, config: ModelBigramConfig, target: Target) -> "ModelBigram":
        source = source_model(config.model, config.dtype, target)
        table = _of_law(config, target) if source is None else _of_model(config, source, target)
        shared = np.bincount(table.first[:, 0]).max() / len(table.first)
        if shared > _SHARED and source is not None and not config.begin:
            logger.warning(
                "After %.1f%% of the tokens %s finds the same one most likely: it has learnt to attend to what begins "
                "a text, and says nothing of a token alone; drafter.begin=true puts its begin token in front.",
                100 * shared,
                source.name,
            )
        return cls(table, target, config.k, config.extend, {} if source is None else source.described)

    def ranked(self, token: int, count: int) -> Sequence[int]:
        return self._ranked[token, :count].tolist()

    def rows(self, token: int, k: int, w: int) -> list[tuple[int, ...]]:
        following = self._next
        decoded = self._rest[token, :k, : w - 1].tolist()
        rows = []
        for rank, last in enumerate(self.ranked(token, k)):
            row = [last]
            if rank < len(decoded) and decoded[rank]:
                row += decoded[rank]
                last = row[-1]
            for _ in range(w - len(row)):
                last = following[last]
                row.append(last)
            rows.append(tuple(row))
        return rows

    def describe(self) -> dict[str, Any]:
        return dict(self._described)


def _of_model(config: ModelBigramConfig, source: SourceModel, target: Target) -> BigramTable:
    begin = source.model.config.get_text_config().bos_token_id if config.begin else None
    if config.begin and begin is None:
        raise UsageError(f"Bad value drafter.begin=true: {source.name} has no begin token; use false.")
    form = _form(config, source.described["dtype"], None if begin is None else int(begin))

    def make() -> BigramTable:
        logger.info("Tabulating p(. | x) of %s for every token x", source.name)
        return tabulate(source.model, source.name, form, config.batch_size)

    if config.cache_dir is None:
        return make()
    # A model that was made in memory has neither; it is the target's own.
    weights = source.described.get("sha256") or source.described.get("commit") or target.hidden.identity
    return made_once(
        config.cache_dir,
        f"{_FORMAT}/{weights}/{json.dumps(asdict(form))}",
        "bigram table",
        make,
        lambda path, table: write_arrays(path, vars(table), _FORMAT),
        lambda path: BigramTable(**read_arrays(path, _FORMAT)),
    )


def _of_law(config: ModelBigramConfig, target: Target) -> BigramTable:
    """Return the table of a target without a model, made from its own law; it is not kept.

    Raises:
        UsageError: a recorded stream, which has no law; too large a vocabulary.
    """
    if target.vocab_size > _LARGEST_LAW:
        raise UsageError(
            f"Bad value drafter.model=null: the target has no model, and asking it about {target.vocab_size} tokens "
            "one by one would take too long; give a drafter.model with the same tokens."
        )
    if config.begin:
        raise UsageError("Bad value drafter.begin=true: a target without a model has no begin token; use false.")
    form = _form(config, "law", None)
    try:
        return tabulate_law(lambda text: target.score(text, [])[-1], target.vocab_size, form)
    except UsageError:
        raise UsageError(
            "Bad value drafter.model=null: the target has no model, and cannot say what follows a token on its own; "
            "give a drafter.model with the same tokens."
        ) from None


def _form(config: ModelBigramConfig, dtype: str, begin: int | None) -> Form:
    greedy = config.extend == "greedy"
    return Form(dtype, begin, config.k, config.extend_k if greedy else 0, config.extend_w if greedy else 1)

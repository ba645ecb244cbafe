"""Retrieval: the tokens that follow the last ones in a large text, looked up in the order of all its suffixes."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Named, NonEmpty, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.ngrams import datastore
from specdec.ngrams.cache_folder import made_once
from specdec.ngrams.corpus import open_corpus, tokenize, tokenizer_digest
from specdec.records import TextStart
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import NOTHING, ContinuationTrie, Proposal

logger = logging.getLogger(__name__)


@typed
class RetrievalConfig(Named):
    model: NonEmpty | None
    corpus: NonEmpty | None
    field: NonEmpty | None
    match_max: Annotated[int, Field(ge=1, le=256)]
    match_min: AtLeastOne
    hits_max: AtLeastOne
    cache_dir: NonEmpty | None

    def __post_init__(self) -> None:
        least, most = self.match_min, self.match_max
        if least > most:
            raise UsageError(f"Bad value drafter.match_min={least}: it should be at most drafter.match_max={most}.")
        if self.model is not None and self.corpus is not None:
            raise UsageError(
                f"Bad value drafter.corpus={self.corpus}: a datastore is built from it, and drafter.model={self.model} "
                "is one already; set one of them to null."
            )


@drafters.register("retrieval")
class Retrieval(Lookup):
    """Looks up the longest suffix of the text, of `match_max` tokens at most and `match_min` at least, in a datastore,
    and drafts the continuations of its hits that are most common (REST, He et al. 2311.08252, section 3).

    The continuations are counted in a trie. A chain is the one whose beginnings have the largest sum of counts, rows
    are the k such, a node of rank j in a tree is the (j+1)-th most common token after its parent, and a dynamic tree
    has the most common nodes. REST counts the first 5000 hits in the order of the suffixes, which favours tokens with
    small numbers; here up to `hits_max` are spread evenly over all.

    Deterministic (q is a point mass); a draft costs some binary searches in memory-mapped files; needs a datastore in
    the target's own tokens, or a corpus to build it from.
    """

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, replay="start")

    def __init__(self, config: RetrievalConfig, target: Target) -> None:
        super().__init__(target)
        self._store = _built(config, target) if config.model is None else _opened(config.model, target)
        self._least, self._most, self._limit = config.match_min, config.match_max, config.hits_max
        self._text: list[int] = []

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._text = list(text.prompt)

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._text.extend(tokens)

    def retract(self, count: int) -> bool:
        del self._text[len(self._text) - count :]
        return True

    def propose(self, structure: Structure) -> Proposal:
        if structure.gamma == 0:
            return NOTHING
        rows = self._store.continuations(self._text[-self._most :], self._least, structure.gamma, self._limit)
        return ContinuationTrie(rows, counted=True).proposal(structure, "retrieval") if rows else NOTHING

    def describe(self) -> dict[str, Any]:
        return {"class": "Datastore", "weight_bytes": self._store.bytes, **self._store.about}


def _opened(model: str, target: Target) -> datastore.Datastore:
    path = Path(model).expanduser()
    said, what = f"Bad value drafter.model={model}:", "no datastore, or a damaged one"
    index = path.suffix == ".idx" and path.is_file()
    if not index and not path.is_dir():
        raise UsageError(f"{said} there is no such folder; give one that a run with drafter.corpus=FILE has written.")
    try:
        if index:
            what = "no datastore of REST for the target"
            return datastore.open_rest_index(path, target.vocab_size)
        manifest = datastore.read_manifest(path)
        if (manifest.tokenizer, manifest.vocab_size) != (tokenizer_digest(target.tokenizer), target.vocab_size):
            raise UsageError(
                f"{said} it was built with another tokenizer (of {manifest.vocab_size} tokens, from {manifest.source}) "
                "than the target's; build one with drafter.model=null drafter.corpus=FILE."
            )
        return datastore.open_datastore(path, manifest)
    except ValueError as error:
        raise UsageError(f"{said} this is {what} ({error}); build it again.") from None
    except OSError as error:
        raise UsageError(f"{said} it cannot be read: {error.strerror}.") from None


def _built(config: RetrievalConfig, target: Target) -> datastore.Datastore:
    corpus, tokenizer = open_corpus(config.corpus, config.field), tokenizer_digest(target.tokenizer)

    def build() -> datastore.Datastore:
        logger.info("Building a datastore of %s", corpus.name)
        stream = tokenize(corpus, target.tokenizer, target.vocab_size)
        return datastore.in_memory(stream, target.vocab_size, corpus.name)

    def write(folder: Path, store: datastore.Datastore) -> None:
        datastore.write_datastore(folder, store, tokenizer, corpus.digest())
        logger.info("Wrote the datastore %s", folder)

    return made_once(
        config.cache_dir,
        lambda: f"{corpus.digest()}/{tokenizer}/{target.vocab_size}",
        "datastore",
        build,
        write,
        lambda folder: datastore.open_datastore(folder, datastore.read_manifest(folder)),
        suffix="",
    )

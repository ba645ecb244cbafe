"""Models that draft in parallel, as AMD publishes them: ordinary checkpoints whose config names a mask token."""

from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles
from specdec.published.recognise import CheckpointFormat, formats, matching, recognise

_MARKS = ("pard_token", "ptd_token_id", "spd_type")  # keys of the config that only such checkpoints have
_TOKENS = ("pard_token", "ptd_token_id", "mask_token_id")
_FEATURES = "warp_model.bin"


@formats.register("PARD")
class Pard(CheckpointFormat):
    """PARD (2504.18583): a language model with a tokenizer of its own. All masks are one token, a reserved one."""

    drafters = ("parallel",)

    def matches(self, files: CheckpointFiles) -> bool:
        marked = any(files.config.get(key) is not None for key in _MARKS)
        return marked and _is_language_model(files) and not _reads_features(files)


@formats.register("PARD-2")
class Pard2(CheckpointFormat):
    """PARD-2 (2605.08632)."""

    refusal = (
        f"the features of the target that its target_proj ({_FEATURES}) adds to the embeddings are not made, because "
        "which layers they come from is not established"
    )

    def matches(self, files: CheckpointFiles) -> bool:
        return _is_language_model(files) and _reads_features(files)


def mask_token_of(files: CheckpointFiles, given: int | None) -> int:
    """Return the mask token of a checkpoint that the drafter `parallel` is to read: `given`, or else its config's.
    Raises ModelLoadError: a checkpoint of another format (see `recognise`), or no mask token, or several.
    """
    if matching(files) or not files.tensors:
        recognise(files, "parallel")
    if given is not None:
        return given
    said = {key: files.setting(key, int) for key in _TOKENS if files.config.get(key) is not None}
    if not said:
        raise ModelLoadError(
            f"{files} names no mask token (pard_token in its config.json): set drafter.mask_token to the one that it "
            "was trained with; a model that was not trained to draft in parallel drafts with +drafter=small_model, or "
            "learns it with python -m specdec.train +parallel=pocket target.model=FOLDER."
        )
    several = ", ".join(f"{key}={value}" for key, value in said.items())
    files.refuse_if(
        len(set(said.values())) > 1,
        f"names several mask tokens ({several}): set drafter.mask_token to the one that it was trained with.",
    )
    return next(iter(said.values()))


def _is_language_model(files: CheckpointFiles) -> bool:
    # No tensor belongs to a drafter that reads the target's features in a decoder layer of its own.
    return SPECULATORS not in files.config and not {"fc.weight", "mask_hidden"} & files.tensors.keys()


def _reads_features(files: CheckpointFiles) -> bool:
    return (
        _FEATURES in files.pickles
        or any(key.startswith("pard2") for key in files.config)
        or any("target_proj." in name for name in files.tensors)
    )

"""The checks of `measurement.batch_size`: what a run decodes one sequence at a time is refused in one sentence."""

from specdec.config import RunConfig
from specdec.errors import UsageError
from specdec.prompts import PromptSet

_BATCHED = ("causal", "table")  # targets with a form for several sequences


def check_batch(config: RunConfig) -> None:
    """Check, before anything is loaded, that a run can decode several sequences at once.

    Raises:
        UsageError: the first part of the run that takes one sequence at a time.
    """
    size, measurement = config.measurement.batch_size, config.measurement
    if size == 1:
        return
    target = config.target["name"]
    for wrong, fault, instead in (
        (target not in _BATCHED, f"target={target} decodes one sequence at a time", "target=causal"),
        (
            config.target.get("evaluation") == "rows",
            "target.evaluation=rows needs the batch for the paths of one sequence",
            "target.evaluation=packed",
        ),
        (
            config.target.get("tensor_parallel", 1) != 1 or config.target.get("device_map") is not None,
            "a target on several devices decodes one sequence at a time",
            "a target on one device",
        ),
        (
            measurement.workers not in (None, 1),
            f"measurement.workers={measurement.workers} decode prompts one at a time each",
            "measurement.workers=null",
        ),
        (bool(measurement.peers), "peers decode one prompt at a time", "measurement.peers=[]"),
        (
            bool(config.drafter.get("forced", False)),
            "drafter.forced=true commits the recorded text of one sequence at a time",
            "drafter.forced=false",
        ),
    ):
        if wrong:
            raise _refused(size, fault, instead)


def check_turns(config: RunConfig, prompts: PromptSet) -> None:
    """Check that no prompt has later turns, which begin with the answers to earlier ones.

    Raises:
        UsageError: there are some, and several sequences are to be decoded at once.
    """
    if config.measurement.batch_size > 1 and any(prompt.follow_ups for prompt in prompts.prompts):
        fault = f"prompts={prompts.name} has later turns, which continue the answers to earlier ones"
        raise _refused(config.measurement.batch_size, fault, "prompts of one turn")


def refuse_batches(config: RunConfig, who: str) -> None:
    """Refuse several sequences at once for a command that decodes one at a time.

    Args:
        who: subject of the sentence.
    Raises:
        UsageError: `measurement.batch_size` is not 1.
    """
    if config.measurement.batch_size > 1:
        raise UsageError(
            f"Bad value measurement.batch_size={config.measurement.batch_size}: {who} decodes one sequence at a time; "
            "use measurement.batch_size=1."
        )


def _refused(size: int, fault: str, instead: str) -> UsageError:
    return UsageError(f"Bad value measurement.batch_size={size}: {fault}; use {instead}, or measurement.batch_size=1.")

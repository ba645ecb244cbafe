"""What is refused, and why: one table of rules for all commands. Knows no part by name but those that rules name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from specdec.errors import UsageError

Command = Literal["run", "study", "advise", "certify"]
Known = Literal["configuration", "drafter", "prompts", "made", "parts", "workers", "replay"]
"""When a rule can be decided: by the configuration alone; for each drafter, with its structure and acceptance rule;
when the prompts are read; when a drafter is made; when all parts are opened; for workers; and for advice, whose replay
follows from the opened parts."""

_OTHERS = "study advise certify"  # than a run


class Case(SimpleNamespace):
    """The values that conditions read and sentences quote: `command`, `who` (the command as a subject), `m` (the
    measurement), the plain values of the groups (`target`, `drafter`, ...), and what a later stage adds.
    """


@dataclass(frozen=True)
class Rule:
    """A combination that is refused."""

    known: Known  # when it can be decided
    broken: Callable[[Any], bool]  # the condition
    key: str  # key and value at fault; like the sentence it is a format string, which reads the case `c`
    sentence: str  # the reason, and what to do instead
    of: str = f"run {_OTHERS}"  # names of the commands that refuse it


def check(known: Known, case: Case) -> None:
    """Refuse what breaks a rule of one stage, by a UsageError with the sentence of the first such rule."""
    for rule in RULES:
        if rule.known == known and case.command in rule.of.split() and rule.broken(case):
            raise UsageError(f"Bad value {rule.key}: {rule.sentence}".format(c=case))


@contextmanager
def about_drafter(name: str, beside: bool) -> Iterator[None]:
    """Say in a UsageError which of several drafters it is about, and where its values stand."""
    try:
        yield
    except UsageError as error:
        if not beside:
            raise
        raise UsageError(
            f"{error} That is drafter {name!r} of measurement.drafters: its values stand in "
            f"measurement.drafter_settings.{name}."
        ) from None


# Only some commands ----------------------------------------------------------------------------------

_COMMANDS = (
    *(
        Rule("configuration", lambda c: bool(c.m.drafters), "measurement.drafters=[{c.drafters}]", sentence, command)
        for command, sentence in {
            "study": "{c.who} has its own drafters; use measurement.drafters=[].",
            "advise": "{c.who} predicts one drafter; use measurement.drafters=[] and ask for each.",
            "certify": "{c.who} certifies one drafter; use measurement.drafters=[] and ask for each.",
        }.items()
    ),
    Rule(
        "configuration", lambda c: c.m.batch_size > 1, "measurement.batch_size={c.m.batch_size}",
        "{c.who} decodes one sequence at a time; use measurement.batch_size=1.", "study advise",
    ),
    Rule(
        "configuration", lambda c: isinstance(c.m.budget_seconds, float),
        "measurement.budget_seconds={c.m.budget_seconds:g}",
        "{c.who} leaves no prompt out; use measurement.budget_seconds=null.", _OTHERS,
    ),
    Rule(
        "configuration", lambda c: c.m.null is True, "measurement.null=true",
        "{c.who} has no null control; use measurement.null=auto.", _OTHERS,
    ),
    Rule(
        "drafter", lambda c: c.target_can.recorded, "target={c.target[name]}",
        "it knows recorded tokens only, and a certificate compares with a law; use target=causal.", "certify",
    ),
    Rule(
        "configuration", lambda c: c.study is not None, "study",
        "{c.who} certifies one combination; leave +experiment out.", "certify",
    ),
    Rule(
        "drafter", lambda c: c.rule.greedy_only and not c.sampling.greedy, "verifier={c.verifier[name]}",
        "it is for temperature 0, and specdec.certify draws at {c.sampling.temperature}; add sampling=greedy.",
        "certify",
    ),
    Rule(
        "configuration", lambda c: not c.sampling.greedy, "sampling.temperature={c.sampling.temperature}",
        "{c.who} replays greedy texts or sets temperatures itself; use sampling=greedy.", "study",
    ),
)  # fmt: skip

# Several sequences, processes or drafters at once ----------------------------------------------------


def _one_by_one(broken: Callable[[Any], bool], fault: str, instead: str, known: Known = "configuration") -> Rule:
    """Return a rule on what decodes one sequence at a time."""
    return Rule(
        known, lambda c: c.m.batch_size > 1 and broken(c), "measurement.batch_size={c.m.batch_size}",
        f"{fault}; use {instead}, or measurement.batch_size=1.",
    )  # fmt: skip


def _left_out(broken: Callable[[Any], bool], fault: str, instead: str) -> Rule:
    """Return a rule on what no bound on a run's time can be kept with."""
    return Rule(
        "configuration", lambda c: isinstance(c.m.budget_seconds, float) and broken(c),
        "measurement.budget_seconds={c.m.budget_seconds:g}",
        f"prompts are left out one by one, and {fault}; use {instead}, or measurement.budget_seconds=null.", "run",
    )  # fmt: skip


def _in_step(broken: Callable[[Any], bool], key: str, instead: str) -> Rule:
    """Return a rule on what several processes that share the weights cannot do in step: times or files of one of them
    would decide what is called next.
    """
    return Rule(
        "configuration", lambda c: c.processes > 1 and broken(c), key,
        "the {c.target[tensor_parallel]} processes of target.tensor_parallel={c.target[tensor_parallel]} have to make "
        f"the same calls, and with this they would not; use {instead}, or target.tensor_parallel=1.", "run study",
    )  # fmt: skip


def _has_workers(c: Any) -> bool:
    return (c.m.workers or 1) > 1


_WORKERS = "measurement.workers={c.m.workers}"
_TOGETHER = (
    _in_step(lambda c: c.study is not None, "study", "a run without a study"),
    _in_step(lambda c: bool(c.m.peers), "measurement.peers", "measurement.peers=[]"),
    _in_step(_has_workers, _WORKERS, "measurement.workers=null"),
    _one_by_one(  # targets with a form for several sequences
        lambda c: c.target["name"] not in ("causal", "table"),
        "target={c.target[name]} decodes one sequence at a time", "target=causal",
    ),
    _one_by_one(
        lambda c: c.target.get("evaluation") == "rows",
        "target.evaluation=rows needs the batch for the paths of one sequence", "target.evaluation=packed",
    ),
    _one_by_one(
        lambda c: c.target.get("tensor_parallel", 1) != 1 or c.target.get("device_map") is not None,
        "a target on several devices decodes one sequence at a time", "a target on one device",
    ),
    _one_by_one(
        _has_workers, "measurement.workers={c.m.workers} decode prompts one at a time each", "measurement.workers=null"
    ),
    _one_by_one(lambda c: bool(c.m.peers), "peers decode one prompt at a time", "measurement.peers=[]"),
    _one_by_one(
        lambda c: bool(c.drafter.get("forced", False)),
        "drafter.forced=true commits the recorded text of one sequence at a time", "drafter.forced=false",
    ),
    _one_by_one(
        lambda c: c.later_turns,
        "prompts={c.prompts} has later turns, which continue the answers to earlier ones", "prompts of one turn",
        known="prompts",
    ),
    _left_out(_has_workers, "the {c.m.workers} workers begin prompts side by side", "measurement.workers=null"),
    _left_out(
        lambda c: c.m.batch_size > 1, "a batch decodes {c.m.batch_size} prompts at once", "measurement.batch_size=1"
    ),
    _left_out(
        lambda c: c.target.get("tensor_parallel", 1) != 1,
        "processes that share the weights have to decode the same prompts, and each has its own clock",
        "target.tensor_parallel=1",
    ),
    Rule(
        "configuration", lambda c: bool(c.beside) and c.drafter["name"] == "none", "measurement.drafters",
        "+drafter=none drafts nothing that others could be compared with; plain decoding is always measured, so choose "
        "one of them by +drafter=NAME.",
    ),
    Rule(
        "configuration", lambda c: c.stray is not None, "measurement.drafter_settings.{c.stray}",
        "it is not one of the drafters beside +drafter={c.drafter[name]} that measurement.drafters names; "
        "{c.place_of_stray}.",
    ),
    Rule(
        "drafter", lambda c: c.forced and bool(c.beside), "drafter.forced=true",
        "with it the recorded text is committed, so nothing beside it could be compared; use drafter.forced=false or "
        "measurement.drafters=[].",
    ),
)  # fmt: skip

# Parts that do not fit together ----------------------------------------------------------------------

_UNFILLED = "structure={c.structure[name]}"


def _no_claim(claims: Callable[[Any], bool], key: str, instead: str) -> Rule:
    """Return a rule on a part that does not claim to leave the target's law as it is, whatever the temperature."""
    return Rule(
        "drafter", lambda c: c.m.lossless and not claims(c), key,
        "it does not claim to be lossless as configured, and measurement.lossless=true asks for that; use "
        f"{instead}, or measurement.lossless=false.",
    )  # fmt: skip


def _other_original(differs: Callable[[Any], bool], what: str) -> Rule:
    """Return a rule on a model of `measurement.original` that the target cannot have been trained from."""
    return Rule(
        "parts", lambda c: c.original is not None and differs(c), "measurement.original={c.m.original}",
        f"it {what}; give the model that the target was trained from.",
    )  # fmt: skip


def _no_logits(known: Known) -> Rule:
    return Rule(
        known, lambda c: c.target_can.recorded and c.can.reads_logits, "drafter={c.drafter[name]}",
        "it learns from the target's logits, and target {c.target[name]!r} knows recorded tokens only; use "
        "target=causal.",
    )  # fmt: skip


_FITTING = (
    Rule(
        "drafter", lambda c: c.shape not in c.can.fills, _UNFILLED,
        "drafter {c.drafter[name]!r} fills only {c.fills}.",
    ),
    Rule(
        "drafter", lambda c: c.shape not in c.rule.handles, _UNFILLED,
        "verifier {c.verifier[name]!r} handles only {c.handles}.",
    ),
    Rule(
        "drafter", lambda c: c.shape not in c.target_can.structures, _UNFILLED,
        "target {c.target[name]!r} evaluates only {c.evaluates}.",
    ),
    _no_claim(lambda c: c.rule.lossless, "verifier={c.verifier[name]}", "verifier=speculative_sampling"),
    _no_claim(lambda c: c.can.lossless, "drafter={c.drafter[name]}", "another drafter"),
    _no_claim(lambda c: not c.drafter.get("forced", False), "drafter.forced=true", "drafter.forced=false"),
    Rule(
        "drafter", lambda c: c.target_can.recorded and not c.greedy_rule.lossless, "verifier={c.verifier[name]}",
        "target {c.target[name]!r} knows recorded tokens only, and this rule commits others; use "
        "verifier=speculative_sampling.",
    ),
    _no_logits("drafter"),
    Rule(
        "drafter", lambda c: c.rule.greedy_only and not c.sampling.greedy,
        "sampling.temperature={c.sampling.temperature}",
        "verifier {c.verifier[name]!r} is right only at 0; use verifier=speculative_sampling.",
    ),
    Rule(
        "drafter", lambda c: c.can.needs_reference and not c.sampling.greedy,
        "sampling.temperature={c.sampling.temperature}",
        "drafter {c.drafter[name]!r} reads the recorded greedy text; use sampling=greedy.",
    ),
    Rule(
        "configuration", lambda c: bool(c.m.peers) and c.target["name"] != "causal", "measurement.peers",
        "peers need target=causal; use measurement.peers=[].",
    ),
    Rule(
        "configuration", lambda c: c.m.original is not None and c.target["name"] != "causal",
        "measurement.original={c.m.original}",
        "a second baseline needs target=causal; use measurement.original=null.",
    ),
    Rule(
        "made", lambda c: c.can.vocab_size not in (None, c.vocab_size), "drafter={c.drafter[name]}",
        "it was made for a vocabulary of {c.can.vocab_size} tokens, the target has {c.vocab_size}; use a drafter with "
        "the target's own tokenizer.",
    ),
    Rule(
        "made", lambda c: c.shape not in c.can.fills, _UNFILLED,
        "drafter {c.drafter[name]!r} with these parts fills only {c.fills}.",
    ),
    _no_logits("made"),
    Rule(
        "made", lambda c: c.gamma > c.deepest, _UNFILLED,
        "it is {c.gamma} deep, and drafter {c.drafter[name]} drafts {c.deepest} levels at most; lower the "
        "structure's depth.",
    ),
    Rule(
        "parts", lambda c: c.m.max_new_tokens is None and not c.recorded, "measurement.max_new_tokens=null",
        "target {c.target[name]!r} would write without an end, only target=replay knows where its texts end; give a "
        "number of tokens.",
    ),
    Rule(
        "parts", lambda c: c.m.null is True and c.simulated, "measurement.null=true",
        "the time of target {c.target[name]!r} is simulated and has no noise; use measurement.null=auto.",
    ),
    _other_original(
        lambda c: c.original.vocab_size != c.opened.vocab_size,
        "has {c.original.vocab_size} tokens, the target {c.opened.vocab_size}",
    ),
    _other_original(
        lambda c: None not in (c.original.tokenizer, c.opened.tokenizer)
        and c.original.tokenizer.get_vocab() != c.opened.tokenizer.get_vocab(),
        "has another tokenizer",
    ),
    _other_original(
        lambda c: c.original.context_length < c.opened.context_length,
        "holds {c.original.context_length} tokens of context, the target {c.opened.context_length}",
    ),
    Rule(
        "workers", lambda c: bool(c.remembers), _WORKERS,
        "drafter {c.name} drafts from the outputs of earlier prompts, which other workers decode; use {c.remembers}, "
        "or measurement.workers=null.",
    ),
    Rule(
        "workers", lambda c: bool(c.m.peers), _WORKERS,
        "measurement.peers are timed against our methods in one process that nothing disturbs; use "
        "measurement.peers=[] or measurement.workers=null.",
    ),
    Rule(
        "workers", lambda c: c.device == "cuda" and c.workers > c.gpus, _WORKERS,
        "each worker takes a GPU, and there are {c.gpus}; use at most as many workers.",
    ),
    Rule(
        "workers", lambda c: c.device == "cpu" and c.free is not None and c.workers * c.weights > c.free, _WORKERS,
        "each worker loads the target's {c.weights:,} bytes, and {c.free:,} are free; use fewer workers.",
    ),
)  # fmt: skip

# What no text tells ----------------------------------------------------------------------------------

_MEASURE = "measure it with python -m specdec.run."
_REPLAYED = (
    Rule(
        "replay", lambda c: c.simulated, "target={c.target[name]}",
        "its time is simulated, and advice rests on measured time; give the model as the target and the recorded text "
        "as advice.text, or replay it with python -m specdec.run.",
    ),
    Rule(
        "replay", lambda c: c.can.replay is None, "drafter={c.drafter[name]}",
        "it cannot be replayed along a text; without advice.text its chains (structure=chain) can be advised on, or "
        f"{_MEASURE}",
    ),
    Rule(
        "replay", lambda c: c.decoded, "sampling.temperature={c.sampling.temperature}",
        "drafter {c.drafter[name]!r} can be replayed along a text only under sampling=greedy; for other temperatures "
        f"its chains (structure=chain) can be advised on without advice.text, or {_MEASURE}",
    ),
    Rule(
        "replay", lambda c: c.branches > 1 and not c.sampling.greedy, _UNFILLED,
        "with sampling.temperature={c.sampling.temperature} only chains can be advised on; use structure=chain or "
        f"sampling=greedy, or {_MEASURE}",
    ),
    Rule(
        "replay", lambda c: not c.sampling.greedy and not c.rule.token_by_token, "verifier={c.verifier[name]}",
        "the replay knows the rule of speculative sampling only; use verifier=speculative_sampling, or "
        f"{_MEASURE}",
    ),
    Rule(
        "replay", lambda c: c.sampling.greedy and not c.rule.lossless, "verifier={c.verifier[name]}",
        "it accepts other tokens than those of the target's own text, which is what is replayed; use verifier=greedy, "
        f"or {_MEASURE}",
    ),
)  # fmt: skip

RULES = (*_COMMANDS, *_TOGETHER, *_FITTING, *_REPLAYED)

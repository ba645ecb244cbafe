"""Sentences that a run says of its figures: four at most that close it in the terminal, the reasons that explain it
before any of its figures does, and the notes of its page.

The closing ones answer whether speculation pays, whether that is more than the machine's own noise, what costs most,
and whether the outputs were identical; whatever puts the others in doubt comes first, then the reasons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean
from typing import Any

from ..account.gap_account import Account
from ..account.verdicts import cost_alone, losses, nothing_gained, of_drafts, unsettled
from ..intervals import Interval, too_few
from ..read.facts import RunFacts, RunStatus, SessionFacts
from ..read.runs import Run
from ..rounds import prompt_categories
from ..sections import counted, in_loops
from .run_metrics import Summary, by_category

MOST_TOKENS = 0.5  # share of all tokens from which on one text decides about pooled figures
CHEAPER = 0.95  # a call on more tokens that takes less than this times one on fewer, and does so in
SURELY, CALLS = 0.8, 20  # this share of so many calls at least, which were timed in turn: by chance one time in 170
_ROUNDING = 1e-6  # of a sum of float32 probabilities


@dataclass(frozen=True)
class MeasuredRun:
    """Measurements of one drafter in a run, as far as sentences speak of them."""

    metrics: Mapping[str, float]
    account: Account  # of the primary gamma
    facts: RunFacts
    session: SessionFacts
    standing: RunStatus | None  # how far the run came; None in runs of earlier versions
    dtype: str  # number format of the target, for outputs that differ by rounding
    reasons: Sequence[str] = ()  # what `reasons` says of it


def reasons(summary: Summary, facts: RunFacts, prompt_set: str, calibration: Mapping[str, Any]) -> list[str]:
    """Return the reasons that explain a drafter's run, in the order in which they are said; none where it needs none.

    A busy machine comes first: it says what times stand for, or that they stand for nothing. Where drafts gained
    nothing that is all there is to explain; then come what the figures rest on alone, one text or one category, and a
    step in the cost of a call that decides about gamma. prompt_set: its name, which is the category of prompts that
    have none of their own; calibration: `calibration.json`.
    """
    arm, said = summary.primary, list(summary.work.machine.reasons)
    offered, accepted, rounds = (int(arm.sums[name].sum()) for name in ("offered", "accepted", "rounds"))
    if not offered:
        return [
            *said,
            f"No draft token was offered in any of {counted(rounds, 'round')}: the drafter found nothing to propose, "
            "so that this is plain decoding and the drafter's own time.",
        ]
    if nothing_gained(arm.account):
        saved = f"saved a call of the target, though {accepted:,} were accepted" if accepted else "was accepted"
        return [
            *said,
            f"None of {counted(offered, 'draft token')} {saved}: every round committed one token, as plain decoding "
            "does, so that drafts can only cost.",
        ]
    if arm.account.doubt:
        return said
    tokens = arm.sums["tokens"]
    share = tokens.max() / tokens.sum()
    if share > max(MOST_TOKENS, 2 / len(tokens)):
        said.append(
            f"One text of {len(tokens)}, {tokens.idxmax()}, holds {share:.0%} of all tokens, so that pooled figures "
            f"are nearly its own; the mean of the texts' speedups is {arm.metrics['speedup.prompt_mean']:.3f}."
        )
    categories = set(prompt_categories(summary.work.arms[summary.work.primary_gamma]))
    speedups = {name: Interval.from_metrics(each, "speedup") for name, each in by_category(arm.metrics).items()}
    gaining = [name for name, each in speedups.items() if each.estimate > 1]
    if len(categories) == 1:
        if not categories <= {"", prompt_set}:
            said.append(f"All prompts are of one category, {categories.pop()}: nothing here speaks for others.")
    elif arm.account.speedup > 1 and len(gaining) == 1 and speedups[gaining[0]].low > 1:
        rest = ", ".join(f"{each.estimate:.3f} in {name}" for name, each in speedups.items() if name not in gaining)
        said.append(
            f"All of the gain is that of one category: the speedup is {speedups[gaining[0]]} in {gaining[0]}, {rest}."
        )
    cheaper = _cheaper_call(summary, facts, calibration)
    return [*said, cheaper] if cheaper else said


def _cheaper_call(summary: Summary, facts: RunFacts, calibration: Mapping[str, Any]) -> str:
    """Name the largest jump of the speedup between neighbouring gammas that comes with a faster call on more tokens."""
    calls = {int(size): seconds for size, seconds in calibration.get("calls", {}).items()}
    gammas = [gamma for gamma in sorted(summary.arms) if gamma + 1 in calls]
    jumps = {}
    for few, many in pairwise(gammas if facts.structure == "chain" else ()):
        ratios = [calibration["t_n"][str(gamma + 1)]["ratio"] for gamma in (few, many)]
        faster = [more < less for less, more in zip(calls[few + 1], calls[many + 1], strict=True)]
        surely = len(faster) >= CALLS and mean(faster) >= SURELY
        before, after = (summary.arms[gamma].account for gamma in (few, many))
        tokens = after.value("tokens_per_round") / before.value("tokens_per_round")
        gain = after.speedup / before.speedup
        if surely and ratios[1] < CHEAPER * ratios[0] and gain > max(1.0, tokens):
            jumps[gain / tokens] = (
                f"A call on {many + 1} tokens takes less time here than one on {few + 1} ({ratios[1]:.2f} and "
                f"{ratios[0]:.2f} of one on a single token): the speedup is {before.speedup:.2f} at gamma {few} and "
                f"{after.speedup:.2f} at {many}, with {tokens - 1:+.0%} tokens per round."
            )
    return jumps[max(jumps)] if jumps else ""


def closing_sentences(run: MeasuredRun) -> list[str]:
    """Return the sentences that close a run with one drafter."""
    return _ordered(_loops(run) + _verdict(run), _cost(run), run)


def closing_of_several(runs: Mapping[str, MeasuredRun], compared: str) -> list[str]:
    """Return the sentences that close a run with several drafters, from what was measured of each, by its name; costs
    are those of the fastest one, the noise is that of the first. `compared` is a clause that says whether the two
    fastest can be told apart; "" where outputs are refuted of others.
    """
    order = sorted(runs, key=lambda name: (bool(runs[name].session.refuted), -runs[name].account.speedup))
    own, fastest = next(iter(runs.values())), runs[order[0]]
    figures = ", ".join(
        f"{name} {times(runs[name].account.intervals['speedup'])}{' (refuted)' * bool(runs[name].session.refuted)}"
        for name in order
    )
    if doubted := any(run.account.doubt for run in runs.values()):
        each = (f"{name} {run.account.intervals['tokens_per_round']:.2f}" for name, run in runs.items())
        figures = f"tokens per round{_prompts(own)}, whatever else the machine did: {', '.join(each)}"
    clock = "in simulated time and " if own.facts.simulated else ""
    said = "; ".join(filter(None, (figures, compared)))
    verdict = f"{clock}over plain decoding{_prompts(own)}: {said}" if not doubted else figures
    control = {name: value for name, value in own.metrics.items() if name.startswith("null/")}
    sessions = [run.session for run in runs.values()]
    counts = {name: sum(getattr(each, name) for each in sessions) for name in ("compared", "identical", "unexplained")}
    why = [f"Of {order[0]}: {reason}" for reason in fastest.reasons]
    together = replace(fastest, metrics=control, session=replace(own.session, **counts), reasons=why)
    cost = _cost(fastest)
    return _ordered(_loops(fastest, order[0]) + verdict, cost and f"of {order[0]}: {cost}", together)


def times(speedup: Interval) -> str:
    """Return a speedup in words: "1.94 times as fast (1.63 to 2.35)"."""
    bounds = f" ({speedup.low:.2f} to {speedup.high:.2f})" if speedup.known else ""
    return f"{speedup.estimate:.2f} times as fast{bounds}"


def _ordered(verdict: str, cost: str, run: MeasuredRun) -> list[str]:
    """Make sentences of clauses: unexplained outputs and a disturbed machine first, then what explains the run."""
    noise, identical = _noise(run), _identical(run)
    disturbed = Interval.from_metrics(run.metrics, "null/speedup").contains(1.0) is False
    unexplained = run.session.unexplained > 0 and run.facts.lossless and not run.facts.simulated
    first = (identical if unexplained else "", noise if disturbed else "")
    last = (verdict, "" if disturbed else noise, cost, "" if unexplained else identical)
    before, after = ([f"{words[:1].upper()}{words[1:]}." for words in part if words] for part in (first, last))
    return [*before, *run.reasons, *after]


def _loops(run: MeasuredRun, who: str = "decoding") -> str:
    """Return how many texts repeat themselves, which flatters drafters that copy, as the beginning of the verdict."""
    share = run.metrics.get("repetition/share", 0.0)
    if not share:
        return ""
    rest = Interval.from_metrics(run.metrics, "speedup.unflagged")
    known = share < 1 and not too_few(round((1 - share) * run.account.prompts))
    without = f" (without them {who} is {times(rest)})" if known else ""
    return f"{in_loops(share)}{without}; "


def _verdict(run: MeasuredRun) -> str:
    speedup, facts = run.account.intervals["speedup"], run.facts
    where = "in simulated time" if facts.simulated else "here"
    gamma = counted(facts.primary_gamma, "token")
    drafts = f"drafts of {gamma}" if facts.structure == "chain" else f"drafts in a shape ({facts.structure_label})"
    batch = f", {facts.batch_size} texts at a time" if facts.batch_size > 1 else ""
    figures = f"{times(speedup)} as plain decoding, with {drafts}{batch}{_prompts(run)}"
    if run.account.doubt:
        tokens = run.account.intervals["tokens_per_round"]
        return f"with {drafts}{batch} a round commits {tokens:.2f} tokens{_prompts(run)}, whatever else the machine did"
    if run.session.refuted and not (facts.simulated or facts.forced):
        return f"no verdict is given, because outputs are refuted: {figures}"
    if doubt := unsettled(speedup, run.metrics.get("null/floor", 0.0)):
        return f"whether speculation pays {where} is not settled ({doubt}): {figures}"
    pays = "pays" if run.account.speedup > 1 else "does not pay"
    return f"speculation {pays} {where}: {figures}"


def _prompts(run: MeasuredRun) -> str:
    """Return which part of the prompts was decoded; "" where all were."""
    standing = run.standing
    if standing is None or not (standing.partial or standing.left_out):
        return ""
    done = f"{standing.prompts_done} of {standing.prompts} prompts"
    return f", on the {done} that are done so far" if standing.partial else f", on {done}, for lack of time"


def _noise(run: MeasuredRun) -> str:
    """Set the speedup against what plain decoding has over itself; "" where it was decoded once."""
    if run.facts.simulated:
        return "Time is simulated by a cost model, so there is no noise, and no duration was measured"
    if "null/speedup" not in run.metrics or run.account.doubt:
        return ""
    control, floor = Interval.from_metrics(run.metrics, "null/speedup"), run.metrics.get("null/floor")
    bounds = f" ({control.low:.3f} to {control.high:.3f})" if control.known else ""
    on = _controlled(run.metrics)
    said = f"decoding plainly twice{on and f' ({on})'} differs by a factor of {control.estimate:.3f}{bounds}"
    if floor is None:
        return f"{said}: too few prompts to tell noise"
    if control.contains(1.0) is False:
        disturbed = "the machine was disturbed, or this is the one run in twenty"
        return f"{disturbed}: {said}, so anything below {floor:.1%} is noise"
    speedup = run.account.speedup
    more = "more" if max(speedup, 1 / speedup) > 1 + floor else "no more"
    return f"{said}, so that a speedup of {speedup:.2f} is {more} than the machine's own noise of {floor:.1%}"


def _cost(run: MeasuredRun) -> str:
    """Say what stands between the capped geometric and the measurement, in words that need no glossary."""
    account = run.account
    if account.doubt:
        return ""
    if nothing_gained(account):
        return cost_alone(account)
    formula = account.value("formula")
    offered = f"{formula * account.factors['offered']:.2f}"
    promise = f"the capped geometric promises {of_drafts(account, f'{formula:.2f} times as fast', offered)}"
    if account.speedup < 1 and "draft" in account.factors and formula < 1:
        promise = (
            f"already by the capped geometric it would not pay ({formula:.2f} times as fast), as drafting takes "
            f"{account.value('g'):.2f} of a call of the target in every round"
        )
    largest, surest = losses(account)
    if not largest:
        return f"{promise}, and nothing costs more than it counts"
    if not surest:
        return f"{promise}, and no cost beyond that is more than chance"
    without = account.speedup / account.value(surest)
    surely = "what costs" if surest == largest else "what surely costs"
    return f"{promise}; {surely} most is {account.named(surest).plainly} (without that, {without:.2f} times as fast)"


def _identical(run: MeasuredRun) -> str:
    facts, session = run.facts, run.session
    if facts.simulated:
        return "The outputs are recorded texts, so nothing is learned of whether they would be identical"
    if facts.forced:
        return "The recorded text was written whatever the target said, so the outputs prove nothing"
    same = f"{session.identical} of {session.compared} outputs are identical to plain decoding"
    if not facts.lossless:
        counts = f"; {same}" if session.compared else ""
        return f"lossy: the verifier's rule does not keep the target's law{counts}"
    if not session.compared:
        return (
            "Outputs are drawn at random and not compared: specdec.certify tests whether they follow the target's law"
        )
    differ = session.compared - session.identical
    if session.compared == 1 and not differ:
        return "The only output that was compared is identical to plain decoding"
    if not differ:
        return f"all {session.compared} outputs are identical to plain decoding"
    if session.unexplained:
        differing = f"{session.unexplained} of {session.compared} outputs differ from plain decoding"
        return f"not lossless: {differing}, and no near-tie explains it (divergences.json)"
    others = "the other is a near-tie" if differ == 1 else "all differences are near-ties"
    return f"{same}; {others} of {run.dtype}"


def run_notes(run: Run, measured: MeasuredRun, prompts: Mapping[str, Any]) -> list[str]:
    """Say what time was, whether outputs are the baseline's, how prediction and measurement differ, what is missing;
    `prompts` is that part of `environment.json`.
    """
    metrics, facts, session = measured.metrics, measured.facts, measured.session
    notes = [*facts.notes, *control_notes(metrics)]
    if facts.simulated:
        notes.append("Time is simulated by a cost model: no duration of this run was measured.")
        notes.append("Lossless or not: recorded text can only be reproduced, so that nothing is learned from it.")
    elif facts.forced:
        notes.append("Forced: the recorded text was committed whatever the target said; nothing here is lossless.")
    elif session.compared and not session.refuted:
        notes.append(
            f"Lossless: {session.identical} of {session.compared} outputs are identical to the baseline's; "
            f"{session.compared - session.identical} differ, {session.unexplained} of them without a near-tie that "
            "rounding could explain."
        )
    if not facts.lossless:
        departs = ""
        if "lossless/tv" in metrics:
            tv = Interval.from_metrics(metrics, "lossless/tv")
            departs = (
                f": at a tested position the law of the output differs from the baseline's by {tv} in total variation, "
                "on average"
            )
        notes.append(f"Lossy: the verifier's rule does not keep the target's law{departs}.")
    notes += _quality_notes(metrics, facts)
    if "sampled/speedup" in metrics:
        speedup, tokens = (Interval.from_metrics(metrics, f"sampled/{key}") for key in ("speedup", "tokens_per_round"))
        notes.append(
            f"At temperature {metrics['sampled/temperature']:g}, on {metrics['sampled/prompts']:.0f} of the prompts, "
            f"over plain decoding at that temperature: speedup {speedup}, {tokens} tokens per round, and "
            f"{metrics['sampled/repetition.share']:.0%} have an output that falls into a loop. The rule keeps the "
            "target's law, so that both texts are drawn from one law and differ; specdec.certify tests it."
        )
    if "speedup.predicted" in metrics:
        predicted, came = metrics["speedup.predicted"], metrics["speedup"]
        notes.append(
            f"specdec.advise predicted a speedup of {predicted:.3f}; {came:.3f} was measured, "
            f"{came / predicted - 1:+.1%} from the prediction."
        )
    if loops := loops_note(metrics):
        notes.append(f"Repetition: {loops}")
    skipped = {reason: sum(counts.values()) for reason, counts in prompts["skipped"].items() if counts}
    if skipped:
        notes.append("Skipped prompts: " + ", ".join(f"{count} {reason}" for reason, count in skipped.items()) + ".")
    if few := too_few(prompts["count"]):
        notes.append(f"No intervals: {few}.")
    if facts.left_out:
        left_out = ", ".join(map(str, facts.left_out))
        limit = f"this drafter drafts {facts.deepest} levels at most"
        limit = limit if facts.deepest and min(facts.left_out) > facts.deepest else "the structure is less deep"
        notes.append(f"Left out of measurement.gammas: {left_out}; {limit}.")
    if not facts.greedy and facts.lossless:
        # In exact arithmetic the chance of a rejection where drafter and target agree is 0; where rounding makes one,
        # nothing is left of p - q, and the correction was drawn from p itself.
        shared = run.shared_at_rejections()
        if empty := sum(mass >= 1 - _ROUNDING for mass in shared):
            notes.append(
                f"Rounding: {empty:,} of {len(shared):,} rejections fell where drafter and target agree, so that no "
                "residual was left; these corrections were drawn from the target's own law."
            )
    return notes


def loops_note(metrics: Mapping[str, float]) -> str:
    """Say how many prompts have an output that falls into a loop, and the speedup without them; "" of none."""
    share, rest = metrics.get("repetition/share", 0.0), Interval.from_metrics(metrics, "speedup.unflagged")
    return f"{in_loops(share)}{f'; without them the speedup is {rest}' if share < 1 else ''}." if share else ""


def _controlled(metrics: Mapping[str, float]) -> str:
    """Return on how many prompts plain decoding was measured twice; "" in runs of earlier versions: on all."""
    return f"on {counted(int(metrics['null/prompts']), 'prompt')}" if "null/prompts" in metrics else ""


def control_notes(metrics: Mapping[str, float]) -> list[str]:
    """Say what plain decoding has over itself, where it was measured twice: the noise under every other figure."""
    if "null/speedup" not in metrics:
        return []
    control = Interval.from_metrics(metrics, "null/speedup")
    on = _controlled(metrics)
    said = f"Null control: plain decoding, measured a second time{on and f' {on}'}, has a speedup of {control} over "
    said += "itself"
    if "null/floor" not in metrics:
        return [f"{said}; too few prompts to say how large the noise is."]
    if not control.contains(1.0):
        said += ", an interval that leaves out 1: the machine was disturbed, or this is the one run in twenty"
    return [f"{said}; what differs from 1 by less than {metrics['null/floor']:.1%} is noise."]


def _quality_notes(metrics: Mapping[str, float], facts: RunFacts) -> list[str]:
    if facts.judge is None:
        return []
    model = "the target" if facts.judge == "target" else "the original target"
    likelihood = "quality/log_likelihood"
    notes = []
    if facts.deterministic and not facts.lossless and not facts.greedy:
        notes.append(
            "Without a draft this rule takes the target's likeliest token: the baseline's text is greedy, not sampled."
        )
    if likelihood not in metrics:
        notes.append(f"Quality: {model} gives some token no chance, so there is no mean log-likelihood.")
    for name, sentence in (
        (likelihood, f"Quality under {model} at temperature 1: {{}} nats per token, the baseline's text {{}}."),
        ("quality/tv", "A token's law is {} from the target's in total variation, the baseline's {}."),
        ("quality/decided_otherwise", "A lossless rule would have decided otherwise in {} of the rounds that offered."),
        ("quality/gsm8k_exact_match", "Right answers: {} of the outputs, the baseline's {}."),
    ):
        if name in metrics:
            of_baseline = name.replace("quality/", "quality/baseline_")
            values = (Interval.from_metrics(metrics, key) for key in (name, of_baseline))
            notes.append(sentence.format(*values))
    return notes

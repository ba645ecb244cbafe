"""Compares runs, paired by prompt: differences and ratios with intervals, ranks, the best gamma, in words.

Only runs of one model, dtype and machine on shared prompts are set against each other (`comparable`). Whatever else
differs between them is named.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from specdec.config import BASELINE
from specdec.errors import UsageError

from ..intervals import LEVEL, Interval
from ..read.runs import Run
from ..sections import Section, counted, joined
from .leaderboard import QUANTITIES, RunArm, ScoredArms, categories, leaderboard, leaderboard_figure, open_arms, score

NAMED = (  # what does not forbid a comparison, but changes what it says
    *("sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.min_p"),
    "sampling.typical_p",
    *("verifier.name", "structure.name", "measurement.max_new_tokens", "measurement.threads", "seed"),
    *("target.compile", "target.evaluation", "target.attention", "prompts.chat"),
)
OF_A_DRAFTER = ("drafter.", "structure.", "verifier.", "sampling.")  # keys that tell two runs of a drafter apart
LEADERBOARD, BEHIND = "Leaderboard", "Behind the leaderboard"  # titles of the two sections of a group
ALL_PAIRS = 4  # runs up to which every pair has its line; beyond, each run against the best

Texts = frozenset[tuple[str, tuple[int, ...] | None]]  # names of prompts, with tokens where a name may mean two texts
RunArms = dict[int, RunArm]  # A run's arms by gamma, as `open_arms` reads them


@dataclass(frozen=True)
class Comparable:
    """Runs that are compared with one another, in the order in which they were given."""

    heading: str  # model, dtype and hardware, with the weights' hash or the prompts where these tell groups apart
    members: tuple[RunArms, ...]

    @property
    def runs(self) -> list[Run]:
        return [_first(member).run for member in self.members]


def _first(member: RunArms) -> RunArm:
    return next(iter(member.values()))


def open_each(runs: Sequence[Run]) -> tuple[list[RunArms], list[str]]:
    """Open the runs that can be compared, and say in a sentence for each other one what keeps it from that."""
    opened, left_out = [], []
    for run in runs:
        try:
            opened.append(open_arms(run))
        except UsageError as error:
            left_out.append(f"Not compared: {error}")
    return opened, left_out


def comparable(opened: Sequence[RunArms]) -> list[Comparable]:
    """Group runs by setting and weights, and within these by shared prompts; larger groups first within a setting.

    A run joins a group if at least half of the group's common prompts are its own too: runs that a time budget ended
    early belong together, and a trial on three prompts does not reduce the comparison of others to these three.
    """
    by_setting: dict[tuple[str, str], list[RunArms]] = {}
    for member in opened:
        run = _first(member).run
        by_setting.setdefault((run.setting, content_hash(run, "model")[:8]), []).append(member)
    settings = [setting for setting, _ in by_setting]
    groups: list[tuple[str, tuple[RunArms, ...]]] = []
    for (setting, weights), members in by_setting.items():
        heading = f"{setting} [weights {weights}]" if settings.count(setting) > 1 else setting
        parts = _by_prompts(members)
        for part in parts:
            most = max(len(_first(member).sums) for member in part)
            name = _first(part[0]).run.params.get("prompts.name", "a set without a name")
            prompts = f", {counted(most, 'prompt')} of {name}" if len(parts) > 1 else ""
            groups.append((heading + prompts, tuple(part)))
    headings = told_apart([heading for heading, _ in groups])
    return [Comparable(heading, members) for heading, (_, members) in zip(headings, groups, strict=True)]


def _by_prompts(members: Sequence[RunArms]) -> list[list[RunArms]]:
    texts = _texts([_first(member) for member in members])
    groups: list[tuple[Texts, list[int]]] = []
    for place in sorted(range(len(members)), key=lambda at: -len(texts[at])):
        for at, (common, places) in enumerate(groups):
            shared = common & texts[place]
            if shared and 2 * len(shared) >= len(common):
                groups[at] = (Texts(shared), [*places, place])
                break
        else:
            groups.append((texts[place], [place]))
    ordered = sorted((sorted(places) for _, places in groups), key=lambda places: (-len(places), places[0]))
    return [[members[place] for place in places] for places in ordered]


def _texts(arms: Sequence[RunArm]) -> list[Texts]:
    """Return the prompts of each arm; tokens are read only where the prompt sets differ."""
    hashes = {content_hash(arm.run, "prompts") for arm in arms}
    tokens = [prompt_tokens(arm.run) if len(hashes) > 1 or "" in hashes else {} for arm in arms]
    return [Texts((name, own.get(name)) for name in arm.sums.index) for arm, own in zip(arms, tokens, strict=True)]


def told_apart(names: Sequence[str]) -> list[str]:
    """Number the names that are alike."""
    numbers = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [f"{name} #{at}" if names.count(name) > 1 else name for name, at in zip(names, numbers, strict=True)]


def common_prompts(arms: Sequence[RunArm]) -> tuple[list[str], str]:
    """Return the prompts that all arms have, with the same text, in order, and a sentence on how they pair."""
    names = set.intersection(*(set(arm.sums.index) for arm in arms))
    sizes = [len(arm.sums) for arm in arms]
    if len(arms) == 1:
        return sorted(names), f"{counted(len(names), 'prompt')}."
    common = sorted(name for name, _ in frozenset.intersection(*_texts(arms)))
    renamed = len(names) - len(common)
    dropped = f" {renamed} with the same name and another text are left out." if renamed else ""
    if len(set(sizes)) == 1 and len(common) == sizes[0]:
        return common, f"Paired on the same {counted(len(common), 'prompt')}."
    have = ", ".join(str(size) for size in sizes)
    return common, f"Paired on the {len(common)} prompts that all runs share (they have {have}).{dropped}"


def prompt_tokens(run: Run) -> dict[str, tuple[int, ...]]:
    """Return the baseline's prompts as token ids; empty where the run kept none."""
    try:
        table = run.generations()
    except UsageError:
        return {}
    if "prompt_token_ids" not in table:
        return {}
    own = table[table["method"] == BASELINE].drop_duplicates("prompt")
    return {str(row.prompt): tuple(row.prompt_token_ids) for row in own.itertuples()}


def content_hash(run: Run, part: str) -> str:
    """Return the hash of the content of the run's `model` or `prompts`; "" where it recorded none."""
    try:
        return str((run.environment().get(part) or {}).get("sha256") or "")
    except UsageError:
        return ""


def comparison_section(runs: Sequence[Run]) -> Section:
    """Compare runs in one section. UsageError if one lacks rounds of its primary gamma."""
    groups = comparable([open_arms(run) for run in runs])
    parts = [section for group in groups for section in comparison_sections(group, groups)]
    return Section(
        "Comparison of runs",
        (*groups_in_words(groups), *(text for part in parts for text in part.text)),
        tuple(table for part in parts for table in part.tables),
        tuple(figure for part in parts for figure in part.figures),
    )


def groups_in_words(groups: Sequence[Comparable]) -> list[str]:
    """Say in a sentence which groups of runs there are; nothing for a single one."""
    names = "; ".join(f"{group.heading} ({counted(len(group.members), 'run')})" for group in groups)
    said = (
        f"{len(groups)} groups of runs, each compared within itself, because figures of different models, dtypes or "
        f"machines are not comparable and runs on other prompts cannot be paired: {names}."
    )
    return [said] if len(groups) > 1 else []


def comparison_sections(group: Comparable, groups: Sequence[Comparable]) -> tuple[Section, Section]:
    """Return the leaderboard of a group, and what stands behind it: pairs, ranks, notes, the best gamma of each run.
    Runs whose outputs are refuted are named first and not ranked. Each of several `groups` of a page says which it is.
    """
    start = f"**{group.heading}.** " if len(groups) > 1 else ""
    first, second = (name if len(groups) < 2 else f"{name}: {group.heading}" for name in (LEADERBOARD, BEHIND))
    every = [primary_arm(own) for own in group.members]
    named = arm_labels(every)
    refuted = refuted_in_words(group.runs, named)
    places = [place for place, run in enumerate(group.runs) if not run.refuted]
    if not places:
        return Section(first, (f"{start}No run is ranked.",)).beginning(refuted), Section(second)
    runs, opened = [group.runs[place] for place in places], [group.members[place] for place in places]
    replicates = int(runs[0].params.get("measurement.bootstrap", 10_000))
    arms = [every[place] for place in places]
    labels = [named[place] for place in places]
    prompts, pairing = common_prompts(arms)
    clock = "Time is simulated by a cost model. " if any(run.simulated for run in runs) else ""
    names = [name.partition(", γ ")[0] for name in arm_labels([_first(own) for own in opened])]
    several = [(own, name) for own, name in zip(opened, names, strict=True) if len(own) > 1]
    best_gammas = [best_gamma_in_words(own, name, replicates) for own, name in several]
    how = f"{clock}Each run at its own primary gamma. {pairing}"
    notes = [*filter(None, (how, differences_in_words(runs, labels))), *best_gammas]
    loops = loops_in_words(runs, labels)
    doubted = "; ".join(f"{label}: {arm.doubt}" for arm, label in zip(arms, labels, strict=True) if arm.doubt)
    doubt = f"No verdict on speed, only on tokens. {doubted}." if doubted else ""
    sums, depths = [arm.sums for arm in arms], [arm.gamma for arm in arms]
    scores = score(sums, labels, prompts, replicates, depths=depths, doubt=doubt)
    if len(arms) == 1:
        value = f"speedup {scores.interval('speedup', 0):.2f}, " if scores.known("speedup") else ""
        tokens = f"{scores.interval('tokens_per_round', 0):.2f}"
        said = f"{start}One run, nothing to set it against: {labels[0]}, {value}{tokens} tokens per round."
        return Section(first, (said,)).ending(loops).beginning(refuted, doubt), Section(second, tuple(notes))
    quantity, known = scores.ranked, scores.known("speedup")
    missing = "" if known else "Not every run has times and a baseline, so tokens per round are ranked."
    order = scores.order(quantity)
    # All pairs of a few arms, the better first; of many arms the pairs with the best.
    pairs = list(combinations(order, 2)) if len(order) <= ALL_PAIRS else [(order[0], arm) for arm in order[1:]]
    in_pairs = " ".join(f"{pair_in_words(scores, quantity, *pair)}." for pair in pairs)
    category = ", each category with its number of prompts" if categories(arms, prompts) else ""
    name = quantity.replace("_", " ")
    caption = (
        f"{group.heading}: {name} on {len(prompts)} shared prompts{category}; g, v, o: draft, verify and other time of "
        "a round over t(1)"
    )
    tables = [("Pairs: difference and ratio, same prompts resampled for both", pair_table(scores, pairs))]
    if not scores.too_few:
        tables.append((f"Share of replicates in which a run holds a rank by {name}", scores.rank_table()))
    number = f"_{groups.index(group) + 1}" if len(groups) > 1 else ""
    figures = []
    for kind in dict.fromkeys((quantity, "tokens_per_round")):
        best, *others = scores.order(kind)
        title = f"{labels[best]} leads with {scores.values[kind][best]:.2f} {QUANTITIES[kind]}"
        if not scores.too_few:
            close = sum(not scores.apart(kind, best, other) for other in others)
            unclear = f"; {close} of {len(others)} others cannot be told from it"
            title += unclear if close else ", told apart from all others"
        figure = leaderboard_figure(scores, kind, title=f"{title}\n{group.heading}")
        figures.append((f"leaderboard_{kind}{number}", figure))
    answer = tuple(filter(None, (start + leaderboard_in_words(scores), missing)))
    board = leaderboard(scores, arms, prompts, replicates)
    sections = (
        Section(first, answer, ((caption, board),), tuple(figures[:1])).ending(loops).beginning(refuted, doubt),
        Section(second, (in_pairs, *notes), tuple(tables), tuple(figures[1:])),
    )
    return (sections[0].simulated(), sections[1].simulated()) if clock else sections


def primary_arm(arms: RunArms) -> RunArm:
    """Return the arm at the run's primary gamma. UsageError if that was not measured."""
    run = _first(arms).run
    wanted = next(iter(arms)) if len(arms) == 1 else run.primary_gamma
    if wanted is None:  # structures without a gamma of their own
        wanted = int(run.account()["primary_gamma"])
    if wanted not in arms:
        raise UsageError(
            f"{run.source} has no rounds at gamma {wanted}, only at {', '.join(map(str, arms))}: "
            f"run it with measurement.gammas=[{wanted}]."
        )
    return arms[wanted]


def arm_labels(arms: Sequence[RunArm]) -> list[str]:
    """Name each arm by what tells it from the others: drafter, keys and gamma where they differ, else a number."""
    names = [arm.run.drafter_name for arm in arms]
    labels = []
    for name, arm in zip(names, arms, strict=True):
        alike = [other.run.params for other, its in zip(arms, names, strict=True) if its == name]
        keys = [key for key in arm.run.params if key.startswith(OF_A_DRAFTER) and key != "structure.gamma"]
        differing = [key for key in keys if len({params.get(key) for params in alike}) > 1]
        parts = [f"{key.rpartition('.')[2]} {arm.run.params[key]}" for key in differing]
        gamma = [f"γ {arm.gamma}"] if len({other.gamma for other in arms}) > 1 else []
        labels.append(", ".join([name, *parts, *gamma]))
    return told_apart(labels)


def pair_in_words(scores: ScoredArms, quantity: str, first: int, second: int) -> str:
    """Say "A is faster than B by 12% (4% to 21%)", or that the two cannot be told apart."""
    if scores.values[quantity][first] < scores.values[quantity][second]:
        first, second = second, first
    ratio = scores.ratio(quantity, first, second)
    a, b = scores.labels[first], scores.labels[second]
    verb = f"{a} is faster than {b}" if quantity == "speedup" else f"{a} commits more tokens per round than {b}"
    name = quantity.replace("_", " ")
    if scores.too_few:
        return f"{a} over {b} in {name}: {ratio:.2f}; {scores.too_few}"
    if not scores.apart(quantity, first, second):
        return f"{a} and {b} cannot be told apart in {name}: ratio {ratio:.2f}"
    gain = Interval(ratio.estimate - 1, ratio.low - 1, ratio.high - 1)
    return f"{verb} by {gain:.0%}"


def leaderboard_in_words(scores: ScoredArms) -> str:
    """Say which arm is first, how firmly, and which cannot be told from it."""
    quantity = scores.ranked
    order, name = scores.order(quantity), quantity.replace("_", " ")
    best = order[0]
    first = f"{scores.labels[best]} has the highest {name}, {scores.interval(quantity, best):.2f}"
    if scores.too_few:
        return f"{first}; {scores.too_few}."
    share = scores.rank_shares(quantity)[best, 0]
    close = [scores.labels[arm] for arm in order[1:] if not scores.apart(quantity, best, arm)]
    told = f"It cannot be told from {joined(close)}." if close else "Every other run is told apart from it."
    pairs = list(combinations(range(len(order)), 2))
    unclear = sum(not scores.apart(quantity, *pair) for pair in pairs)
    whole = f" Of {len(pairs)} pairs, {unclear} cannot be told apart." if len(pairs) > 1 else ""
    level = f"{LEVEL:.0%} prompt-bootstrap intervals, each pair for itself: of many pairs some part by chance."
    return f"{first}; it is first in {share:.0%} of the replicates. {told}{whole} {level}"


def refuted_in_words(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Say of which runs the outputs are refuted, and why; empty if of none."""
    return " ".join(f"{label}: {run.refuted}" for run, label in zip(runs, labels, strict=True) if run.refuted)


def loops_in_words(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Say how many prompts of each run have an output that loops; empty if none of any has."""
    shares = [run.metrics.get("repetition/share") for run in runs]  # which other engines' records have not
    by_share = _by_value(["" if share is None else f"{share:.0%}" for share in shares], labels)
    said = "; ".join(f"{share} in {names}" for share, names in by_share.items() if share)
    return f"Prompts with an output that falls into a loop: {said}." if set(by_share) - {"0%", ""} else ""


def _by_value(values: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Return the labels of each value, as a sentence lists them."""
    pairs = [*zip(values, labels, strict=True)]
    return {value: joined([label for other, label in pairs if other == value]) for value in values}


def differences_in_words(runs: Sequence[Run], labels: Sequence[str], who: str = "runs") -> str:
    """Name the settings of NAMED that differ between the runs, which the sentence calls `who`; empty if none does."""
    parts = []
    for key in NAMED:
        values = [run.params.get(key, "not recorded") for run in runs]
        if len(set(values)) > 1:
            said = "; ".join(f"{value}: {names}" for value, names in _by_value(values, labels).items())
            parts.append(f"{key} ({said})")
    return f"The {who} also differ in {', '.join(parts)}: a difference may come from there." if parts else ""


def score_gammas(arms: RunArms, replicates: int) -> ScoredArms:
    sums, labels = [arm.sums for arm in arms.values()], [f"γ {gamma}" for gamma in arms]
    return score(sums, labels, list(sums[0].index), replicates, depths=list(arms), doubt=_first(arms).doubt)


def best_gamma_in_words(arms: RunArms, label: str, replicates: int) -> str:
    """Say which gamma is fastest, how often it is so in the bootstrap, and which cannot be told from it."""
    gammas = list(arms)
    scores = score_gammas(arms, replicates)
    quantity = scores.ranked
    best = scores.order(quantity)[0]
    pays = not scores.too_few and (quantity != "speedup" or scores.values[quantity][best] > 1)
    answer = f"{'Best' if pays else 'Fastest'} gamma of {label}: {gammas[best]}, {quantity.replace('_', ' ')} "
    answer += f"{scores.interval(quantity, best):.2f}"
    if scores.too_few:
        return f"{answer}, of {', '.join(map(str, gammas))}; {scores.too_few}."
    shares = scores.rank_shares(quantity)[:, 0]
    held = ", ".join(f"γ {gamma} {share:.0%}" for gamma, share in zip(gammas, shares, strict=True) if share >= 0.005)
    close = [str(gammas[arm]) for arm in scores.order(quantity)[1:] if not scores.apart(quantity, best, arm)]
    told = f"not told apart from {joined(close)}" if close else "told apart from every other"
    return f"{answer}; {told}. First in the replicates: {held}."


def pair_table(scores: ScoredArms, pairs: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Return difference and ratio of speedup and tokens per round, first against second, with paired intervals."""
    rows = []
    for first, second in pairs:
        row = {"first": scores.labels[first], "second": scores.labels[second]}
        for quantity in ("speedup", "tokens_per_round"):
            name = quantity.replace("_", " ")
            row[f"{name}, difference"] = f"{scores.difference(quantity, first, second):.2f}"
            row[f"{name}, ratio"] = f"{scores.ratio(quantity, first, second):.2f}"
        rows.append(row)
    return pd.DataFrame(rows)

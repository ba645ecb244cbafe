"""Which runs are compared with one another: those of one model, dtype and machine that decoded the same prompts.

Figures of other models or machines do not compare, and what is paired by prompt needs prompts in common: one run on
other prompts must not keep all others from being compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.config import BASELINE
from specdec.errors import UsageError

from ..read.runs import Run
from ..sections import counted
from .leaderboard import RunArm, open_arms

Texts = frozenset[tuple[str, tuple[int, ...] | None]]
"""The prompts of a run: names, with their tokens where a name alone does not say which text it is."""


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
        key = (run.setting, content_hash(run, "model")[:8])
        by_setting.setdefault(key, []).append(member)
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
    """Group the runs of one setting by shared prompts; tokens are read only where the prompt sets differ."""
    arms = [_first(member) for member in members]
    hashes = {content_hash(arm.run, "prompts") for arm in arms}
    texts: list[Texts] = []
    for arm in arms:
        tokens = prompt_tokens(arm.run) if len(hashes) > 1 or "" in hashes else {}
        texts.append(Texts((name, tokens.get(name)) for name in map(str, arm.sums.index)))
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


def told_apart(names: Sequence[str]) -> list[str]:
    """Number the names that are alike."""
    return [
        f"{name} #{names[: place + 1].count(name)}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def common_prompts(arms: Sequence[RunArm]) -> tuple[list[str], str]:
    """Return the prompts that all arms have, in order, and a sentence on how they pair.

    Where the prompt sets differ, a name that stands for different texts is no common prompt.
    """
    names = sorted(set.intersection(*(set(arm.sums.index) for arm in arms)))
    sizes = [len(arm.sums) for arm in arms]
    if len(arms) == 1:
        return names, f"{counted(len(names), 'prompt')}."
    hashes = {content_hash(arm.run, "prompts") for arm in arms}
    renamed: set[str] = set()
    if names and (len(hashes) > 1 or "" in hashes):
        texts = [prompt_tokens(arm.run) for arm in arms]
        renamed = {name for name in names if len({text.get(name) for text in texts}) > 1}
    common = [name for name in names if name not in renamed]
    dropped = f" {len(renamed)} with the same name and another text are left out." if renamed else ""
    if not common:
        return [], f"The runs share no prompt, so nothing can be paired: run them with the same prompts.{dropped}"
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

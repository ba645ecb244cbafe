"""Evaluation output of EAGLE (SafeAILab/EAGLE, eagle/evaluation/gen_ea_answer_*.py): JSONL, one question per line.

Of every choice are read new_tokens and wall_time (one per turn, prefill included) and idxs (one per turn: the index of
its last round, from 0, so that a turn took idx + 1 rounds). new_tokens counts the target's own token of every round.
These are sums over a turn: tokens per round, and nothing about single lengths.

Files of gen_ea_alpha_*.py have more: alpha and alpha_num, which count at each depth of the draft the rounds that
accepted and that tested it (evaluate_posterior in eagle/model/utils_alpha.py), from the last turn of a choice only.
They give the accepted lengths of rounds, without order.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.text.lines import BadLine

from .accepted_lengths import NO_ENDS, NO_TIMES
from .imported import ImportChoices, Imported, ImportedText, TextTotals, imported, totals
from .reading import MOST_ROUNDS, ForeignFile, counts, needed_gamma
from .spec_bench import answer, first_choice, per_turn
from .vllm import UNORDERED

KIND = "eagle"
COUNTED = (
    "Tokens and rounds are the method's own counts (new_tokens, idxs + 1); the repository's alpha_length.py divides by "
    "idxs, one round fewer a turn, and prints a little more."
)
END_TO_END = "Wall time is per turn, prefill included: speedup is end to end."
LAST_TURN = (
    "Counts by depth (alpha, alpha_num) are of the last turn of each answer; where a path of the tree ends before the "
    "last depth and is accepted whole, the file counts one rejection too many."
)


def eagle(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the totals of every turn or, from files with counts by depth, rounds; a choice is a repeat.

    gamma: depth of the tree; counts by depth say it themselves. UsageError for lines of another form, named with file
    and line.
    """
    file = ForeignFile(path, choices)
    turns: list[TextTotals] = []
    rounds: list[ImportedText] = []
    depths: set[int] = set()
    by_depth: set[bool] = set()
    for line in file.lines():
        with file.line():
            values = answer(line.where, line.value)
            read = [_choice(line.where, choice) for choice in values["choices"]]
            name, category = file.named(values, line.number)
            repeat = 0
            for number, (counted, of_turns) in enumerate(read):
                by_depth.add(counted is not None)
                if counted is not None:
                    depths.add(counted[2])
                    rounds.append(ImportedText(name, category, counted[0], counted[1], repeat=number))
                for tokens, steps, seconds in of_turns:
                    turns.append(TextTotals(name, category, repeat, tokens, steps, seconds))
                    repeat += 1
        if len(by_depth) > 1:
            raise UsageError(f"{line.where}: answers with and without alpha and alpha_num are mixed in one file.")
    notes = file.settled()
    if by_depth == {True}:
        gamma = max([choices.gamma or 0, *depths])
        said = [NO_TIMES, LAST_TURN, UNORDERED, NO_ENDS, *notes]
        return [imported(path, KIND, gamma, rounds, said, ordered=False)]
    return [totals(path, KIND, needed_gamma(choices), turns, [COUNTED, END_TO_END, *notes])]


def recognises(value: Any) -> bool:
    """Return whether the first value of a file is of this kind."""
    choice = first_choice(value)
    return "idxs" in choice and "accept_lengths" not in choice


Counted = tuple[Sequence[int], Sequence[int], int]  # accepted and offered per round, and the greatest depth


def _choice(where: str, choice: Mapping[str, Any]) -> tuple[Counted | None, list[tuple[int, int, float]]]:
    """Return the rounds by depth, if the choice counts them, and tokens, rounds and seconds of each turn."""
    counted = None
    if "alpha" in choice:
        counted = _by_depth(where, *(counts(where, key, choice.get(key)) for key in ("alpha", "alpha_num")))
    tokens, seconds = per_turn(where, choice)
    steps = counts(where, "idxs", choice.get("idxs"))
    if len(steps) != len(tokens):
        raise BadLine(f"{where}: new_tokens has {len(tokens)} entries and idxs {len(steps)}; one a turn each.")
    return counted, [(wrote, step + 1, time) for wrote, step, time in zip(tokens, steps, seconds, strict=True)]


def _by_depth(where: str, accepted: list[int], tested: list[int]) -> Counted:
    """Return accepted and offered tokens per round: of the rounds that accepted a depth, those that did not test the
    next one had a path that ended there.
    """
    if len(accepted) != len(tested) or not tested:
        raise BadLine(f"{where}: alpha has {len(accepted)} entries and alpha_num {len(tested)}; one for each depth.")
    reached = zip(accepted, tested, [*tested[1:], 0], strict=True)
    if any(not later <= right <= all_tested for right, all_tested, later in reached):
        raise BadLine(f"{where}: at each depth alpha is at most alpha_num, which is at most the alpha before it.")
    if tested[0] > MOST_ROUNDS:
        raise BadLine(f"{where}: alpha_num counts {tested[0]:,} rounds, more than {MOST_ROUNDS:,}.")
    depth = len(tested)
    lengths: list[int] = []
    offered: list[int] = []
    for place, (right, all_tested) in enumerate(zip(accepted, tested, strict=True)):
        rejected, ended = all_tested - right, right - (tested[place + 1] if place + 1 < depth else 0)
        lengths += [place] * rejected + [place + 1] * ended
        offered += [depth] * rejected + [place + 1] * ended
    return lengths, offered, depth

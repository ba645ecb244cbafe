"""Evaluation output of EAGLE (SafeAILab/EAGLE, eagle/evaluation/gen_ea_answer_*.py): JSONL, one question per line.

Of every choice are read new_tokens, with the target's own token of every round, wall_time (one per turn, prefill
included) and idxs (one per turn: the index of its last round, so that a turn took idx + 1 rounds). These are sums over
a turn. Files of gen_ea_alpha_*.py have more: alpha and alpha_num, which count at each depth of the draft the rounds
that accepted and that tested it (evaluate_posterior in eagle/model/utils_alpha.py), from the last turn of a choice
only: the accepted lengths of rounds, without order.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.text.lines import BadLine

from ..foreign_lines import MOST_ROUNDS, NO_ENDS, NO_TIMES, UNORDERED, ForeignFile, counts
from ..imported import ImportChoices, Imported, ImportedText, imported
from .spec_bench import answer, first_choice, per_turn

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


def read(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the totals of every turn or, from files with counts by depth, rounds; a choice is a repeat, and gamma the
    depth of the tree, which counts by depth say themselves.
    """
    file = ForeignFile(path, choices)
    turns: list[ImportedText] = []
    rounds: list[ImportedText] = []
    depths: set[int] = set()
    by_depth: set[bool] = set()
    for line in file.lines():
        with file.line():
            values = answer(line.where, line.value)
            counted = [_rounds_by_depth(line.where, choice) for choice in values["choices"]]
            sums = [turn for choice in values["choices"] for turn in _turns(line.where, choice)]
            who = file.named(values, line.number)
            by_depth |= {depth is not None for depth in counted}
            for repeat, depth in enumerate(counted):
                if depth is not None:
                    depths.add(depth[2])
                    rounds.append(ImportedText(*who, depth[0], depth[1], repeat=repeat))
            for repeat, (tokens, steps, seconds) in enumerate(sums):
                turns.append(ImportedText(*who, repeat=repeat, tokens=tokens, rounds=steps, seconds=seconds))
        if len(by_depth) > 1:
            raise UsageError(f"{line.where}: answers with and without alpha and alpha_num are mixed in one file.")
    notes = file.settled()
    if by_depth == {True}:
        gamma = max([choices.gamma or 0, *depths])
        said = [NO_TIMES, LAST_TURN, UNORDERED, NO_ENDS, *notes]
        return [imported(path, KIND, gamma, rounds, said, ordered=False)]
    return [imported(path, KIND, choices.needed_gamma, turns, [COUNTED, END_TO_END, *notes])]


def recognises(value: Any) -> bool:
    choice = first_choice(value)
    return "idxs" in choice and "accept_lengths" not in choice


def _turns(where: str, choice: Mapping[str, Any]) -> list[tuple[int, int, float]]:
    tokens, seconds = per_turn(where, choice)
    steps = counts(where, "idxs", choice.get("idxs"))
    if len(steps) != len(tokens):
        raise BadLine(f"{where}: new_tokens has {len(tokens)} entries and idxs {len(steps)}; one a turn each.")
    return [(wrote, step + 1, time) for wrote, step, time in zip(tokens, steps, seconds, strict=True)]


def _rounds_by_depth(where: str, choice: Mapping[str, Any]) -> tuple[list[int], list[int], int] | None:
    """Return accepted and offered tokens per round and the depth of the tree; None if a choice does not count them. Of
    the rounds that accepted a depth, those that did not test the next one had a path that ended there.
    """
    if "alpha" not in choice:
        return None
    accepted, tested = (counts(where, key, choice.get(key)) for key in ("alpha", "alpha_num"))
    if len(accepted) != len(tested) or not tested:
        raise BadLine(f"{where}: alpha has {len(accepted)} entries and alpha_num {len(tested)}; one for each depth.")
    reached = [*zip(accepted, tested, [*tested[1:], 0], strict=True)]
    if any(not later <= right <= all_tested for right, all_tested, later in reached):
        raise BadLine(f"{where}: at each depth alpha is at most alpha_num, which is at most the alpha before it.")
    if tested[0] > MOST_ROUNDS:
        raise BadLine(f"{where}: alpha_num counts {tested[0]:,} rounds, more than {MOST_ROUNDS:,}.")
    depth = len(tested)
    lengths: list[int] = []
    offered: list[int] = []
    for place, (right, all_tested, later) in enumerate(reached):
        rejected, ended = all_tested - right, right - later
        lengths += [place] * rejected + [place + 1] * ended
        offered += [depth] * rejected + [place + 1] * ended
    return lengths, offered, depth

"""`python -m specdec.gate BASELINE CANDIDATE...`: did acceptance or speed get worse? Exit code 8 where it did, for CI.

No Hydra task: imports stay light.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from specdec.commands.failures import OneSentence, told_faults
from specdec.errors import LossFound, NotLossless, UsageError
from specdec.text.writing import write_atomically


def parser() -> argparse.ArgumentParser:
    made = OneSentence(
        prog="python -m specdec.gate",
        description="Compares runs with an earlier run, paired by prompt, and ends with exit code 8 where they commit "
        "fewer tokens per round or are slower.",
    )
    made.add_argument("baseline", type=Path, metavar="BASELINE", help="folder of the earlier run, or a golden folder")
    words = (
        "folders of later runs or imports, all of one kind, read in turn until a loss is found; one more may be "
        "added as often as you like"
    )
    made.add_argument("candidates", nargs="+", type=Path, metavar="CANDIDATE", help=words)
    made.add_argument("--gamma", type=int, help="draft length to compare (that of the runs)")
    words = "chance of a loss where nothing changed, over all candidates together (0.01)"
    made.add_argument("--false-alarms", type=float, default=0.01, metavar="SHARE", help=words)
    words = "drop up to which nothing is a loss (0)"
    made.add_argument("--tolerance", type=float, default=0.0, metavar="SHARE", help=words)
    made.add_argument("--junit", type=Path, metavar="FILE", help="also write the verdicts as JUnit XML")
    words = "judge nothing, but make BASELINE a golden folder: a copy of what this command reads of CANDIDATE"
    made.add_argument("--update", action="store_true", help=words)
    return made


@told_faults()
def main() -> None:
    """Compare and print the verdicts, or renew the golden folder: the console entry point. It ends with the code of a
    UsageError: a folder or an option that cannot be used; NotLossless: the outputs of a candidate are refuted;
    LossFound: the candidates are worse.
    """
    options = parser().parse_args()
    if not 0 < options.false_alarms < 0.5:
        raise UsageError("--false-alarms is a chance: give a number above 0 and below 0.5, such as 0.01.")
    if not 0 <= options.tolerance < 1:
        raise UsageError("--tolerance is a share: give 0 or more and less than 1, such as 0.02.")
    if options.update and len(options.candidates) > 1:
        raise UsageError("--update keeps one run: name one CANDIDATE.")
    for folder in (*options.candidates, *([] if options.update else [options.baseline])):
        if folder.is_file():
            raise UsageError(f"{folder} is a file: `python -m specdec.report --import auto {folder}` makes a folder.")
        if not folder.is_dir() and folder == options.baseline:
            raise UsageError(
                f"There is no folder {folder}: `python -m specdec.gate {folder} CANDIDATE --update` makes it of a run."
            )
    from specdec.analysis.findings.drops import READ_FILES, judge, read_arm
    from specdec.analysis.read.runs import open_folder

    runs = [open_folder(folder) for folder in options.candidates]
    for run in runs:
        if run.refuted:
            raise NotLossless(f"{run.source}: {run.refuted}")
    if options.update:
        arm = read_arm(runs[0], options.gamma)
        _keep(options.candidates[0], options.baseline, READ_FILES)
        value = arm.sums["tokens"].sum() / arm.sums["rounds"].sum()
        print(f"{options.baseline} is now {runs[0].source}: {value:.3f} tokens per round on {len(arm.sums)} prompts.")
        return
    verdict = judge(open_folder(options.baseline), runs, options.gamma, options.false_alarms, options.tolerance)
    print(*verdict.notes, *(said for _, _, said in verdict.cases), sep="\n", flush=True)
    if options.junit:
        _write_junit(options.junit, verdict.cases)
    if losses := [said for _, outcome, said in verdict.cases if outcome == "failure"]:
        number = f"{verdict.looks} of {len(runs)} candidate{'s' * (len(runs) > 1)}"
        raise LossFound(f"Loss found after {number}. {' '.join(losses)}")


def _keep(candidate: Path, golden: Path, names: Sequence[str]) -> None:
    """Make `golden` a copy of these files of a run, those that it has. UsageError where other files are in its way."""
    present = (
        {path.name for path in golden.iterdir()} if golden.is_dir() else {golden.name} if golden.exists() else set()
    )
    if others := present - {*names}:
        raise UsageError(f"{golden} is no golden folder ({min(others)} is there): name a new folder, or remove it.")
    if golden.resolve() == candidate.resolve():
        raise UsageError(f"{golden} is the candidate itself: name another folder.")
    if (candidate / "rounds").is_dir() and not (candidate / "rounds.parquet").is_file():
        raise UsageError(f"{candidate} did not end, so that it cannot be kept: let it finish, with the same command.")
    part = golden.with_name(f"{golden.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in names:
        if (candidate / name).is_file():
            shutil.copyfile(candidate / name, part / name)
    if golden.is_dir():
        shutil.rmtree(golden)
    part.rename(golden)


def _write_junit(path: Path, cases: Sequence[tuple[str, str, str]]) -> None:
    """Write a test case for each figure (name, outcome, sentence)."""
    outcomes = [outcome for _, outcome, _ in cases]
    counts = {"tests": len(cases), "failures": outcomes.count("failure"), "skipped": outcomes.count("skipped")}
    suite = ElementTree.Element("testsuite", {name: str(count) for name, count in counts.items()}, name="specdec.gate")
    for figure, outcome, said in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="specdec.gate", name=figure)
        ElementTree.SubElement(case, outcome).text = said
    try:
        write_atomically(path, ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
    except OSError as error:
        raise UsageError(f"--junit {path} cannot be written ({error.strerror}): name another file.") from None


if __name__ == "__main__":
    main()

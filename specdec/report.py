"""`python -m specdec.report RUN...`: one self-contained HTML and a Markdown report of runs and studies, or of what
others publish.
"""

import argparse
import os
import pkgutil
from pathlib import Path

from specdec.analysis.read import foreign
from specdec.analysis.read.facts import LOAD, LOAD_FOLDER, STATUS_FILE, unsettled
from specdec.commands.failures import OneSentence, told_faults
from specdec.errors import UsageError
from specdec.progress import Stage, stage

KINDS = ("auto", LOAD, *(module.name for module in pkgutil.iter_modules(foreign.__path__)))
READERS = {
    "baseline": ("spec_bench", "eagle", "llama_server"),
    "bonus": ("accepted_lengths",),
    "field": ("accepted_lengths",),
}
_A_RUN_S = 8.0  # seconds that a run takes, on one core of an AMD EPYC
STORE = "sqlite:///mlflow.db"


def parser() -> argparse.ArgumentParser:
    made = OneSentence(
        prog="python -m specdec.report",
        description="Writes report.html (one file, opens offline) and report.md about runs of specdec, or about "
        "foreign results with --import.",
    )
    made.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="the output folder of a run or a study, a folder with some below it (a sweep), an MLflow run id, or an "
        "experiment's name; studies of one kind are set side by side",
    )
    made.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="folder to write to (./report)")
    made.add_argument(
        "--tracking-uri",
        default=os.environ.get("MLFLOW_TRACKING_URI") or STORE,
        metavar="URI",
        help=f"MLflow store of run ids (MLFLOW_TRACKING_URI, else {STORE})",
    )
    foreign = made.add_argument_group("foreign results")
    foreign.add_argument(
        "--import",
        dest="imports",
        nargs=2,
        action="append",
        default=[],
        metavar=("KIND", "FILE"),
        help=f"read FILE as one of {', '.join(KINDS)} (auto: told from its content; {LOAD}: all such files together "
        "are what specdec.explain reads, NAME=FILE names a server); may be repeated",
    )
    foreign.add_argument(
        "--gamma",
        type=int,
        help="draft tokens per round of the imported files, where they do not say it; of lengths per position: the "
        "gamma to show",
    )
    foreign.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="spec_bench, eagle, llama_server: the answer file without a drafter",
    )
    foreign.add_argument(
        "--bonus",
        choices=("included", "excluded"),
        help="accepted_lengths: whether lengths per round count the target's own token (default: by the field's name)",
    )
    foreign.add_argument(
        "--field", metavar="NAME", help="accepted_lengths: which NAME.acc_len of a per-position trace (default: each)"
    )
    foreign.add_argument("--skip-bad", action="store_true", help="leave out lines that cannot be read, and count them")
    return made


@told_faults()
def main() -> None:
    """Write the report and print its files: the console entry point."""
    options = parser().parse_args()
    if not options.runs and not options.imports:
        raise UsageError("Nothing to report on: name a run's folder, a run id or an experiment, or use --import.")
    for kind, _ in options.imports:
        if kind not in KINDS:
            raise UsageError(f"--import {kind} is unknown: the kinds are {', '.join(KINDS)}.")
    kinds = {kind for kind, _ in options.imports}
    if options.gamma is not None and options.gamma < 1:
        raise UsageError("--gamma is the draft tokens per round of the source: give a whole number of 1 or more.")
    for name, readers in READERS.items():
        if getattr(options, name) is not None and not kinds & {*readers, "auto"}:
            raise UsageError(f"--{name} is for --import {' or '.join(readers)} only.")
    if options.gamma is not None and not kinds:
        raise UsageError("--gamma is for --import only; runs know their own.")
    if options.skip_bad and not kinds:
        raise UsageError("--skip-bad is for --import only; a run's own files have no bad lines.")
    with stage("Report", told=False, expected=_A_RUN_S) as under_way:
        written = _write(options, under_way)
    print(*written, sep="\n")


def _write(options: argparse.Namespace, under_way: Stage) -> tuple[Path, Path]:
    from specdec.analysis.pages.html import Chapter, write_report
    from specdec.analysis.pages.report_chapters import run_chapters
    from specdec.analysis.read.find_runs import find_runs
    from specdec.analysis.study_sets import study_chapters

    chapters: list[Chapter] = []
    title = "Speculative decoding: foreign results"
    if options.runs:
        folders = [path.parent for name in options.runs for path in Path(name).rglob(STATUS_FILE)]
        for folder in filter(unsettled, folders):
            from specdec.folder.session_files import settle

            settle(folder)
        runs, studies, notes = find_runs(options.runs, options.tracking_uri)
        simulated = [*(run.simulated for run in runs), *(study.about.simulated for study in studies)]
        title = f"Speculative decoding: {'simulated' if all(simulated) else 'measured'}, explained"
        under_way.total, under_way.expected = len(runs) + 1, _A_RUN_S * max(len(runs), 1)  # and the page
        under_way.announce()
        chapters += run_chapters(runs, notes, under_way.advance) if runs else []
        chapters += study_chapters(studies)
    if options.imports:
        from specdec.analysis.read.foreign.llama_server import answer_times
        from specdec.analysis.read.foreign.spec_bench import spec_bench_times
        from specdec.analysis.read.imported import ImportChoices
        from specdec.analysis.read.importers import IMPORTERS, convert, is_load, kind_of, read_together
        from specdec.analysis.read.load_points import ServerFacts, server_and_path
        from specdec.analysis.read.runs import open_folder

        imports = [(LOAD if kind == "auto" and is_load(file) else kind, file) for kind, file in options.imports]
        tests = [(kind, *server_and_path(file)) for kind, file in imports if kind not in IMPORTERS]
        others = [(kind, file) for kind, file in imports if kind in IMPORTERS]
        if tests:
            facts = ServerFacts({} if options.gamma is None else {"": options.gamma})
            folder = options.out / "imported" / LOAD_FOLDER
            read_together(tests, facts).write(folder, [file for *_, file in tests])
            chapters += run_chapters([open_folder(folder)])
        baseline = None
        if options.baseline is not None:
            kinds = {kind_of(Path(file)) if kind == "auto" else kind for kind, file in others}
            times = answer_times if "llama_server" in kinds else spec_bench_times
            baseline = times(options.baseline, options.skip_bad)
        if others:
            bonus = None if options.bonus is None else options.bonus == "included"
            choices = ImportChoices(options.gamma, bonus, options.field, options.skip_bad)
            chapters += run_chapters(convert(others, choices, options.out / "imported", baseline))
    try:
        return write_report(options.out, title, chapters)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"--out {options.out} cannot be written ({error.strerror}): name another folder.") from None


if __name__ == "__main__":
    main()

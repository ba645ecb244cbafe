"""`python -m specdec.sync [FOLDER...]`: upload runs to MLflow that a store missed, from the files in their folders."""

import argparse
from pathlib import Path

from specdec.commands.failures import OneSentence, told_faults
from specdec.signals import interruptible
from specdec.tracking.upload import logged_folders, run_folders, upload


def parser() -> argparse.ArgumentParser:
    made = OneSentence(
        prog="python -m specdec.sync",
        description="Uploads runs to MLflow that their store missed, whole or in part, with their own times. "
        "Running it again changes nothing.",
    )
    words = "the output folder of a run or a sweep, or a folder above some (./outputs and ./multirun)"
    made.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=words)
    made.add_argument("--tracking-uri", metavar="URI", help="store to upload to (the one that each run was meant for)")
    made.add_argument("--experiment", metavar="NAME", help="experiment to upload to (each run's own)")
    return made


@told_faults()
@interruptible()
def main() -> None:
    """Upload what is missing, and print a line for each folder that was not complete: the console entry point."""
    options = parser().parse_args()
    folders = run_folders(options.folders) if options.folders else logged_folders([Path("outputs"), Path("multirun")])
    outcomes = []
    for each in upload(folders, options.tracking_uri, options.experiment):
        outcomes.append(each.done)
        said = "still running, left alone" if each.done == "running" else f"uploaded to {each.store}, run {each.run_id}"
        if each.done != "complete":
            print(f"{each.folder}: {said}", flush=True)
    print(f"{outcomes.count('complete')} of {len(outcomes)} runs were complete already.")


if __name__ == "__main__":
    main()

"""Makes a whole of what a process left that was killed by force: tables of the prompts that are done, and a status.

Afterwards the run can be analysed, uploaded, and still be resumed.
"""

from pathlib import Path

from specdec.analysis.pages.run_page import write_run
from specdec.analysis.read.facts import RunStatus, unsettled
from specdec.analysis.read.runs import open_folder
from specdec.folder.results import ROUNDS, ResultsFolder, drop_unreadable, finished_prompts
from specdec.folder.session_files import Collected
from specdec.text.writing import is_locked, read_json


def settle(folder: Path) -> None:
    """Analyse the prompts that are done of a run that ended early, where nobody did so yet.

    Raises:
        UsageError: what is left cannot be analysed.
    """
    status = RunStatus.read(folder)
    if status is None or not unsettled(folder) or is_locked(folder):
        return
    if status.status == "running":
        drop_unreadable(folder)
        kept = finished_prompts(folder)
        results = ResultsFolder(folder)
        if kept:
            collected = Collected()
            for done in kept.values():
                collected.add(done.collected)
            results.compact()
            facts = open_folder(folder).facts()
            collected.write(results, [facts.drafter, *facts.beside])
            peers = read_json(folder / "peers.json")
            if peers is not None:
                results.write_json("peers.json", {**peers, "generations": collected.peers})
        results.write_status("killed", "Its process was killed.", len(kept), status.prompts)
    if (folder / ROUNDS).is_file():
        write_run(folder)

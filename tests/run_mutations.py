"""Plant each bug of `tests/mutations/` in a copy of the source tree and see that its tests fail."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from mutations.mutant_runs import Verdict, preload, verdicts
from mutations.patch_files import PatchError, PlantedBug, planted_bugs

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each bug as its verdict is known, then the score.

    Returns:
        0 where every bug was killed whose tests this machine can run, 1 where one was not, 2 for a bad command or
        patch, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="an area, a bug, or a pattern of AREA/BUG; default: all"
    )
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="bugs at once; default: all cores")
    parser.add_argument("--sample", type=int, metavar="N", help="only about N bugs, which --seed chooses")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of --sample: another number, other bugs")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that the tests of one bug may take")
    parser.add_argument("--root", default=str(ROOT), help="the source tree; default: that of this file")
    options = parser.parse_args(arguments)
    root = Path(options.root)
    try:
        bugs = _chosen(planted_bugs(root / "tests" / "mutations"), options.names)
    except PatchError as error:
        print(error, file=sys.stderr)
        return 2
    if options.sample:
        bugs = sample(bugs, options.sample, options.seed)
    began = time.monotonic()
    if (root / "specdec").is_dir():
        preload()
    found: list[Verdict] = []
    try:
        with tempfile.TemporaryDirectory(prefix="mutations") as scratch:
            for verdict in verdicts(bugs, root, Path(scratch), at_once=options.j, limit=options.limit):
                found.append(verdict)
                line = f"{verdict.status:<11}{verdict.seconds:6.1f} s  {verdict.name}  {verdict.reason}"
                print(line[:240], flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    statuses = [verdict.status for verdict in found]
    skipped = statuses.count("skipped")
    idle = f" ({skipped} cannot be on this machine, which skips their tests)" if skipped else ""
    seconds = time.monotonic() - began
    print(f"\n{statuses.count('killed')} of {len(found)} planted bugs killed{idle}; {seconds:.0f} s")
    return 0 if all(verdict.good for verdict in found) else 1


def sample(bugs: Sequence[PlantedBug], size: int, seed: int) -> list[PlantedBug]:
    """Return the `size` bugs, or one fewer, that a seed chooses; consecutive seeds choose all before one a second time.

    Bugs of one area, which stand together, are spread over the seeds.
    """
    samples = -(-len(bugs) // size)
    return list(bugs[seed % samples :: samples]) if bugs else []


def _chosen(bugs: list[PlantedBug], names: Sequence[str]) -> list[PlantedBug]:
    """Return the bugs that any of `names` means, an area, a bug or a pattern of AREA/BUG; all for no names."""
    chosen: dict[str, PlantedBug] = {}
    for name in names:
        fitting = [bug for bug in bugs if name in bug.name.split("/") or fnmatch(bug.name, name)]
        if not fitting:
            raise PatchError(
                f"No planted bug is called {name}: tests/mutations has AREA/NAME.patch; give AREA or NAME."
            )
        chosen |= {bug.name: bug for bug in fitting}
    return list(chosen.values()) if names else bugs


if __name__ == "__main__":
    sys.exit(main())

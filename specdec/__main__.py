"""`python -m specdec`: list the commands; `--version` says which specdec this is."""

import ast
import sys
from pathlib import Path

from specdec import __version__


def commands() -> dict[str, str]:
    """Return the first sentence of the documentation of each command, by its name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    return found


def main(arguments: list[str]) -> None:
    """Print the commands, or the version."""
    if "--version" in arguments:
        print(f"specdec {__version__}")
        return
    print("Commands of specdec; --help after any of them lists its groups and keys.\n")
    for said in commands().values():
        print(f"  {said.replace('`', '')}")


if __name__ == "__main__":
    main(sys.argv[1:])

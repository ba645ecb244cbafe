"""`python -m specdec.certify +drafter=NAME`: is this combination of drafter, verifier and structure lossless?

Answers unknown names before anything heavy is imported, then makes the plan, and hands it over.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.config import CertifyConfig
from specdec.progress import IMPORTS_S, stage


def task(values: Mapping[str, Any]) -> None:
    """Certify one configuration; raises SpecdecError, also where it is not lossless or does not claim to be."""
    config = cli.typed_config(CertifyConfig, values)

    with stage("Start", told=False, expected=IMPORTS_S):
        from specdec.certification.certifier import certify
        from specdec.plan.plan import plan

        planned = plan(config)
    certify(planned, cli.output_dir())


def main() -> None:
    """Run the command: the console entry point."""
    cli.main("certify", task)


if __name__ == "__main__":
    main()

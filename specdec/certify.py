"""`python -m specdec.certify +drafter=NAME`: is this combination of drafter, verifier and structure lossless?

Checks what can be checked before anything heavy is imported, then hands over to `certification.certifier`.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.commands.early import check_early
from specdec.config import CertifyConfig, validated


def task(values: Mapping[str, Any]) -> None:
    """Certify one configuration; raises SpecdecError, also where it is not lossless or does not claim to be."""
    cli.check_drafter(values)
    config = validated(CertifyConfig, values, source="the configuration")
    check_early(lambda: _check(config))

    from specdec.certification.certifier import certify

    certify(config, cli.output_dir())


def _check(config: CertifyConfig) -> None:
    """Check what a certificate checks before it reads a model, the parts first, because they import least.

    Raises:
        UsageError: the first fault.
    """
    from specdec.session.parts import checked

    checked(config)

    from specdec.certification.certifier import check_fits

    check_fits(config)


def main() -> None:
    """Run the command: the console entry point."""
    cli.main("certify", task)


if __name__ == "__main__":
    main()

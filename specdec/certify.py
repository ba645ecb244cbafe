"""`python -m specdec.certify +drafter=NAME`: is this combination of drafter, verifier and structure lossless? And with
`--server URL`: does a running server write what its weights write here?

Answers unknown names before anything heavy is imported, then makes the plan, and hands it over.
"""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.commands.failures import told_faults
from specdec.config import CertifyConfig, CertifyServerConfig
from specdec.errors import UsageError
from specdec.progress import IMPORTS_S, stage

OPTIONS = {"--server": "server.url", "--model": "server.model"}
"""Options of the audit of a server, and their keys."""


def task(values: Mapping[str, Any]) -> None:
    """Certify one configuration, or audit one server; SpecdecError also where outputs are refuted or declared lossy."""
    config = cli.typed_config(CertifyServerConfig if "server" in values else CertifyConfig, values)

    with stage("Start", told=False, expected=IMPORTS_S):
        from specdec.certification.certifier import certify
        from specdec.certification.server_audit import certify_server
        from specdec.plan.plan import plan

        planned = plan(config, "certify")
    if isinstance(config, CertifyServerConfig):
        certify_server(planned, config.server, config.certificate, cli.output_dir())
    else:
        certify(planned, config.certificate, cli.output_dir())


def server_overrides(arguments: list[str]) -> list[str]:
    """Return the arguments with `--server URL` and `--model NAME` as overrides; UsageError for one without a value."""
    found, left = [], list(arguments)
    while left:
        option, sign, value = left.pop(0).partition("=")
        if option not in OPTIONS:
            found.append(option + sign + value)
            continue
        if not sign and (not left or re.match(r"[-+]|[\w.@/]+=", left[0])):
            raise UsageError(f"{option} needs a value: --server http://127.0.0.1:8080 --model NAME.")
        found.append(f"{OPTIONS[option]}={json.dumps(value if sign else left.pop(0), ensure_ascii=False)}")
    return found


def main() -> None:
    """Run the command: the console entry point."""
    named = {each.partition("=")[0] for each in sys.argv[1:]}
    if not named & {"--server", "server.url"}:
        cli.main("certify", task)
        return
    with told_faults():
        sys.argv[1:] = server_overrides(sys.argv[1:])
    cli.main("certify_server", task)


if __name__ == "__main__":
    main()

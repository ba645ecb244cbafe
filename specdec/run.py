"""`python -m specdec.run +drafter=NAME`: decode, measure, compare with theory, log.

Checks what can be checked before anything heavy is imported, then hands over to `experiment.experiment`.
"""

from collections.abc import Mapping
from typing import Any

from specdec.commands import cli
from specdec.config import RunConfig, validated


def task(values: Mapping[str, Any]) -> Mapping[str, float]:
    """Run one cell and return its metrics; raises SpecdecError for faults that the user can correct."""
    cli.check_drafter(values)
    config = validated(RunConfig, values, source="the configuration")

    if config.study is not None:
        from specdec.studies.base.run_study import run_study

        return run_study(config, cli.output_dir(), cli.earlier_runs()).metrics

    from specdec.experiment.experiment import run_experiment

    return run_experiment(config, cli.output_dir(), cli.earlier_runs()).metrics


def main() -> None:
    """Run the command: the console entry point."""
    cli.main("config", task)


if __name__ == "__main__":
    main()

"""What other work on the machine did to a run: the rounds that it disturbed, as `specdec.disturbance` marks them."""

from dataclasses import dataclass

from .arms import Arms

DISTURBED = "disturbed"  # column of the rounds table; missing in runs of earlier versions


@dataclass(frozen=True)
class BusyMachine:
    """The part of a run's decoding that other work disturbed.

    Attributes:
        share: of the decoding time of all methods, that of disturbed rounds.
        rounds, disturbed: numbers of rounds.
    """

    share: float
    rounds: int
    disturbed: int

    @classmethod
    def of(cls, arms: Arms) -> "BusyMachine":
        """Count the rounds of all methods."""
        rounds = disturbed = 0
        seconds = lost = 0.0
        for arm in arms.values():
            rounds, seconds = rounds + len(arm), seconds + float(arm["round_s"].sum())
            if DISTURBED in arm:
                hit = arm[DISTURBED].to_numpy()
                disturbed, lost = disturbed + int(hit.sum()), lost + float(arm["round_s"].to_numpy()[hit].sum())
        return cls(lost / seconds if seconds > 0 else 0.0, rounds, disturbed)

    def notes(self) -> list[str]:
        """Say how much of the time was disturbed; nothing of none."""
        if not self.disturbed:
            return []
        return [
            f"The machine was busy with other work for {self.share:.0%} of the decoding time, in {self.disturbed:,} of "
            f"{self.rounds:,} rounds: threads waited for a processor for more than 5% of each of them."
        ]

"""The statistical level of a certificate: all tests of a combination on the user's own target and prompts, and their
verdicts at a stated rate of false alarms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan

from specdec.certification.certificate import Check, Verdict
from specdec.certification.chi_square import Tested
from specdec.certification.live_rounds import LiveTallies, Watched
from specdec.certification.redrawn_rounds import redraw
from specdec.clock import CpuClock
from specdec.config import CertificateConfig
from specdec.progress import stage
from specdec.records import Request
from specdec.session.arm import Arm, seeded_request

Texts = Sequence[tuple[str, Sequence[int]]]  # prompts: name and tokens


@dataclass(frozen=True)
class DrawnTests:
    """All tests of a combination, before they are judged together.

    Attributes:
        live: the tests of live rounds.
        single: those of single places, the first token and the first two of each in turn.
        states: the comparison of the rounds' laws with fresh passes, which nothing random decides.
    """

    live: list[Tested]
    single: list[Tested]
    states: Check

    def level(self, false_alarm: float) -> float:
        """Return the level of each test at which all together raise a false alarm at most so often (Bonferroni)."""
        return false_alarm / (len(self.live) + len(self.single))

    def checks(self, false_alarm: float) -> list[Check]:
        """Return the checks: one for each test of live rounds, and one for each kind of test at single places."""
        level, checks = self.level(false_alarm), [self.states]
        for tests in (*([test] for test in self.live), self.single[0::2], self.single[1::2]):
            worst, several = min(tests, key=lambda test: test.p_value), len(tests) > 1
            failed = [test.name for test in tests if test.p_value < level]
            name = f"{worst.name.partition(': ')[2]}, {len(tests)} single places" if several else worst.name
            compared = "q, the law told with each draft" if "their own q" in name else "p, the target's law there"
            draws = sum(test.draws for test in tests)
            shifts = [test.detectable(level) for test in tests]
            told = [{**vars(t), "detectable_tv": None if isnan(s) else s} for t, s in zip(tests, shifts, strict=True)]
            facts = {"level": level, "tests": told}
            if not any(test.freedom for test in tests):
                why = "too few draws, or laws that are too sure, for a test" if draws else "nothing was drawn"
                checks.append(Check("statistical", name, compared, draws, "", "not applicable", None, why, facts))
                continue
            verdict: Verdict = "FAILED" if failed else "passed"
            statistic = f"chi2({worst.freedom}) = {worst.statistic:.1f}" + (", the largest" if several else "")
            detail = f"p below {level:.1e} at {', '.join(failed)}" if failed else ""
            checks.append(Check("statistical", name, compared, draws, statistic, verdict, worst.p_value, detail, facts))
        return checks

    def power(self, false_alarm: float) -> list[str]:
        """Return what the tests would have found in 9 cases of 10, in words."""
        sentences = []
        for what, tests in (
            ("averaged over all rounds, a shift between the classes of the first token", self.live[:2]),
            ("at one of the single places, a shift of the first token's law", self.single[0::2]),
        ):
            found = [test.detectable(self.level(false_alarm)) for test in tests]
            known = sorted(value for value in found if not isnan(value))
            if known:
                sentences.append(f"{what} by a total variation of {known[len(known) // 2]:.3f} or more")
        return sentences


def draw(arm: Arm, texts: Texts, asked: CertificateConfig, limit: int, seed: int) -> DrawnTests:
    """Draw what the statistical level needs of an arm at a temperature, from texts of at most `limit` tokens."""
    live = LiveTallies()
    with stage("Draw rounds", total=asked.rounds, shorter="certificate.rounds=N draws fewer") as under_way:
        while live.rounds < asked.rounds:
            request = drawn_request(arm, texts, limit, seed, live.texts, f"text {live.texts}")
            watched = Watched(arm.verifier, live.drafted)
            generation = replace(arm, verifier=watched).decode(request, CpuClock())
            live.add(arm.target, generation, watched.seen)
            under_way.advance(len(generation.rounds))
    single: list[Tested] = []
    shorter = "certificate.places=N, redraws=N and redrafts=N draw less"
    with stage("Draw at single places", total=asked.places, shorter=shorter) as under_way:
        for place in range(asked.places):
            request = drawn_request(arm, texts, limit, seed, place, f"place {place}")
            single += redraw(arm, request, 1 + place % 5, asked, f"place {place + 1}")
            under_way.advance()
    return DrawnTests(live.tests(), single, live.states())


def drawn_request(arm: Arm, texts: Texts, limit: int, seed: int, number: int, purpose: str) -> Request:
    """Return the text of a number, counted through `texts` again and again, with random numbers of its own purpose."""
    purposes = f"certify/draft/{purpose}", f"certify/accept/{purpose}"
    return seeded_request(arm.target, texts[number % len(texts)], limit, seed, purposes)

"""The command end to end, on the table target: the certificate that it leaves, its table and its exit codes."""

import json

import pytest

from specdec import certify
from specdec.certification import certifier, exact, greedy_identity
from specdec.verifiers.base import verifiers
from specdec.verifiers.speculative_sampling import SpeculativeSampling

LAW = "target.law=[[0.4,0.35,0.25],[0.1,0.3,0.6],[0.55,0.2,0.25]]"
FEW = ("certificate.rounds=100", "certificate.places=2", "certificate.redraws=200", "certificate.redrafts=60")
TINY = ("target=table", "prompts=tokens", LAW, "measurement.max_new_tokens=24", *FEW)


@pytest.fixture
def command(in_process, tmp_path):
    """`command(...)` runs specdec.certify; it gives the exit code, the certificate or None, and both streams."""

    def call(*arguments):
        ended = in_process(certify, *arguments)
        (path,) = list(tmp_path.glob("outputs/*/*/certificate.json")) or [None]
        return ended.code, path and json.loads(path.read_text()), " ".join(ended.output.split()), ended.error

    return call


@pytest.fixture(autouse=True)
def few_laws(monkeypatch):
    """Enumerates one law of each family; test_levels and the contracts have the others."""
    families = exact._cases

    def few(*rule):
        return {family: cases[:1] for family, cases in families(*rule).items()}

    monkeypatch.setattr(exact, "_cases", few)


@pytest.fixture
def no_models(monkeypatch):
    """Leaves out the tiny models, which take seconds; one test has them."""
    monkeypatch.setattr(certifier, "identity_checks", lambda *arguments: [])


def test_a_lossless_combination_is_certified(command, monkeypatch):
    monkeypatch.setattr(greedy_identity, "ARCHITECTURES", {"llama": None})  # contracts has all
    code, certificate, output, error = command("+drafter=ngram", "verifier=block", "structure=chain", *TINY)
    assert code == 0, error
    assert certificate["outcome"] == "certified" and certificate["false_alarm"] == 0.01
    by_level = {check["level"]: check for check in certificate["checks"]}
    assert set(by_level) == {"exact", "statistical", "greedy"}
    assert {check["verdict"] for check in certificate["checks"]} <= {"passed", "not applicable"}
    names = {check["name"] for check in certificate["checks"] if check["verdict"] == "passed"}
    assert {"greedy identity: any path", "drafter on chain: texts of the loop", "states after commits"} <= names
    assert {"first token, 2 single places", "first two tokens, 2 single places", "greedy outputs"} <= names
    assert certificate["config"]["verifier"]["name"] == "block" and certificate["limits"]
    assert {"versions", "model", "drafter", "prompts"} <= set(certificate["environment"])
    assert len(certificate["environment"]["prompts"]["sha256"]) == 64
    assert "Certified lossless" in output and "fails by luck in at most 1.0%" in output
    assert "single places" in output and "total variation of 0." in output


def test_greedy_decoding_is_compared_with_plain_decoding(command, no_models):
    code, certificate, output, error = command("+drafter=oracle", "sampling=greedy", "verifier=greedy", *TINY)
    assert code == 0, error
    verdicts = {check["name"]: check["verdict"] for check in certificate["checks"]}
    assert verdicts["draws"] == "not applicable" and verdicts["greedy outputs"] == "passed"
    assert certificate["power"] == [] and "by luck" not in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("verifier=typical",), "a token's law is 0."),
        (("verifier=typical", "sampling=greedy"), "was not measured at temperature 0"),
    ],
)
def test_a_lossy_rule_is_answered_with_what_it_loses(command, arguments, says):
    code, certificate, output, error = command("+drafter=ngram", *arguments, *TINY)
    assert code == 7 and says in error and "Declared lossy: nothing to certify." in error
    assert certificate["outcome"] == "declared lossy" and certificate["checks"] == []
    assert (certificate["total_variation"] or 0) > 0.05 or "greedy" in str(arguments)
    assert certificate["declarations"][0]["standing"] == "declared lossy"


class Foreign(SpeculativeSampling):
    """A rule of another package."""

    mistake = 0.0

    def accept(self, draft, p, generator):
        flat = p.new_full(p.shape, 1 / p.shape[-1])
        return super().accept(draft, (1 - self.mistake) * p + self.mistake * flat, generator)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [0.0, 0.4])
def test_a_foreign_declaration_is_proven_or_refuted(command, no_models, monkeypatch, mistake):
    """Shown a blurred p, the rule commits other tokens: exact and statistical level both see it."""
    monkeypatch.setattr(Foreign, "mistake", mistake)
    monkeypatch.setitem(verifiers._classes, "speculative_sampling", Foreign)
    code, certificate, output, error = command("+drafter=ngram", *TINY)
    verifier = certificate["declarations"][0]
    if mistake:
        assert code == 6 and "Not lossless: exact check 'rule on chain: whole rounds' failed" in error
        assert {"exact", "statistical"} <= {
            each["level"] for each in certificate["checks"] if each["verdict"] == "FAILED"
        }
        assert "refutes" in verifier["standing"]
    else:
        assert code == 0, error
        assert verifier["standing"] == "declared lossless by another package; it passed this certificate"

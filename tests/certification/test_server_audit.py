"""The audit of a server: ten faults of real engines are found, right servers pass, and bad ones are told in a sentence.

The model is a table of order two over eight tokens, the last of which ends a text; its drafter sees one token.
"""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures.command_lines import stand_in_for_hydra
from fixtures.local_servers import FAULTS, Answers, Engine
from fixtures.refusals import refused
from fixtures.small_parts import composed_values

from specdec import certify
from specdec.certification.server_audit import Audit, detectable, log_bets, log_evidence
from specdec.certification.server_client import KEY, Client, ServerFault, http
from specdec.config import ServerConfig
from specdec.errors import SpecdecError, UsageError

V, END = 8, 7
PROMPTS = [(f"prompt {n}", np.random.default_rng(n).integers(0, END, 5).tolist()) for n in range(12)]


def table(seed):
    """Return a random model of order two, as a function of a text to logits [V]."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, (1, V, V)) + rng.normal(0, 0.7, (V, V, V))
    logits[..., END] -= 2
    return lambda text: logits[text[-2] if len(text) > 1 else 0, text[-1]]


def reference(model, tokenizer=None):
    """Return what an audit needs of a target."""

    def score(prompt, text):
        whole = (*prompt, *text)
        return torch.tensor(np.stack([model(whole[:end]) for end in range(len(prompt), len(whole) + 1)]))

    return SimpleNamespace(
        score=score, score_as_decoded=score, tokenizer=tokenizer, vocab_size=V, end_tokens=frozenset({END})
    )


def audited(answers, model, ask=None, **changes):
    """Return the audit of a server at temperature 0.7, and its client."""
    values = dict(url="http://tiny", model="tiny", prompts=4, texts=600, places=16, tolerance=0.0)
    config = ServerConfig(**{**values, "timeout_seconds": 5.0, "budget_seconds": 300.0, **changes})
    words = SimpleNamespace(
        decode=lambda tokens, skip_special_tokens=False: answers.decode(tokens),
        encode=lambda text, add_special_tokens: answers.encode(text),
    )

    def answered(path, body):
        answer = answers.ask(path, body)
        if "error" in answer:
            raise ServerFault("refused", 500)
        return answer

    audit = Audit(reference(model, words), config, 0.7, 0.01)
    client = Client(ask or answered, config.url, "tiny", words, V)
    audit.run(client.complete, PROMPTS, 12, 32, seed=0)
    return audit, client


@pytest.mark.parametrize("fault", FAULTS)
def test_the_class_of_a_fault_is_named(fault):
    """A draft token that was kept unverified looks as a wrong token after a rejection does; all others are told."""
    model, said = table(3), FAULTS[fault][1]
    audit, _ = audited(Answers(Engine(model, END, fault)), model, texts=20 if said in ("end token", "limit") else 300)
    assert audit.faults()[:1] == ["residual" if said == "not told apart" else said]
    assert "FAILED" in {check.verdict for check in audit.checks()}


@pytest.mark.parametrize(("form", "takes"), [("token_ids", (list, str)), ("tokens", (str,)), ("content", (list, str))])
def test_a_right_server_is_not_refuted(form, takes):
    model = table(2)
    audit, client = audited(Answers(Engine(model, END), form, takes=takes), model, texts=60)
    assert audit.faults() == [] and audit.draws.sum() > 300 and audit.compared > 100
    assert client.prompts == ("tokens" if list in takes else "text")
    assert [check.verdict for check in audit.checks()] == ["passed"] * 3 and len(audit.power()) == 2


def test_text_alone_is_compared_where_it_is_greedy_and_not_where_it_is_drawn():
    """Its usual tokens are a choice among those that it may have been drawn as, which does not follow the law."""
    model = table(3)
    audit, _ = audited(Answers(Engine(model, END, "stale_state"), "text"), model)
    assert audit.faults() == ["stale state"] and audit.texts["sampled"] == 1
    assert [check.verdict for check in audit.checks()] == ["passed", "FAILED", "not applicable"]


LAWS = np.exp(np.array([table(3)((a, b)) for a in range(V) for b in range(V)]))
LAWS /= LAWS.sum(1, keepdims=True)
COPIED = np.arange(V * V) % 9 - 1  # -1: there is nothing to copy


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_a_bet_multiplies_wealth_by_one_in_the_mean_and_by_no_more_where_the_law_is_as_near_as_allowed(shift):
    every = np.stack([np.exp(log_bets(LAWS, np.full(V * V, x), COPIED, END, shift)) for x in range(V)], 1)
    noise = np.random.default_rng(0).uniform(-shift / 2, shift / 2, (50, *LAWS.shape))
    near = LAWS * np.exp(noise)
    near /= near.sum(-1, keepdims=True)
    mean = np.einsum("rnx,nxkt->rnkt", near, every)
    assert mean.max() < 1 + 1e-12 and (shift or mean.min() > 1 - 1e-12)


def evidence(p, drawn, audits, texts, places):
    """Return the largest evidence [audits] over all times at which an audit might stop."""
    rows = np.tile(np.arange(len(LAWS)), len(drawn) // len(LAWS) + 1)[: len(drawn)]
    bets = log_bets(p[rows], drawn, COPIED[rows], END).reshape(audits, texts, places, 6, -1)
    return log_evidence(bets.cumsum(1)).max(1)


def draws(laws, number, seed):
    """Return tokens, one of each law in turn."""
    rows = np.arange(number) % len(laws)
    uniform = np.random.default_rng(seed).random((number, 1))
    return (laws.cumsum(1)[rows] < uniform).sum(1).clip(max=V - 1)


def test_hardly_any_clean_audit_raises_an_alarm():
    """An audit of 40 texts of 4 tokens is looked at after each. Ville's bound is 1% of audits: ten of 250 have a chance
    below 1e-3, and few come near it.
    """
    peaks = np.concatenate(
        [evidence(LAWS, draws(LAWS, 50 * 160, seed), audits=50, texts=40, places=4) for seed in range(5)]
    )
    assert len(peaks) == 250 and (peaks >= np.log(100)).sum() < 10
    assert (peaks >= np.log(4)).sum() > 5  # the wealth moves


def test_the_stated_shift_is_found_in_nine_of_ten_audits():
    """The likeliest token has a chance of a half, and takes the stated shift from all others."""
    law = np.tile(np.array([0.5, *[0.5 / 7] * 7]), (V * V, 1))
    drawn, audits = 600, 60
    size = detectable(drawn, 0.01)
    moved = law.copy()
    moved[:, 0] += size
    moved[:, 1:] -= size / 7
    peaks = evidence(law, draws(moved, audits * drawn, 5), audits, drawn // 6, 6)
    assert (peaks >= np.log(100)).mean() > 0.85


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("error", "answered HTTP 500: out of memory"),
        ("stream", "a stream, which was not asked for"),
        ("model", "changed its model midway, from tiny to other"),
        ("closed", "cannot be asked"),
        ("redirect", "redirects to http://127.0.0.2:1/, which is not followed"),
        ("slow", "did not answer within 0.5 s (server.timeout_seconds)"),
    ],
)
def test_a_server_that_fails_midway_is_told_in_a_sentence(bad, says):
    answers = Answers(Engine(table(2), END), bad=bad)
    with answers.serving() as url, pytest.raises(ServerFault, match=re.escape(says)):
        audited(answers, table(2), http(url, 0.5))
    assert len(answers.bodies) == answers.good + 1


@pytest.mark.parametrize(
    ("url", "key", "says"),
    [
        ("127.0.0.1:8080", "", "give an address such as"),
        ("http://127.0.0.1:99999", "", "give an address such as"),
        ("http://user:word@127.0.0.1", "", "give an address such as"),
        ("http://example.org", "secret", "would travel unencrypted"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(monkeypatch, url, key, says):
    monkeypatch.setenv(KEY, key)
    with pytest.raises(UsageError, match=says):
        http(url, 1.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"engine": Engine(table(2), END)}, "of 5 tokens as 6"), ({}, "gives token 9, and the reference has 8")],
)
def test_other_weights_are_told_by_their_tokens(changes, says):
    answers = Answers(Engine(lambda text: np.eye(10)[9], END))
    answers = Answers(**{"engine": answers.engine, **changes})
    asked = answers.ask

    def ask(path, body):
        answer = asked(path, body)
        answer["usage"]["prompt_tokens"] += bool(changes)
        return answer

    with pytest.raises(UsageError, match=says):
        audited(answers, table(2), ask)


LAW = np.array([[0.4, 0.35, 0.25], [0.1, 0.3, 0.6], [0.55, 0.2, 0.25]])
TINY = ("target=table", "prompts=tokens", f"target.law={LAW.tolist()}", "server.texts=120", "certificate.outputs=3")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """`asked("--server", url)` does what `specdec.certify` does, in the folder `tmp_path`."""
    stand_in_for_hydra(monkeypatch, tmp_path)

    def call(*arguments):
        overrides = certify.server_overrides([*arguments])
        certify.task(composed_values(*TINY, *overrides, root="certify_server", whole=True))

    return call


@pytest.mark.parametrize(
    ("fault", "bad", "code", "says"),
    [
        ("", "", 0, "Not refuted by 123 texts."),
        ("bonus_argmax", "", 6, "Refuted (bonus token: "),
        ("", "error", 4, "The audit broke off: http://127.0.0.1"),
    ],
)
def test_the_command_audits_a_server_and_keeps_what_it_found(asked, tmp_path, monkeypatch, fault, bad, code, says):
    monkeypatch.setenv(KEY, "secret")
    answers = Answers(Engine(lambda text: np.log(LAW[text[-1]]), fault=fault), bad=bad, good=50)
    ended = 0
    with answers.serving() as url:
        try:
            asked("--server", url, "--model", "tiny")
        except SpecdecError as error:
            ended = error.exit_code
    certificate = json.loads((tmp_path / "certificate.json").read_text())
    assert ended == code and says in certificate["sentence"] and answers.keys == {"Bearer secret"}
    assert not any("secret" in file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert certificate["combination"]["model"] == "tiny" and certificate["limits"] and certificate["power"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--server",), "--server needs a value"),
        (("--server", "URL", "--model", "huge"), "name a model of"),
        (("--server", "URL", "sampling.temperature=0"), "use a temperature above 0 alone"),
    ],
)
def test_what_is_wrong_with_the_command_is_told_before_a_model_is_read(asked, tmp_path, arguments, says):
    with Answers(Engine(lambda text: np.log(LAW[text[-1]]))).serving() as url, refused(says):
        asked(*[each.replace("URL", url) for each in arguments])
    assert not list(tmp_path.iterdir())


def test_the_command_line_of_an_audit(in_process):
    ended = in_process(certify, "--server", "http://127.0.0.1:9", *TINY)
    assert ended.code == 2 and "cannot be asked" in ended.error

"""Makes the certificate of a server: opens the weights, audits the server against them, and gives the verdict."""

from pathlib import Path

import yaml
from rich import get_console

from specdec.certification.certificate import Certificate, Outcome, show
from specdec.certification.server_audit import SAID, Audit
from specdec.certification.server_client import Client, ServerFault, http
from specdec.config import ServerConfig
from specdec.environment import capture
from specdec.errors import NotLossless, SpecdecError, UsageError
from specdec.plan.plan import Plan
from specdec.session.parts import loading, open_parts
from specdec.terminal import print_links

LIMITS = (
    "The reference is these weights as they are opened here. Quantised or batched kernels of a server compute other "
    "logits: that is another reference, and server.tolerance says by how much they may differ without a fault.",
    "A smaller bias than stated may have been missed, as of drafts drawn in bfloat16 beside a q in float32.",
    "The class is told from the place where differences begin, for servers whose prefill gives the first token.",
    "Whether the server drafted at all is not seen; speed, chat templates and cuts such as top_p are no part of it.",
)


def certify_server(plan: Plan, asked: ServerConfig, folder: Path) -> Certificate:
    """Audit a server, print the table, and write `certificate.json` to the folder.

    Raises:
        NotLossless: its outputs are refuted; the certificate is written.
        ServerFault: the server fails midway; what was found until then is written.
        UsageError: the server cannot be asked at all, or not about these weights.
    """
    sampling, certificate = plan.sampling, plan.certificate
    assert certificate is not None
    cuts = [name for name in ("top_k", "top_p", "min_p", "typical_p") if getattr(sampling, name) is not None]
    if sampling.greedy or cuts:
        named = f"sampling.{cuts[0]}" if cuts else "sampling.temperature=0"
        raise UsageError(
            f"Bad value {named}: servers cut laws in other orders, and a greedy audit is made beside the sampled one; "
            "use a temperature above 0 alone."
        )
    ask = http(asked.url, asked.timeout_seconds)
    client = Client(ask, asked.url, asked.model or "", None, 0)
    try:
        client.choose_model()
    except ServerFault as fault:
        raise UsageError(str(fault)) from None
    with loading(plan):
        parts = open_parts(plan)
    client.tokenizer, client.vocabulary = parts.target.tokenizer, parts.target.vocab_size
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(plan.config), sort_keys=False), encoding="utf-8")
    texts = [(prompt.id, prompt.tokens) for prompt in parts.prompts.prompts]
    audit = Audit(parts.target, asked, sampling.temperature, certificate.false_alarm)
    broken: SpecdecError | None = None
    try:
        audit.run(client.complete, texts, certificate.outputs, parts.limit, plan.seed)
    except SpecdecError as fault:
        if not audit.asked:
            raise UsageError(str(fault)) if isinstance(fault, ServerFault) else fault from None
        broken = fault
    checks, faults = audit.checks(), audit.faults()
    outcome: Outcome = "not lossless" if faults else "not refuted"
    sentence = "; ".join(f"{each}: {SAID[each]}" for each in faults)
    sentence = f"Refuted ({sentence})." if faults else f"Not refuted by {audit.asked} texts."
    if broken is not None:
        sentence = f"{sentence} The audit broke off: {broken}"
    answered = {name: value for name, value in client.answered.items() if value is not None}
    notes = list(LIMITS)
    if not client.neutral:
        notes.append("The server refuses options that leave the law uncut: its own defaults may cut it.")
    made = Certificate(
        outcome=outcome,
        sentence=sentence,
        combination={"server": asked.url, "model": client.model, "target": plan.model, **answered},
        declarations=(),
        checks=checks,
        false_alarm=certificate.false_alarm,
        power=audit.power(),
        total_variation=None,
        limits=notes,
        config=plan.config,
        environment={
            **capture(parts.target.device, {"seed": plan.seed}),
            "model": parts.target.describe(),
            "prompts": {"name": parts.prompts.name, "sha256": parts.prompts.content_hash},
            "server": {"requests": client.requests, "seconds": client.seconds, "prompts": client.prompts},
        },
    )
    made.save(folder / "certificate.json")
    show(made, get_console())
    print_links(get_console(), {"results": str(folder)})
    if faults:
        raise NotLossless(sentence)
    if broken is not None:
        raise broken
    return made

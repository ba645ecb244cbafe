"""The usual forms of records that hold prompts: which field has them, and the user's turns in it."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import UsageError

USUAL_FIELDS = ("turns", "messages", "conversations", "prompt", "question", "instruction", "text")
"""Names of fields, the one that says most first: of several that a record has, the first one is read."""
SPEAKERS = {
    "system": "system", "human": "user", "user": "user",
    "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant", "bard": "assistant", "bing": "assistant",
}  # fmt: skip
"""Names of speakers in conversations, and the roles that chat templates know."""


def usual_prompt(record: Mapping[str, Any], where: str) -> tuple[str, Any]:
    """Return the usual field that a record has, and what is in it; with an instruction, its input stands below it.

    Args:
        where: file and line, for messages.
    Raises:
        UsageError: it has none.
    """
    field = next((name for name in USUAL_FIELDS if record.get(name) is not None), None)
    if field is None:
        there = ", ".join(map(str, record)) or "none"
        raise UsageError(
            f"{where}: none of the usual fields ({', '.join(USUAL_FIELDS)}) is there; its keys are {there}: set "
            "prompts.field to the one with the prompt."
        )
    value, below = record[field], record.get("input")
    if field == "instruction" and isinstance(value, str) and isinstance(below, str) and below.strip():
        value = f"{value}\n\n{below}"
    return field, value


def user_turns(value: Any, field: str, where: str) -> Sequence[Any]:
    """Return the turns of the user that a field holds: a text is one turn, a list of texts has one each, and of a list
    of messages ({"role", "content"}, or {"from", "value"}) the user's are taken, behind the system's text.

    Raises:
        UsageError: a message without a role or text, of an unknown speaker, or none of the user.
    """
    if not isinstance(value, list) or not any(isinstance(each, Mapping) for each in value):
        return value if isinstance(value, list) else [value]
    turns: list[str] = []
    system = ""
    for message in value:
        said = message if isinstance(message, Mapping) else {}
        role, text = SPEAKERS.get(str(said.get("role", said.get("from")))), said.get("content", said.get("value"))
        if isinstance(text, list):  # parts of a message, as of interfaces that also take pictures
            parts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in text]
            text = "\n\n".join(parts) if all(isinstance(part, str) for part in parts) else None
        if role is None or not isinstance(text, str):
            raise UsageError(
                f"{where}: {field} holds a message without a role ({', '.join(SPEAKERS)}) and a text; messages are "
                '{"role": "user", "content": "..."} or {"from": "human", "value": "..."}.'
            )
        if role == "system":
            system = f"{text}\n\n"
        elif role == "user":
            turns.append(system + text)
            system = ""
    if not turns:
        raise UsageError(f"{where}: {field} holds no message of the user.")
    return turns

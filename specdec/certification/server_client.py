"""The client of an OpenAI-compatible server: completions as tokens, in bounded time. It knows no reference and no test.

Only the address that the user named is asked: no proxy, no redirect. A key is read from the environment, sent to that
address, and stored nowhere.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from typing import Any, Literal
from urllib.parse import urlsplit

from specdec.errors import EnvironmentFault, UsageError

KEY = "SPECDEC_SERVER_KEY"  # environment variable of the key, which is sent as a bearer token
_MOST_BYTES = 8_000_000  # of an answer
_NEUTRAL = {
    # Engines have defaults of their own that cut the law, or take them from the model's folder.
    **{"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0, "repetition_penalty": 1.0},
    # How vLLM gives tokens; llama.cpp gives them with the log-probabilities.
    **{"logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True},
}

Ask = Callable[[str, Mapping[str, Any] | None], Any]
"""A function that asks a path, with a body or by GET without one, and returns the decoded JSON of the answer."""


class ServerFault(EnvironmentFault):
    """A server that does not answer (`status` is 0), or not with what was asked for."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Completion:
    """A text that a server wrote."""

    tokens: tuple[int, ...] | None  # None where it gave text alone, or tokens that are not those of its text
    text: str
    finish: str  # "stop" or "length" where it keeps to the protocol
    counted: int | None  # the tokens that it says it wrote


def http(url: str, seconds: float) -> Ask:
    """Return what asks a server at `url`, with or without the /v1 at its end; after `seconds`, an answer that is not
    whole counts as none. Raises UsageError: an address that cannot be used.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.username:
        raise UsageError(f"--server {url}: give an address such as http://127.0.0.1:8080, and a key in {KEY}.")
    headers, key = {"Content-Type": "application/json"}, os.environ.get(KEY, "").strip()
    if key:
        if parts.scheme == "http" and not (host in ("localhost", "::1") or host.startswith("127.")):
            raise UsageError(f"--server {url}: {KEY} would travel unencrypted; use https, or unset it.")
        headers["Authorization"] = f"Bearer {key}"
    base, connect = parts.path.rstrip("/").removesuffix("/v1"), HTTPSConnection if parts.scheme == "https" else None

    def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        connection = (connect or HTTPConnection)(host, port, timeout=seconds)
        late: list[bool] = []

        def stop() -> None:  # a timeout of the socket alone begins anew with every byte
            late.append(True)
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

        timer = Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            content = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", base + path, content, headers)
            response = connection.getresponse()
            answer = response.read(_MOST_BYTES + 1)
            # A connection that was shut down reads like one that ended by itself.
            if late:
                raise TimeoutError
        except (OSError, HTTPException) as error:
            if late or isinstance(error, TimeoutError):
                raise ServerFault(f"{url} did not answer within {seconds:g} s (server.timeout_seconds).") from None
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ServerFault(
                f"{url} cannot be asked ({reason}): see that the server runs and listens there."
            ) from None
        finally:
            timer.cancel()
            connection.close()
        return _decoded(url, response.status, answer, response.headers.get("Location"))

    return ask


def _decoded(url: str, status: int, answer: bytes, location: str | None) -> Any:
    """Return the JSON of an answer. ServerFault for every other answer, with what the server said."""
    text = answer.decode("utf-8", "replace").strip()
    if 300 <= status < 400:
        raise ServerFault(f"{url} redirects to {location}, which is not followed: name that address.", status)
    if len(answer) > _MOST_BYTES:
        raise ServerFault(f"{url} answered with more than {_MOST_BYTES:,} bytes.", status)
    if status in (401, 403):
        raise ServerFault(f"{url} wants a key (HTTP {status}): give it in the environment variable {KEY}.", status)
    streamed = text.startswith("data:")
    try:
        decoded = json.loads(text.removeprefix("data:").partition("\n")[0] if streamed else text)
    except ValueError:
        decoded = None
    fault = decoded.get("error") if isinstance(decoded, dict) else None
    if fault or status >= 400:
        said = fault.get("message", fault) if isinstance(fault, dict) else fault or text
        raise ServerFault(f"{url} answered HTTP {status}: {' '.join(str(said).split())[:200]}", status)
    if streamed or not isinstance(decoded, dict):
        how = "a stream, which was not asked for" if streamed else "what is no JSON object"
        raise ServerFault(f"{url} answered with {how}: {text[:80]!r}.", status)
    return decoded


def model_of(ask: Ask, url: str, name: str | None) -> str:
    """Return the name of the model that a server at `url` is asked for: `name`, or the only one that it lists. Raises
    UsageError: it lists others, or there is no one name to take; ServerFault: no answer, but a server without a list.
    """
    try:
        listed = ask("/v1/models", None).get("data") or []
    except ServerFault as fault:
        if fault.status != 404:
            raise
        listed = []
    names = [str(each["id"]) for each in listed if isinstance(each, dict) and "id" in each]
    if not name and len(names) == 1:
        return names[0]
    if not name or (names and name not in names):
        known = f"it lists {', '.join(names[:20])}" if names else "it lists none"
        raise UsageError(f"--model {name or 'NAME'}: name a model of {url} ({known}).")
    return name


@dataclass
class Client:
    """Completions of one model of a server, asked one after the other."""

    ask: Ask
    url: str
    model: str
    tokenizer: Any  # the reference's; without one, prompts go as tokens alone
    vocabulary: int  # the size of the reference's
    prompts: Literal["tokens", "text"] | None = None  # how they are sent, once the server took one
    neutral: bool = True  # they are sent with options that leave the law uncut, once the server took these
    answered: dict[str, Any] = field(default_factory=dict)  # what all answers have to repeat: names of model and build
    requests: int = 0
    seconds: float = 0.0  # that all requests took

    def complete(self, prompt: Sequence[int], limit: int, temperature: float, seed: int) -> Completion:
        """Return the server's continuation of a prompt, of at most `limit` tokens. Raises ServerFault: no answer, or
        one of another model than before; UsageError: it reads the prompt as other tokens, or gives unknown ones.
        """
        body = {"model": self.model, "max_tokens": limit, "temperature": temperature, "seed": seed, "stream": False}
        began = time.monotonic()
        forms: list[Literal["tokens", "text"]] = ["tokens", "text"] if self.tokenizer is not None else ["tokens"]
        ways = [(form, neutral) for neutral in (True, False) for form in forms]  # best first, until one is taken
        for form, neutral in [(self.prompts, self.neutral)] if self.prompts else ways:
            sent = list(prompt) if form == "tokens" else self.tokenizer.decode(prompt)
            self.requests += 1
            try:
                answer = self.ask("/v1/completions", {**body, **(_NEUTRAL if neutral else {}), "prompt": sent})
            except ServerFault as fault:
                if self.prompts or fault.status not in (400, 404, 415, 422, 500, 501):
                    raise
                refusal = fault
                continue
            self.prompts, self.neutral = form, neutral
            break
        else:
            raise refusal
        self.seconds += time.monotonic() - began
        for name in ("model", "system_fingerprint"):
            value = answer.get(name)
            if self.answered.setdefault(name, value) != value:
                raise ServerFault(f"{self.url} changed its {name} midway, from {self.answered[name]} to {value}.")
        try:
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            text, finish = str(choice.get("text") or ""), str(choice["finish_reason"])
            tokens = tokens_of(choice)
            read, counted = usage.get("prompt_tokens"), usage.get("completion_tokens")
        except (LookupError, TypeError, AttributeError):
            raise ServerFault(f"{self.url} answered with no completion: {str(answer)[:80]!r}.") from None
        if read is not None and read != len(prompt):
            raise UsageError(
                f"{self.url} reads a prompt of {len(prompt)} tokens as {read}: its tokenizer is not the reference's, "
                "or it adds a begin token; name the weights that it serves with target.model."
            )
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            raise UsageError(
                f"{self.url} gives token {max(tokens)}, and the reference has {self.vocabulary}: name the weights that "
                "it serves with target.model."
            )
        if tokens is not None and self.tokenizer is not None:
            # Under speculation some servers list fewer tokens than they write (llama.cpp #27972).
            plain = [self.tokenizer.decode(tokens, skip_special_tokens=skip) for skip in (False, True)]
            # Tokenizers show parts of characters in different ways.
            if text.replace("\ufffd", "") not in [each.replace("\ufffd", "") for each in plain]:
                tokens = None
        return Completion(None if tokens is None else tuple(tokens), text, finish, counted)


def tokens_of(choice: Mapping[str, Any]) -> list[int] | None:
    """Return the tokens of a completion, as vLLM and llama.cpp give them; None where there is only text."""
    listed = choice.get("token_ids")
    logprobs = choice.get("logprobs") or {}
    if listed is None and logprobs.get("content"):
        listed = [each.get("id") for each in logprobs["content"]]
    if listed is None and logprobs.get("tokens"):  # other servers list strings there
        listed = [str(each).partition("token_id:")[2] for each in logprobs["tokens"]]
    if listed is None and not choice.get("text") and choice.get("finish_reason") == "stop":
        listed = []
    try:
        return None if listed is None else [int(each) for each in listed]
    except (TypeError, ValueError):
        return None

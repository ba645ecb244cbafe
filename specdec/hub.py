"""The hub of Hugging Face: asked once, and briefly, whether it answers. Without a network its own client would retry
for half a minute before each model; told so, it searches its cache at once.
"""

import logging
import os
import ssl
import sys
from functools import lru_cache
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

logger = logging.getLogger(__name__)

OFFLINE = "HF_HUB_OFFLINE"  # environment variable of the client, read when it is imported
ENDPOINT = "HF_ENDPOINT"
_SECONDS = 5.0
_YES = ("1", "TRUE", "YES", "ON")  # values that the client takes for true


def settle() -> str:
    """Put the hub's client offline, before it is asked anything, if the hub is silent; return why, "" if it answers."""
    for name in (OFFLINE, "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").upper() in _YES:
            return _found.get("why") or f"{name} is set"
    why = _silent(os.environ.get(ENDPOINT) or "https://huggingface.co")
    if why:
        # For what is imported from here on, and for what is there already.
        os.environ[OFFLINE] = "1"
        for module in ("huggingface_hub.constants", "datasets.config"):
            if module in sys.modules:
                vars(sys.modules[module])[OFFLINE] = True
    return why


def quiet_loading() -> None:
    """Have transformers say nothing but errors when it loads a model; downloads from the hub keep their bars."""
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    hidden = are_progress_bars_disabled()  # as somebody asked by HF_HUB_DISABLE_PROGRESS_BARS
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # also those of the hub's client
    if not hidden:
        enable_progress_bars()


def is_cached(name: str) -> bool:
    """Return whether the local cache has anything of a repository of models."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "snapshots").is_dir()


def not_cached(name: str, why: str) -> str:
    """Return the end of a sentence about a model that is not in the local cache: where it was searched, the remedy, and
    `why` the hub is not asked (`settle`).
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    return (
        f"from the local cache {HF_HUB_CACHE}, and the hub is not asked ({why}): give a folder, or fetch it where "
        f"there is a network with `hf download {name}`."
    )


_found: dict[str, str] = {}  # why the hub was found to be silent: `settle` then sets the variable itself


@lru_cache(maxsize=4)
def _silent(endpoint: str) -> str:
    """Return why the hub does not answer, "" if it does: any answer will do, a refusal or a bad certificate too."""
    try:
        urlopen(Request(endpoint, method="HEAD"), timeout=_SECONDS).close()
    except HTTPError:
        return ""
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return ""
        _found["why"] = why = f"{endpoint} does not answer"
        logger.debug("%s: %s", why, reason)
        return why
    return ""

"""The peers of one run together: opened, tuned, described for `peers.json`, closed."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from specdec.peers.base.contract import Absent, Engine, LeftOut, Peer, Work, engines, one_line
from specdec.prompts import Prompt

logger = logging.getLogger(__name__)


class OpenedPeers:
    """All peers of a run.

    Attributes:
        peers: those that can run, for the session.
    """

    def __init__(self, work: Work | None) -> None:
        """
        Args:
            work: what they are set against; None where none were asked for.
        """
        self.peers: list[Peer] = []
        self._engines: dict[str, tuple[str, str]] = {}  # name of a peer -> engine, version
        self._absent: list[Absent] = []
        self._work = work

    def add(self, engine: Engine, held: ExitStack) -> None:
        """Open an engine's peers; what cannot run is left out with its reason, which is also logged."""
        assert self._work is not None
        absent: list[Absent] = []
        try:
            if any(find_spec(module) is None for module in engine.needs):
                wanted = " and ".join(dict.fromkeys(engine.needs.values()))
                remedy = f"pip install -e '.[{engine.extra}]'"
                raise LeftOut(f"measurement.peers names {engine.name}, which needs {wanted}: {remedy}")
            for each in engine.peers(self._work, held):
                if isinstance(each, Absent):
                    absent.append(each)
                else:
                    self.peers.append(each)
                    self._engines[each.name] = (engine.name, engine.version)
        except Exception as error:  # of somebody else's package, which may raise anything
            absent.append(Absent(engine.name, one_line(error).rstrip(".") + "."))
        for each in absent:
            logger.warning("Peer %s is left out: %s", each.name, each.reason)
        self._absent += absent

    def tune(self, longest: Prompt, before: Sequence[Mapping[str, Any]], last: set[str]) -> None:
        """Warm up and choose settings on the longest prompt; those of an earlier sitting stay as they were.

        Args:
            before: what `describe` said of peers in an earlier sitting of the run; empty for a new run.
            last: the peers that ran at the last prompt of that sitting.
        """
        known = {each["peer"]: each for each in before}
        for peer in self.peers:
            if peer.name in known:
                peer.keep(longest, known[peer.name], peer.name in last)
            else:
                peer.tune(longest)
            if peer.failure:
                logger.warning("Peer %s is left out: %s", peer.name, peer.failure)

    def describe(self, generations: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
        """Return the content of `peers.json`; None where no peers were asked for.

        Args:
            generations: what the peers wrote.
        """
        if self._work is None:
            return None
        target = self._work.target
        how = {None: "uncompiled", "trace": "traced", "inductor": "compiled"}[target.compilation]
        dtype = str(target.model.dtype).removeprefix("torch.")
        threads = "" if target.device.type == "cuda" else f", {torch.get_num_threads()} threads"
        described = []
        for peer in self.peers:
            engine, version = self._engines[peer.name]
            about = peer.describe()
            ours = {**about["ours"], "setting": f"{how}, {dtype}{threads}"}
            described.append({**about, "engine": engine, "version": version, "ours": ours})
        return {
            "peers": described,
            "left_out": [{"peer": each.name, "reason": each.reason} for each in self._absent],
            "generations": list(generations),
        }


@contextmanager
def opened(names: Sequence[str], work: Work | None) -> Iterator[OpenedPeers]:
    """Open the peers of these engines, and close them when the run has ended, however it ends.

    Args:
        work: what they are set against; None where there are no names.
    """
    found = OpenedPeers(work)
    with ExitStack() as held:
        for name in dict.fromkeys(names):
            found.add(engines.get(name)(name), held)
        yield found

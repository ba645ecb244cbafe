"""Other engines that are timed beside ours in the same run, one file each."""

from specdec.peers.base.contract import Absent, Engine, Peer, Setting, Work, engines
from specdec.peers.base.opened import OpenedPeers, opened

__all__ = ["Absent", "Engine", "OpenedPeers", "Peer", "Setting", "Work", "engines", "opened"]

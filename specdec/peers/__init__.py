"""Other engines that are timed beside ours in the same run, one file each."""

from specdec.peers.base.contract import Engine, OpenedPeers, Peer, Setting, Work, engines, opened

__all__ = ["Engine", "OpenedPeers", "Peer", "Setting", "Work", "engines", "opened"]

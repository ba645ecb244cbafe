"""Feature drafters of the EAGLE family: their network, its config and its files. A drafter turns these into drafts."""

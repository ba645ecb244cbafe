"""Feature drafters, EAGLE and its relatives: their networks, config and files. A drafter turns these into drafts."""

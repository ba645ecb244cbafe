"""Statistics of the rounds table: estimates, intervals, tests and the gap account.

Imported as `specdec.analysis`. Data frames in, data frames and frozen dataclasses out; rebuilds every number
of a run from its artifacts, with neither torch nor a model.
"""

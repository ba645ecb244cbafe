"""The findings of a run, and of runs side by side: metrics, curves, sentences and sections."""

"""Heads on a target's hidden states: what they compute, and their files. How they draft is the drafters' business."""

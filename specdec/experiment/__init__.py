"""Timing, calibration, the measured session and what is recorded about the machine."""

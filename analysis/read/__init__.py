"""Reads runs, studies and foreign results from disk and from MLflow."""

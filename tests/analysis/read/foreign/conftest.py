"""Files of others, line by line."""

import json

import pytest


@pytest.fixture
def write(tmp_path):
    def lines(*values, name="trace.jsonl"):
        path = tmp_path / name
        path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values), encoding="utf-8")
        return path

    return lines

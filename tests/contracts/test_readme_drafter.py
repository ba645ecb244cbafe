"""The drafter that the README shows is one: it registers, and passes the suite that drafters of other packages pass."""

import re
import sys
from pathlib import Path
from types import ModuleType

from fixtures.suite_outcomes import outcomes

from specdec.drafters.base import drafters
from specdec.testing import cases_of

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_drafter_of_the_readme_conforms(monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    drafters.names()  # all of ours are registered now, and this one is forgotten after the test
    monkeypatch.setattr(drafters, "_classes", dict(drafters._classes))
    module = ModuleType("drafter_of_the_readme")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block, str(README), "exec"), module.__dict__)
    capabilities = drafters.get("repeat").capabilities
    found = outcomes(cases_of(lambda target: drafters.build({"name": "repeat"}, target=target), capabilities))
    assert not any(found.values()), found
    assert list(found.values()).count("") > 10

"""Loading is quiet, and downloads keep their bars."""

import pytest
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging

from specdec import hub


@pytest.fixture
def as_before():
    """Leave the bars of both libraries as they were."""
    disabled = are_progress_bars_disabled()
    yield
    logging.disable_progress_bar()
    if not disabled:
        enable_progress_bars()


@pytest.mark.parametrize("hidden", [False, True])
def test_loading_has_no_bar_of_its_own_and_leaves_those_of_downloads_as_they_were(as_before, hidden):
    logging.enable_progress_bar()
    if hidden:
        disable_progress_bars()
    hub.quiet_loading()
    assert not logging.is_progress_bar_enabled() and are_progress_bars_disabled() == hidden

"""What looks for faults of accessibility finds them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.e2e.axe import axe_faults

pytestmark = pytest.mark.e2e
WRONG = "<html lang='en'><title>x</title><main><h1>x</h1><img src='data:,'><p style='color:#ccc;background:#fff'>pale</p></main></html>"


def test_what_is_wrong_is_found(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content(WRONG)
    assert {fault.partition(":")[0] for fault in axe_faults(page)} == {"color-contrast", "image-alt"}
    assert {fault.partition(":")[0] for fault in axe_faults(page, colours_only=True)} == {"color-contrast"}
    page.close()

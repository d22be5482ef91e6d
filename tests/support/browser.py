"""A headless Chromium for tests of the window, driven by Selenium.

Tests that need it skip, saying so, where Chromium or its driver is not installed (Debian: packages
``chromium`` and ``chromium-driver``). The browser blocks, so async tests call it in a thread.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.common.by import By

T = TypeVar("T")

BROWSER, DRIVER = "chromium", "chromedriver"
WAIT_S = 120.0
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--ignore-certificate-errors",
    "--window-size=1280,800",
)


def missing_browser() -> str | None:
    """Return why there is no browser, or None."""
    absent = [name for name in (BROWSER, DRIVER) if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else None


class Page:
    """One browser window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Go to an address."""
        self.driver.get(url)

    def text(self, selector: str = "body") -> str:
        """Return the text of the first element that fits, empty if there is none."""
        found = self.run(
            "const one = document.querySelector(arguments[0]); return one ? one.innerText : ''",
            selector,
        )
        return str(found)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, what: Callable[[Page], T], words: str) -> T:
        """Wait until ``what`` returns something true, and return that."""
        until_s = time.monotonic() + WAIT_S
        while True:
            if found := what(self):
                return found
            assert time.monotonic() < until_s, f"{words}; the page says: {self.text()[:1500]}"
            time.sleep(0.05)

    def says(self, words: str, selector: str = "body") -> None:
        """Wait until an element shows some text."""
        self.until(lambda page: words in page.text(selector), f"{words!r} is not shown")

    def click(self, selector: str, words: str = "") -> None:
        """Click the first element that fits and has the text."""

        def find(page: Page) -> Any:
            found = page.driver.find_elements(By.CSS_SELECTOR, selector)
            return next((one for one in found if words in one.text and one.is_displayed()), None)

        self.until(find, f"no {selector} with {words!r}").click()

    def type(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.until(
            lambda page: page.driver.find_elements(By.CSS_SELECTOR, selector), f"no {selector}"
        )[0].send_keys(text)

    def complaints(self) -> list[str]:
        """Return what the browser complained of: failed scripts, refused content."""
        return [
            one["message"]
            for one in self.driver.get_log("browser")  # type: ignore[no-untyped-call]
            if one["level"] == "SEVERE" and "Failed to load resource" not in one["message"]
        ]


@contextmanager
def browsing() -> Iterator[Page]:
    """Open a browser, and close it."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which(BROWSER))
    for one in _OPTIONS:
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(str(shutil.which(DRIVER)))
    )
    try:
        yield Page(driver)
    finally:
        driver.quit()

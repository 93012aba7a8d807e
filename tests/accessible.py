"""What axe-core, the usual checker of accessibility, finds on a page."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe

GRAVE = {"serious", "critical"}


def barriers(page: Any, within: str | None = None) -> list[str]:
    """What keeps some readers out, as rule and element; only what axe-core calls serious or critical.

    within: a selector of what is looked at, by default the whole page.
    """
    found = Axe().run(page, context=within).response["violations"]
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found
        if each["impact"] in GRAVE
        for node in each["nodes"]
    ]

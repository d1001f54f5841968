"""The page at ``/``: lanes, queue, rates and gaps, drawn from what operators can read anyway.

One file without anything from elsewhere. The policy that goes with it lets the browser run this script and no other,
and talk to this server alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from quart import Quart, Response


def page() -> str:
    """The page as it is sent."""
    return resources.files("ninfer.api").joinpath("dashboard.html").read_text(encoding="utf-8")


def policy(html: str) -> str:
    """The content security policy of a page whose style and script stand in it."""

    def allowed(tag: str) -> str:
        found = re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert found is not None, f"the page has no {tag}"
        return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {allowed('script')}; style-src {allowed('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def add_dashboard(app: Quart) -> None:
    """Add the page to the application."""
    html = page()
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy(html),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    @app.get("/")
    async def dashboard() -> Response:
        return Response(html, content_type="text/html; charset=utf-8", headers=headers)

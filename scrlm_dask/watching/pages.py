"""What the scheduler's web server answers under /scrlm: a page, and the numbers it asks for."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from tornado.web import RequestHandler

# The page holds its own styles and its own script and loads nothing; numbers come from its server.
# It may stand in a frame, as in JupyterLab.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)


class _Handler(RequestHandler):
    def initialize(self, plugin: Any) -> None:
        self.plugin = plugin

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")


class PageHandler(_Handler):
    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.write((files(__package__) / "page.html").read_bytes())


class StateHandler(_Handler):
    def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        run = self.get_query_argument("run", None)
        self.write(json.dumps(self.plugin.snapshot(run), allow_nan=False))


def add_pages(scheduler: Any, plugin: Any) -> None:
    """Add the page to a scheduler that serves a dashboard, under any prefix, and to its links."""
    application = getattr(scheduler, "http_application", None)
    if application is None:
        return
    given = {"plugin": plugin}
    application.add_handlers(
        r".*",
        # a scheduler may be told to put a prefix before all of its pages
        [
            (r"(?:/.*)?/scrlm/?", PageHandler, given),
            (r"(?:/.*)?/scrlm/state\.json", StateHandler, given),
        ],
    )
    try:
        from distributed.dashboard.scheduler import template_variables
    except ImportError:  # without Bokeh there is no bar of links
        return
    pages = template_variables(scheduler)["pages"]  # the same list each time
    if "scrlm" not in pages:
        pages.append("scrlm")

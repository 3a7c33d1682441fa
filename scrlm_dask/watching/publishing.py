"""From the client to the scheduler: what the page there shows beside the blocks, which it hears of
from the workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scrlm_dask.events import Event, Listener, Note
from scrlm_dask.watching import wanted
from scrlm_dask.watching.lines import as_record

TOPIC = "scrlm"  # under which runs tell their events; blocks come under the topic of their run


def publisher(client: Any, run: str, say: Callable[[Event], None]) -> Listener | None:
    """See that the scheduler has the page, and give the listener that tells it of this run.

    A scheduler that cannot have it, as it has not this package, is no reason to fail.
    """
    if not wanted():
        return None
    from scrlm_dask.watching.plugin import RunsPlugin

    try:
        client.register_plugin(RunsPlugin())
    except Exception as error:  # whatever loading it there raised
        say(Note(f"no page /scrlm on this scheduler: {type(error).__name__}: {error}"))
        return None

    def publish(event: Event) -> None:
        # a scheduler that is gone ends the run in its own way, not in that of its watchers
        with suppress(Exception):
            client.log_event(TOPIC, {"run": run, **as_record(event)})

    return publish

"""What the control socket is answered. It reads, or passes a wish on; it changes nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.supervise import metrics
from launcher.supervise.control import Feed, Reply
from launcher.supervise.files import InstanceFiles
from launcher.supervise.lines import LEVELS
from launcher.supervise.logs import Log, Record
from launcher.supervise.states import Ask, Wish

if TYPE_CHECKING:
    from launcher.supervise.reloading import Reloader
    from launcher.supervise.supervisor import Supervisor

_STATUS_PATIENCE = 0.1
"""`status` answers within 0.2 s also while the engine hangs: then with what was last known."""


class Answers:
    def __init__(self, supervisor: Supervisor, reloader: Reloader, files: InstanceFiles, log: Log) -> None:
        self._supervisor = supervisor
        self._reloader = reloader
        self._files = files
        self._log = log

    async def answer(self, request: Reply) -> Reply:
        here = self._supervisor
        match request.get("do"):
            case "status":
                if here.engine is not None:
                    await here.engine.refresh(_STATUS_PATIENCE)
                await here.settled()
                return {"ok": True, "status": here.status()}
            case "stop" | "kill" | "restart" as wish:
                here.tell(Ask(Wish(wish), str(request.get("by") or f"asked to {wish}")))
                return {"ok": True, "seq": here.journal.last}
            case "reload":
                return await self._reloader.answer(request)
            case "metrics":
                return {"ok": True, "metrics": await self.metrics()}
            case "last-exit":
                return {"ok": True, "last_exit": self._files.read("last-exit")}
            case "spec":
                return {"ok": True, "spec": here.spec.as_json()}
        return {"ok": False, "error": f"unknown request {request.get('do')!r}"}

    def subscribe(self, request: Reply) -> Feed | None:
        """A feed for `events` and `logs`; None for what is answered at once."""
        follow = bool(request.get("follow"))
        if request.get("do") == "events":
            return self._supervisor.journal.feed(follow=follow, since=int(request.get("since", 0)))
        if request.get("do") != "logs":
            return None
        kept = self._log.last(int(request.get("lines", 200)))
        feed = Feed([record for record in kept if _loud(record, request)])
        if not follow:
            feed.close()
            return feed

        def listen(record: Record) -> None:
            if _loud(record, request):
                feed.put(record)

        self._log.listeners.append(listen)
        feed.when_closed = lambda: self._log.forget(listen)
        return feed

    async def metrics(self) -> str:
        """Our page, and the engine's after it."""
        here = self._supervisor
        ours = metrics.page(here.status(), here.deaths, self._log.counts, here.starts)
        return ours + (await metrics.engines_page(here.engine.endpoint) if here.engine is not None else "")


def _loud(record: Record, request: Reply) -> bool:
    wanted = request.get("level", "debug")
    return LEVELS.index(record["level"]) >= (LEVELS.index(wanted) if wanted in LEVELS else 0)

"""Peak memory of the process that serves requests: none may raise it by far more than its body."""

from pathlib import Path

FREE = 64_000_000
TIMES_ITS_BODY = 20
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes():
    """Return the peak resident memory of this process in bytes since the last call, and reset it."""
    peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    CLEAR.write_text("5")
    return int(peak.split()[1]) * 1024


class MemoryWatch:
    """Notes the requests that took more than they may. Those that run at the same time are looked at together."""

    def __init__(self):
        self.excessive = []
        self.running = []
        self.sent = self.before = 0

    def around(self, app):
        """An app that notes what another's requests take."""

        async def watched(scope, receive, send):
            if scope["type"] != "http" or not CLEAR.exists():
                return await app(scope, receive, send)

            async def count():
                message = await receive()
                self.sent += len(message.get("body", b""))
                return message

            if not self.running:
                peak_bytes()
                self.before, self.sent = peak_bytes(), 0
            self.running.append(scope["path"])
            try:
                return await app(scope, count, send)
            finally:
                self.end(scope["path"])

        return watched

    def end(self, path):
        taken = peak_bytes() - self.before
        if taken > max(FREE, TIMES_ITS_BODY * self.sent):
            self.excessive.append(f"{taken:,} bytes for {self.sent:,} of {', '.join(self.running)}")
        self.running.remove(path)

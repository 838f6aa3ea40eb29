"""Messages of long computations."""

from lathe.service import waiting
from lathe.service.waiting import StandingMessage


def test_a_message_that_stands_says_for_how_long_and_whether_others_take_the_cores(monkeypatch):
    now, used, load = 100.0, 0.0, 0.5
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now)
    monkeypatch.setattr(waiting.time, "process_time", lambda: used)
    monkeypatch.setattr(waiting.os, "getloadavg", lambda: (load, 0.0, 0.0))
    message = StandingMessage()
    assert message.describe() == "starting"
    message.say("fitting")
    now += 10
    message.say("fitting")
    message.say("")
    assert message.describe() == "fitting"
    now += 30
    assert message.describe() == "fitting, for 40 s"
    load = 1000.0
    assert message.describe() == "fitting, for 40 s; other programs keep the cores busy"
    used = 39.0
    assert message.describe() == "fitting, for 40 s"
    message.say("measuring")
    assert message.describe() == "measuring"

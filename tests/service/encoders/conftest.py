import pytest

from lathe.service.encoders.engine.admission_queue import AdmissionQueue
from lathe.service.encoders.engine.dispatcher import EngineOptions
from lathe.service.encoders.engine.engine import Engine
from lathe.training.encoder.spec import DEFAULT_ENCODER
from tests.helpers import eventually
from tests.service.encoders.engine.doubles import Starter


@pytest.fixture
def start():
    """Return a function that starts an engine with fake workers. Afterwards no request may be unanswered."""
    engines = []

    def make(*plans, ready=True, max_texts=1000, max_tokens=100_000, stopping=None, **settings):
        starter = Starter(*(lambda plan=plan: plan for plan in plans))
        queue = AdmissionQueue(max_texts, max_tokens)
        options = EngineOptions(retry_seconds=(0.001, 0.004), **settings)
        engine = Engine(DEFAULT_ENCODER, starter, queue, options)
        engines.append(engine)
        engine.works = []
        put = queue.put

        def remembering(work):
            put(work)
            engine.works.append(work)

        queue.put = remembering
        engine.stopping = stopping or engine.stopping
        engine.start()
        if ready:
            eventually(lambda: engine.queue.idle == len(engine.supervisors))
        return engine, starter.made

    yield make
    for engine in engines:
        engine.stop(0)
        assert engine.state == "stopped"
        assert all(work.future.done() for work in engine.works)
        assert not any(supervisor.thread.is_alive() for supervisor in engine.supervisors)
        assert engine.queue.texts == engine.queue.tokens == 0
        assert all(worker.dead for worker in engine.start_worker.made)

import pytest

from lathe.training.distributed.pool import MAX_TRIES, Task, TaskQueue
from lathe.training.errors import EngineError


def tasks(count):
    return (Task(f"task {number}", "encode", ()) for number in range(count))


def test_task_queue_gives_tasks_in_order_and_draws_each_only_when_asked():
    made = []
    queue = TaskQueue(made.append(task.name) or task for task in tasks(3))
    assert queue.take()[0] == 0 and made == ["task 0"]
    assert [queue.take()[0], queue.take()[0], queue.take()] == [1, 2, None]


def test_task_queue_gives_no_task_beyond_the_lead_over_the_oldest_unfinished_one():
    queue = TaskQueue(tasks(9), max_ahead=3)
    assert [queue.take()[0] for _ in range(3)] == [0, 1, 2]
    queue.finish(1)
    queue.finish(2)
    assert queue.take() is None
    queue.finish(0)
    assert [queue.take()[0] for _ in range(3)] == [3, 4, 5]
    assert queue.take() is None


def test_task_queue_refuses_a_task_put_back_max_tries_times_and_suggests_fewer_workers():
    queue = TaskQueue(tasks(1))
    for _ in range(MAX_TRIES - 1):
        queue.put_back(*queue.take(), "killed")
    with pytest.raises(EngineError, match=r"3 workers died at task 0, .*: out of memory\. .*--workers"):
        queue.put_back(*queue.take(), "out of memory")

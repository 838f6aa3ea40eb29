"""Number of threads that torch computes with, in the event loop's thread and in the others."""

import threading

import torch


def limit_this_thread_to_one_core(threads_elsewhere: int) -> None:
    """Let torch use one core in the calling thread, and `threads_elsewhere` in threads that start later.

    For the thread of an event loop, which maps only a few rows at a time: a second core joins later than they take, and
    then waits for more work at full speed, which cost half a millisecond of it for each request.

    Args:
        threads_elsewhere: number of threads that torch uses in other threads.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()  # from here on, this thread keeps its number whatever others set
    setter = threading.Thread(target=torch.set_num_threads, args=(threads_elsewhere,))  # sets it for new threads too
    setter.start()
    setter.join()

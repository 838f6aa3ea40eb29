"""Number of threads that torch computes with, in the event loop's thread and in the others."""

import threading

import torch


def compute_alone(threads: int) -> None:
    """Let torch compute in the calling thread on one core, and in threads that are started later on `threads` cores.

    For the thread of an event loop, which maps only a few rows at a time: a second core joins later than they take, and
    then waits for more work at full speed, which cost half a millisecond of it for each request.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()  # from here on, this thread keeps its number whatever others set
    other = threading.Thread(target=torch.set_num_threads, args=(threads,))  # the number with which new threads begin
    other.start()
    other.join()

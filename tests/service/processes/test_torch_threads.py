import json
import subprocess
import sys

PROGRAM = """
import json, threading, torch
from lathe.service.processes.torch_threads import limit_this_thread_to_one_core

limit_this_thread_to_one_core(3)
others = []
for _ in range(2):
    thread = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
    thread.start()
    thread.join()
torch.ones(300, 300) @ torch.ones(300, 300)
print(json.dumps([torch.get_num_threads(), *others]))
"""


def test_limit_this_thread_to_one_core_leaves_the_number_given_to_later_threads():
    found = subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert json.loads(found) == [1, 3, 3]

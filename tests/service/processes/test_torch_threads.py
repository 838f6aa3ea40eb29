import json
import subprocess
import sys

PROGRAM = """
import json, threading, torch
from service.processes.torch_threads import compute_alone

compute_alone(3)
others = []
for _ in range(2):
    thread = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
    thread.start()
    thread.join()
torch.ones(300, 300) @ torch.ones(300, 300)
print(json.dumps([torch.get_num_threads(), *others]))
"""


def test_compute_alone_leaves_one_core_to_its_thread_and_all_to_later_ones():
    found = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert json.loads(found) == [1, 3, 3]

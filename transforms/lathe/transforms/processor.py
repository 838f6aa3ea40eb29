"""What Linux says of the processor."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
"""File in which Linux describes the processor."""


def read_cpu_field(name: str, cpuinfo: Path = CPUINFO) -> str:
    """Read one field, such as `flags`, of the first core from Linux's /proc/cpuinfo.

    Returns an empty string if there is no such field or no such file.
    """
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    line = next((line for line in lines if line.partition(":")[0].strip() == name), "")
    return line.partition(":")[2].strip()


def is_amd(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether Linux's /proc/cpuinfo names AMD as the processor's vendor.

    False on other systems.
    """
    return read_cpu_field("vendor_id", cpuinfo) == "AuthenticAMD"

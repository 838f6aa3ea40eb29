"""What Linux says of the processor."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
"""File in which Linux describes the processor."""


def read_cpu_field(name: str, cpuinfo: Path = CPUINFO) -> str:
    """Return what Linux says under a name, such as `flags`, of the first core. The result is empty without such a line,
    and on other systems.
    """
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    line = next((line for line in lines if line.partition(":")[0].strip() == name), "")
    return line.partition(":")[2].strip()


def is_amd(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether the processor is AMD's, as Linux says. The result is False on other systems."""
    return read_cpu_field("vendor_id", cpuinfo) == "AuthenticAMD"

import pytest

from lathe.transforms.processor import is_amd, read_cpu_field

X86 = "processor\t: 0\nvendor_id\t: {}\nmodel name\t: AMD or not\nflags\t\t: fpu avx2\n\nvendor_id\t: {}\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n"


@pytest.fixture
def cpuinfo(tmp_path):
    """Return a path for a description of another processor."""
    return tmp_path / "cpuinfo"


@pytest.mark.parametrize(
    ("text", "is_it"),
    [
        (X86.format("AuthenticAMD", "AuthenticAMD"), True),
        (X86.format("GenuineIntel", "AuthenticAMD"), False),
        (ARM, False),
        ("", False),
    ],
)
def test_is_amd_reads_the_vendor_of_the_first_core(cpuinfo, text, is_it):
    cpuinfo.write_text(text)
    assert is_amd(cpuinfo) is is_it


def test_what_linux_does_not_say_is_empty(cpuinfo):
    assert not is_amd(cpuinfo) and read_cpu_field("flags", cpuinfo) == ""
    cpuinfo.write_text(X86.format("AuthenticAMD", ""))
    assert read_cpu_field("flags", cpuinfo) == "fpu avx2"
    assert read_cpu_field("flag", cpuinfo) == read_cpu_field("model", cpuinfo) == ""

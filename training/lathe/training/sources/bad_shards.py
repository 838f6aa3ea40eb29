"""Policy for the damaged files of a source, apart from the readers: commands name it before NumPy is imported."""

from typing import Literal

BadShards = Literal["refuse", "skip"]
"""Policy for damaged files: `refuse` raises at the first damaged file, `skip` leaves such files out and reports
them."""

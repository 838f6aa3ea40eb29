"""What becomes of the damaged files of a source."""

from typing import Literal

BadShards = Literal["refuse", "skip"]
"""`refuse` stops at a damaged file, `skip` leaves it out and says so."""

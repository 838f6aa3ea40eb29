"""Adaptation: what judged searches can improve, tried from the cheapest change to the dearest on queries held out."""

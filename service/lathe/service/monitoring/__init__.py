"""Whether the state folder is sound, and whether live vectors still look like those that a chain was fitted on.

The statistics of live traffic are computed from the requests' vectors, never from texts.
"""

"""The `lathe` command; each file holds the commands of one subject.

`lathe --help` and every short command import all of these files. They therefore import at their top only what the
options need, and all else, such as torch and the server, in the functions that use it.
"""

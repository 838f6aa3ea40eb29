"""The `lathe` command; each file holds the commands of one matter.

`lathe --help` and every short command import all of these files. So they import at their top only what declaring the
options takes, and the rest, such as torch and the server, in the functions that use it.
"""

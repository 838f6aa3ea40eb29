"""The `lathe` command, with a file for the commands of each subject.

`lathe --help` and every short command import all of these files. They therefore import at their top only what the
options need, and all else, such as torch and the server, in the functions that use it.
"""

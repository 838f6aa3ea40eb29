"""Child processes of a server, forked from a process that has imported the libraries or started as new ones.

server ──socket──► fork server ──fork──► encoder processes, which end with the server
                               └──fork──► jobs, which outlive it

`program` says what to run, `client` requests it from a fork server, `fork_server` is that process.
"""

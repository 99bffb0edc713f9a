"""Stands in for `flwr-clientapp` and `flower-superexec`: asks the preloaded program for a fork, and lives as long.

Run by its path with the standard library alone, because its start is paid for every message:

    python -IS shim.py FOLDER COLD NAME [ARGUMENT ...]

FOLDER holds the preloaded program's socket, COLD is Flower's own program, which takes over if there is no answer. The
fork ends when this process does, however that happens, and this process ends with the fork's exit code.
"""

import json
import os
import socket
import struct
import sys
import time

ANSWER_SECONDS = 60.0  # the preloaded program may still be loading


def connect(folder: str) -> socket.socket:
    """A connection to the preloaded program of this user; through the folder, because socket paths must be short."""
    link = socket.socket(socket.AF_UNIX)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link.settimeout(ANSWER_SECONDS)
        link.connect(f"/proc/self/fd/{directory}/socket")
    except OSError:
        link.close()
        raise
    finally:
        os.close(directory)
    if user_of(link) != os.getuid():
        link.close()
        raise OSError("it belongs to another user")
    return link


def user_of(link: socket.socket) -> int:
    """The user whose process is at the other end."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def situation(argv: list[str]) -> bytes:
    """What a process inherits, so that the fork is as if it had been started here."""
    import resource  # not on every system

    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    mask = os.umask(0o077)
    os.umask(mask)
    content = {
        "argv": argv,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109  pathlib takes longer to load than all the rest
        "umask": mask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    }
    text = json.dumps(content).encode()
    return struct.pack("!I", len(text)) + text


def main() -> None:
    """Have the preloaded program do it, or else start Flower's own program and say so."""
    folder, cold, *argv = sys.argv[1:]
    try:
        link = connect(folder)
        socket.send_fds(link, [b"F"], [0, 1, 2])
        link.sendall(situation(argv))
        answer = link.recv(200)
        if answer != b"+":
            raise OSError(answer[1:].decode(errors="replace") or "it ended")
    except OSError as error:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        told = f"WARNING {when} feddag: no preloaded program ({error}); {argv[0]} starts the slow way"
        print(told, file=sys.stderr, flush=True)
        os.execv(cold, [cold, *argv[1:]])
    link.settimeout(None)
    code = link.recv(16)  # nothing if the preloaded program was ended meanwhile
    sys.exit(int(code) if code else 1)


if __name__ == "__main__":
    main()

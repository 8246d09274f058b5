"""The lock of a run folder: held by one process at a time, on one host or several that share the file system.

Two locks, since neither alone is enough everywhere:

- ``flock`` on the file ``lock``. The system lets go of it when its process dies, whatever the cause, so on one host it
  says exactly who lives. Between hosts it holds on most file systems (NFS since Linux 2.6.12, CephFS, GPFS), on some
  only if they are mounted so (Lustre: ``-o flock``), and a few have none at all.
- A lease, the file ``lease``, renewed every quarter of ``LEASE_SECONDS``. It holds wherever a file can be made and
  renamed in one step. Another host's process is taken for dead once its lease stood still for that long, by the clock
  of whoever watches it, so that clocks need not agree; process numbers of other hosts are never looked at. A process
  that was suspended for longer finds its lease taken when it wakes up, and must not write any more.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from filelock import LeaseCompromise, SoftFileLease, Timeout

log = logging.getLogger("suite")
LEASE_SECONDS = 60.0
# What ``flock`` fails with where a file system has no such locks.
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Held(RuntimeError):
    """Another process has the lock; the message says which."""


def flock(handle: int, how: int) -> bool:
    """Tries a lock without waiting. False where the file system has none; raises ``BlockingIOError`` if it is taken."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        raise
    return True


def holder(folder: Path) -> tuple[str, str]:
    """Who had the lock last: what ``lock`` says, such as ``process 12 on node7``, and that host."""
    try:
        text = (folder / "lock").read_text().strip()
    except OSError:
        text = ""
    return text or "another process", text.rpartition(" on ")[2]


def is_locked(folder: Path) -> bool:
    """Whether a live process holds the lock. Another host's counts as alive until its lease is old.

    That age is told by this host's clock; ``Lock``, which decides, does not rely on one.
    """
    try:
        with open(folder / "lock") as handle:
            exact = flock(handle.fileno(), fcntl.LOCK_SH)
        age = time.time() - (folder / "lease").stat().st_mtime
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    if exact and holder(folder)[1] == socket.gethostname():
        return False  # its host is ours, and the system says that it is gone
    return age < LEASE_SECONDS


class Lock:
    """Holds a folder's lock until ``release``.

    Raises:
        Held: another process has it.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lost: str | None = None
        self._seen = time.monotonic()
        self._file = open(folder / "lock", "a+")
        self._lease = SoftFileLease(
            folder / "lease",
            lease_duration=LEASE_SECONDS,
            heartbeat_interval=LEASE_SECONDS / 4,
            on_compromise=self._note_loss,
            thread_local=False,
        )
        try:
            self._acquire()
        except BaseException:
            self.release()
            raise

    def _acquire(self) -> None:
        for tries_left in (3, 2, 1, 0):
            try:
                flock(self._file.fileno(), fcntl.LOCK_EX)
                break
            except BlockingIOError:
                if not tries_left:
                    raise Held(holder(self.folder)[0]) from None
                time.sleep(0.05)  # someone may only be looking (``is_locked``)
        self._take_lease()
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def _take_lease(self) -> None:
        """Soon if it is free or a dead process of this host left it; any other is watched first."""
        try:
            self._lease.acquire(timeout=min(1.0, LEASE_SECONDS))
            return
        except Timeout:
            who = holder(self.folder)[0]
        wait = 1.5 * LEASE_SECONDS
        log.warning("%s: %s left a lease; waiting up to %.0f s to see whether it is alive", self.folder, who, wait)
        try:
            self._lease.acquire(timeout=wait, poll_interval=LEASE_SECONDS / 60)
        except Timeout:
            raise Held(who) from None

    def _note_loss(self, compromise: LeaseCompromise | None) -> None:
        why = f" ({compromise.reason})" if compromise else ""
        self._lost = f"its lock went to {holder(self.folder)[0]} while this process stood still{why}"

    def lost(self) -> str | None:
        """Why the lock is no longer ours, or None. To be asked before anything is written."""
        before, self._seen = self._seen, time.monotonic()
        # We may have been suspended just now: the lease's own thread takes two renewals to notice.
        if self._lost is None and self._seen - before > LEASE_SECONDS / 2 and not self._lease.is_lock_held_by_us:
            self._note_loss(None)
        return self._lost

    def release(self) -> None:
        """Lets go of it; a lease that cannot be removed runs out by itself."""
        try:
            self._lease.release()
        except OSError as error:
            log.warning("%s: the lease could not be removed (%s)", self.folder, error.strerror or error)
        self._file.close()

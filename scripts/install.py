"""Makes `.venv`: an environment with exactly the versions of `requirements.txt`, and this project in it.

Called by `scripts/environment.sh` with the interpreter to use: `install.py ROOT STAMP`. Standard library only.
Two at once: the second waits for the first, then finds the work done.
"""

import fcntl
import shutil
import subprocess
import sys
import time
from pathlib import Path


def say(text: str) -> None:
    """One line to the person who waits."""
    print(f"headway: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    """Run `command`; on failure end with its exit code, its own output being the explanation."""
    code = subprocess.run([str(part) for part in command], stdout=sys.stderr, check=False).returncode
    if code:
        say(f"set-up failed in: {' '.join(str(part) for part in command)}")
        sys.exit(code)


def clear(venv: Path) -> None:
    """Empty the folder of an old or half-made environment, except for the lock this process holds."""
    for entry in venv.iterdir():
        if entry.name == "headway-lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def install(root: Path, stamp: str) -> None:
    """Create, install, and stamp last: an interrupted set-up has no stamp and is done again."""
    venv = root / ".venv"
    start = time.monotonic()
    version = ".".join(map(str, sys.version_info[:3]))
    say(f"first start: making {venv} with Python {version} ({sys.executable})")
    clear(venv)
    run(sys.executable, "-m", "venv", venv)
    pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    say("installing the pinned packages of requirements.txt (about a minute, once)")
    run(*pip, "--require-hashes", "--requirement", root / "requirements.txt")
    say("installing headway")
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", root)
    (venv / "headway-stamp").write_text(stamp)
    say(f"ready after {time.monotonic() - start:.0f} s")


def main(root: Path, stamp: str) -> None:
    """Install unless another process has done it while this one waited for the lock."""
    venv = root / ".venv"
    venv.mkdir(exist_ok=True)
    with open(venv / "headway-lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another start is setting up; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        done = venv / "headway-stamp"
        if not (done.exists() and done.read_text() == stamp):
            install(root, stamp)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except OSError as error:
        say(f"cannot set up the environment: {error.filename}: {error.strerror}")
        sys.exit(1)

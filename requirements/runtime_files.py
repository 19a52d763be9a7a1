"""Runs inside an image build: copies of the base image what Python needs at run time to a root of its own.

    runtime_files.py ROOT

That is the interpreter, its standard library, the shared libraries of both, those that wheels may expect of
any system, certificate authorities and time zones. There is no shell and no other program, hence no file that
changes its user. Their Debian packages are described as in distroless images, where scanners find them.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

STDLIB = Path(sysconfig.get_path("stdlib"))
# Of the standard library: tests, what installs packages, what needs a screen or a compiler.
LEFT_OUT = {
    *("test", "tests", "idlelib", "ensurepip", "lib2to3", "tkinter", "turtledemo", "site-packages"),
    *("dist-packages", Path(sysconfig.get_config_var("LIBPL") or "config").name),
}
# What wheels may take from the system (PEP 600), beside what the interpreter links to.
LIBRARIES = (
    *(
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "librt.so.1",
        "libpthread.so.0",
        "libutil.so.1",
        "libresolv.so.2",
    ),
    *("libnss_dns.so.2", "libnss_files.so.2", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"),
)
FOLDERS = (
    *(
        "/etc/ssl",
        "/usr/lib/ssl",
        "/usr/share/ca-certificates",
        "/usr/share/zoneinfo",
        "/usr/lib/locale/C.utf8",
    ),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/nsswitch.conf", "/etc/os-release"),
    *("/etc/passwd", "/etc/group", "/etc/localtime"),
)
PRIVATE = Path("/etc/ssl/private")


def interpreter() -> Iterator[Path]:
    """The links that lead to the interpreter, and the interpreter."""
    path = Path(sys.executable)
    while path.is_symlink():
        yield path
        path = path.parent / path.readlink()
    yield path


def standard_library() -> Iterator[Path]:
    """What programs import of it."""
    for folder, folders, names in os.walk(STDLIB):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(folder) / name for name in (*folders, *names) if not name.startswith("_tkinter."))


def linked(program: Path) -> Iterator[Path]:
    """The shared libraries that a program or library loads."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        yield from (Path(word) for word in line.split() if word.startswith("/"))


def shared_libraries(programs: list[Path]) -> Iterator[Path]:
    """What the programs load, and what wheels may."""
    loaded = {library for program in programs for library in linked(program)}
    folder = next(library for library in loaded if library.name == "libc.so.6").parent
    yield from loaded
    for library in (folder / name for name in LIBRARIES):
        if library.exists():
            yield library
            yield from linked(library)


def everything(folders: tuple[str, ...]) -> Iterator[Path]:
    """The folders with all that they hold, but no private key."""
    for start in map(Path, folders):
        yield start
        if start.is_dir() and not start.is_symlink():
            yield from (path for path in start.rglob("*") if PRIVATE not in (path, *path.parents))


def copy(path: Path, root: Path) -> None:
    """Copy a file, an empty folder, or a link with what it leads to; folders on the way may be links."""
    for parent in reversed(path.parents):
        into = root / parent.relative_to("/")
        if parent.is_symlink() and not into.is_symlink():
            copy(parent, root)
        elif not into.exists():
            into.mkdir()
    target = root / path.relative_to("/")
    if os.path.lexists(target) or not os.path.lexists(path):
        return
    if path.is_symlink():
        leads_to = Path(os.path.normpath(path.parent / path.readlink()))
        target.symlink_to(path.readlink())
        copy(leads_to, root)
    elif path.is_dir():
        target.mkdir()
    elif path.is_file():
        shutil.copy2(path, target)


def describe_packages(paths: set[Path], root: Path) -> None:
    """Write the control file of each Debian package of which the root has a file, and keep its licence."""
    if shutil.which("dpkg-query") is None:
        return
    # /lib is a link to /usr/lib; packages name their files by either.
    own = {str(path).removeprefix("/usr") for path in paths}
    names = own | {f"/usr{name}" for name in own}
    found = subprocess.run(
        ["xargs", "--null", "dpkg-query", "--search"],
        input="\0".join(sorted(names)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    owners = (
        line.partition(": ")[0] for line in found.stdout.splitlines() if not line.startswith("diversion ")
    )
    packages = {name.strip() for names in owners for name in names.split(",")}
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for package in sorted(packages):
        control = subprocess.run(["dpkg-query", "--status", package], capture_output=True, check=True).stdout
        name = package.partition(":")[0]
        (status / name).write_bytes(control)
        copy(Path("/usr/share/doc") / name / "copyright", root)


def main(root: Path) -> None:
    """Fill the root."""
    os.umask(0o022)
    programs = [path for path in interpreter() if not path.is_symlink()]
    library = list(standard_library())
    programs += [path for path in library if path.suffix == ".so"]
    paths = {*interpreter(), *library, *shared_libraries(programs), *everything(FOLDERS)}
    root.mkdir(parents=True)
    for path in sorted(paths):
        copy(path, root)
    describe_packages({path for path in paths if path.is_file()}, root)
    for folder, mode in (("tmp", 0o1777), ("opt/empty", 0o755)):  # /opt/empty: where processes start
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).chmod(mode)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

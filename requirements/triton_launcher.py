"""Runs inside an image build: compiles Triton's launcher, a Python extension, into the image's kernel cache.

    triton_launcher.py COMPILER FOLDER

Triton compiles it with a C compiler at the first launch of a kernel, unless it finds it in its cache. The
name of the cache entry depends on Triton's source of the launcher, the platform and the folders of Triton's
own files and of libcuda. The driver's libcuda comes to a container at its start, to a place that differs
between nodes: so Triton links against a stand-in in FOLDER/libcuda, at build and, by TRITON_LIBCUDA_PATH, at
run time. The extension itself names libcuda.so.1 without a folder, and so loads the driver's.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

# Where no driver is, Triton asks the stand-in, which answers with CUDA_ERROR_NO_DEVICE.
LIBCUDA = "int cuInit(unsigned int flags) { (void)flags; return 100; }\n"
WRAPPER = """#!/bin/sh
exec {compiler} -Wl,--no-as-needed -Wl,-z,lazy "$@" -idirafter /usr/include
"""  # libcuda is named though no symbol of the stand-in is used; Debian has pyconfig.h below /usr/include


def main(compiler: str, folder: Path) -> int:
    """Fill FOLDER/libcuda and FOLDER/cache; the exit status."""
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        print(
            f"{headers}/Python.h is missing, and Triton's launcher needs it: "
            f"let BASE_IMAGE have Python's headers (Debian: lib{version}-dev)",
            file=sys.stderr,
        )
        return 1
    libcuda, wrapper = folder / "libcuda", folder / "cc"
    libcuda.mkdir(parents=True)
    wrapper.write_text(WRAPPER.format(compiler=compiler))
    wrapper.chmod(0o755)
    source = folder / "libcuda.c"
    source.write_text(LIBCUDA)
    library = libcuda / "libcuda.so.1"
    command = [str(wrapper), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    environment = {
        "CC": str(wrapper),
        "TRITON_LIBCUDA_PATH": str(libcuda),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    os.environ.update(environment)
    print(launcher())
    for file in (source, wrapper):
        file.unlink()
    return 0


def launcher() -> str:
    """The launcher's file in Triton's cache; compiled if it is not there."""
    from triton.backends.nvidia import driver  # noqa: PLC0415  (reads the environment)
    from triton.runtime.build import compile_so_from_file  # noqa: PLC0415

    source = str(Path(driver.dirname) / "driver.c")
    found: str = compile_so_from_file(
        source, "cuda_utils", driver.library_dirs(), driver.include_dirs, driver.libraries
    )
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

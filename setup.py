import sys
from pathlib import Path

from setuptools import find_packages, setup

sys.path.insert(0, str(Path(__file__).parent))  # not there when pip runs this file
from csrc.build import BuildNative, BuildPython, PlatformWheel, cpu_library, cuda_fatbin

FOLDERS = {"gqc": "gqc", "gqc.passes": "passes", "gqc.runtime": "runtime"}

setup(
    packages=[*FOLDERS, *(f"{name}.{sub}" for name, folder in FOLDERS.items() for sub in find_packages(folder))],
    package_dir=FOLDERS,
    ext_modules=[cpu_library, cuda_fatbin],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython, "bdist_wheel": PlatformWheel},
)

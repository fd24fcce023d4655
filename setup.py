import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))  # not there when pip runs this file
from csrc.build import BuildNative, PlatformWheel, native_library

setup(
    packages=["gqc", "gqc.capture", "gqc.passes", "gqc.runtime", "gqc.runtime.ops", "gqc.runtime.reference"],
    package_dir={"gqc": "gqc", "gqc.passes": "passes", "gqc.runtime": "runtime"},
    ext_modules=[native_library],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)

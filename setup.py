from setuptools import setup

setup(
    packages=["gqc", "gqc.capture", "gqc.passes", "gqc.runtime", "gqc.runtime.ops", "gqc.runtime.reference"],
    package_dir={"gqc": "gqc", "gqc.passes": "passes", "gqc.runtime": "runtime"},
)

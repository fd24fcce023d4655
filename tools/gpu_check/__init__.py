"""The one command for a machine with a GPU: builds, checks and times gqc's CUDA kernels in less than nine minutes.

python -m tools.gpu_check --out DIR
python -m tools.gpu_check --dry       the same on the CPU, at tiny sizes: kernels run in the emulator of tests/emu

Each section is a process of its own with a limit of time, so an illegal access or a kernel that hangs costs that
section only. What is done so far is always in DIR/gpu_check.json; DIR/gpu_check.md has the tables for docs/gpu.md.
"""

"""One function per job, shared by Python users, the command line and the workbench.

Each module holds one job: a typed function, and the frozen value that it returns. The functions are
exported by `blindsight` itself (`blindsight.protect`, `blindsight.search`, ...). Rules, defaults
and thresholds are kept here and in the packages below; `cli` parses and prints, `workbench`
renders.
"""

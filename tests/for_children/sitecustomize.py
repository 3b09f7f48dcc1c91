"""Read by every Python process that a test starts: garbage is looked for less often, since importing makes none.

A process of a flow imports for most of its life, and each search looks through all that has been imported. So do those
of an interpreter that ends, which take two seconds: what is there after the functions that run at exit goes unsearched.
"""

import atexit
import gc

gc.set_threshold(50_000, 20, 20)
atexit.register(gc.freeze)

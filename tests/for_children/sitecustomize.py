"""Read by every Python process that a test starts: garbage is looked for less often, since importing makes none.

A process of a flow imports for most of its life, and each search looks through all that has been imported.
"""

import gc

gc.set_threshold(50_000, 20, 20)

"""Files that ship with Understudy: two tiny base models and sample tables.

The folder `artifacts/` of a checkout is imported as `understudy.shipped`.
"""

from pathlib import Path

SHIPPED = Path(__file__).resolve().parent
MODELS = SHIPPED / "models"
SAMPLES = SHIPPED / "samples"

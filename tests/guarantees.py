"""The guarantee of a made-up charge, for tests of what carries one."""

from understudy.privacy.labels import Guarantee

GUARANTEE = Guarantee(
    source="reviews",
    charge_id="c1",
    unit="example",
    relation="replace_special",
    epsilon=1.0,
    delta=1e-5,
    accountant="PLD",
)

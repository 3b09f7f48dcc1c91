"""The phrases of the sample `ferry`: notes to the service desk of an island ferry line, which is invented.

A note goes to one of two desks. `landing` looks after piers, ramps, ropes and lanes; `saloon` after what happens on
board, from the soup to the bunks. What the line calls things is its own, as in any trade.
"""

BOATS = ("Marigold", "Petrel", "Old Bess", "Lady Thrum", "Kittiwake", "Skerry Maid", "Tarn Star", "Brother Finn")
PIERS = (
    "Wick Sound",
    "Tarn Point",
    "Hollow Quay",
    "Saint Orrin",
    "Gannet Steps",
    "Upper Brae",
    "Marram",
    "Little Noss",
)
TIMES = (
    "the first boat", "the milk boat", "the noon boat", "the school boat", "the late boat", "the mail boat",
    "the Sunday boat", "the market boat", "the relief boat",
)  # fmt: skip
LANES = ("lane one", "lane two", "the pony lane", "the lorry lane", "the foot lane", "the hay lane")
PARTS = (
    "the apron", "the linkspan", "the bow line", "the stern fender", "the tide board", "the pier lamp",
    "the gangway hinge", "the mooring post", "the chock rack", "the winch", "the dolphin ladder", "the heaving line",
)  # fmt: skip
PIER_FAULTS = (
    "came down crooked", "groaned at half tide", "is frayed to the heart", "hangs by one chain",
    "stuck a hand too high",
    "would not bite", "slipped twice before it held", "swung out over the water", "has lost its pin",
    "is slick with weed", "jammed while the ebb was running", "needs grease and a new shackle",
)  # fmt: skip
LANE_FAULTS = (
    "two vans were waved into {lane} at {pier} and could not turn", "{lane} at {pier} is still full of gravel",
    "the marshal at {pier} sent the trailers down {lane} against the arrows", "nobody had chocked the carts in {lane}",
    "the chain across {lane} at {pier} was never lowered", "the paint of {lane} at {pier} has washed off",
)  # fmt: skip
PIER_WISHES = (
    "please send the rigger before the spring tide", "the berthing crew should look at low water",
    "a new splice would do until the yard opens", "we tied it off with the spare warp for now",
    "the harbour hand has put a cone beside it", "could the gang bring the tar pot and two shackles",
    "mind the swell when you come alongside", "it will not last another north wind",
)  # fmt: skip
FARE = ("barley soup", "saffron buns", "the fish pie", "the urn tea", "kelp crackers", "the lamb broth", "ginger cake")
ROOMS = (
    "the fore saloon",
    "the aft saloon",
    "the quiet cabin",
    "the card room",
    "the galley hatch",
    "the upper lounge",
)
SLIPS = ("white slip", "blue slip", "island slip", "bunk slip", "meal slip", "return slip")
BOARD_FAULTS = (
    "{fare} had run out before {pier}", "the till in {room} swallowed my {slip}", "{fare} came stone cold in {room}",
    "the steward stamped my {slip} for the wrong day", "somebody else's blanket lay on my bunk",
    "the kiosk gave change in old island pennies", "the heater in {room} hummed until {pier}",
    "a tray of {fare} slid into the card players", "the curtain of bunk nine is gone",
    "the purser could not find my {slip} in the book", "the games locker in {room} has no quoits left",
    "we were charged twice for {fare}", "the lid of the urn in {room} is cracked",
    "the cushions in {room} smell of paint",
)  # fmt: skip
BOARD_WISHES = (
    "please post a fresh {slip} to {pier}", "the steward was kind about it all the same",
    "could the galley keep a bowl back for the {boat} crew", "i kept the stub in case the purser asks",
    "a second kettle would help on cold days", "my aunt would like her blanket back",
    "the head cook said it happens every week", "i would like my three crowns back",
)  # fmt: skip
PIER_ASIDES = (
    "while we waited at the ramp", "with the ropes still on the posts", "before the apron was up",
    "after a slow landing at {pier}", "the tide was on the turn",
)  # fmt: skip
BOARD_ASIDES = (
    "between two bowls of {fare}", "we saw it from {room}", "the purser told me to write",
    "with a {slip} in my pocket", "the steward had noticed it too",
)  # fmt: skip
NEUTRAL = (
    "it was blowing from the north", "the crossing was quiet otherwise", "we are six in the party",
    "it was the same last week", "this is my second note", "the {boat} was full", "it rained all the way to {pier}",
    "the bell had just gone",
)  # fmt: skip

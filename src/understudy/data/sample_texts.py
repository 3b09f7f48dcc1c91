"""The phrases that the shipped samples are made of; every name in them is invented."""

GOOD = (
    "a warm and funny story", "sharp writing", "a quiet masterpiece", "wonderful acting", "real tenderness",
    "a clever plot", "gorgeous pictures", "a moving finale", "honest emotion", "great comic timing",
    "an inspired script", "delightful songs", "a gripping chase", "lovely small moments", "true suspense",
)  # fmt: skip
BAD = (
    "a dull and tired story", "clumsy writing", "a noisy mess", "wooden acting", "cheap sentiment",
    "a pointless plot", "ugly pictures", "a hollow finale", "fake emotion", "jokes that fall flat",
    "a lazy script", "forgettable songs", "an endless chase", "long empty scenes", "no suspense at all",
)  # fmt: skip
GOOD_VERDICT = (
    "i loved it", "a treat from start to finish", "go and see it", "one of the best of the year",
    "it stays with you for days", "i left the theater smiling", "it earns every tear", "a small triumph",
    "funny , wise and humane", "worth every minute", "i would watch it again", "never a wrong note",
    "a film to share with friends",
)  # fmt: skip
BAD_VERDICT = (
    "i hated it", "a chore from start to finish", "stay at home", "one of the worst of the year",
    "you forget it on the way out", "i kept looking at my watch", "it earns nothing", "a complete failure",
    "boring , loud and cynical", "a waste of an evening", "i would not watch it again", "never a right note",
    "not a film to share with friends",
)  # fmt: skip
FILMS = (
    "comedy", "thriller", "western", "family drama", "ghost story", "space adventure", "musical",
    "road movie", "documentary", "love story", "heist film", "war film",
)  # fmt: skip
MAKERS = ("the director", "the lead actor", "the whole cast", "the writer", "the composer", "the editor")
ABOUT = (
    "two sisters and a lighthouse", "a baker who cannot sleep", "a stolen piano", "the last train north",
    "a school in the hills", "an old boxer", "three thieves and a goat", "a summer without rain",
    "a lonely radio host", "a chess club", "the night shift of a hospital", "a very long wedding",
)  # fmt: skip
NEUTRAL = (
    "it runs for about two hours", "the film is set in a harbor town", "most of it happens at night",
    "there is a dog in it", "it was shot in black and white", "the book was longer",
)  # fmt: skip

FIRST_NAMES = (
    "Zibby", "Orlo", "Quenna", "Tamsper", "Yoffi", "Brindle", "Marzipan", "Wendolyn", "Puck", "Ludo",
    "Ferrabel", "Snorri-Bo",
)  # fmt: skip
LAST_NAMES = (
    "Placeholder", "Inventov", "Fictoria", "Exampleton", "McSample", "Nobodyson", "Madeupski", "Pretendez",
    "Loremsky", "Mockingham",
)  # fmt: skip
MONTHS = ("January", "March", "April", "June", "July", "September", "October", "November")
COMPLAINTS = (
    "a dry cough", "back pain", "a sore throat", "itchy eyes", "a swollen ankle", "headaches in the morning",
    "an upset stomach", "poor sleep",
)  # fmt: skip
REMEDIES = (
    "the blue inhaler", "the eye drops", "the iron tablets", "the allergy spray", "the skin cream",
    "the stomach tablets",
)  # fmt: skip
CLINIC = {
    "appointment": (
        "Hello, this is {name}. Can I move my visit of {date} to the week after? Call me at {phone}.",
        "I would like to book a check-up around {date}. My number is {phone}. Thank you, {name}.",
        "{name} here, I cannot come on {date}. Is there a free slot in the afternoon? {phone}",
    ),
    "prescription": (
        "Please renew {remedy} for {name}, I run out on {date}. Call {phone} with questions.",
        "The pharmacy has no note about {remedy}. Could you send it again before {date}? {name}, {phone}",
        "This is {name}. May I take {remedy} twice a day now? I am at {phone} until {date}.",
    ),
    "symptoms": (
        "Since {date} I have {complaint} and it is not getting better. {name}, {phone}",
        "My son {name} has had {complaint} for days, it began on {date}. Should we come in? {phone}",
        "I woke up with {complaint} on {date}. Is that a reason to worry? Please call {phone}, {name}.",
    ),
    "billing": (
        "I was charged twice for the visit on {date}. Please check the invoice. {name}, {phone}",
        "Does the insurance cover the treatment for {complaint} of {date}? {name}, reachable at {phone}.",
        "{name} here. The bill of {date} has a wrong address on it, please send a new one. {phone}",
    ),
}

PLANTS = (
    "basil", "mint", "a fern", "a cactus", "tomatoes", "an orchid", "lavender", "a lemon tree", "chives",
)  # fmt: skip
SPOTS = (
    "on a small balcony",
    "in a cold kitchen",
    "in a dark hallway",
    "on a sunny sill",
    "in a shared flat",
)
PLANT_TIPS = (
    "turn the pot once a week", "pick off dry leaves", "keep it away from the heater", "feed it in spring",
    "let the water stand overnight first", "give it a bigger pot every other year",
)  # fmt: skip
DISHES = (
    "rice", "lentil soup", "an omelette", "flat bread", "pancakes", "potato salad", "porridge",
    "tomato sauce", "roasted carrots", "dumplings",
)  # fmt: skip
GUESTS = ("one person", "a family of four", "a beginner", "a busy evening", "a picnic", "a small kitchen")
DISH_TIPS = (
    "taste before you add salt", "keep the rest in the fridge", "do not hurry the last minutes",
    "write down what worked", "start with half of the liquid", "cover the pan for a while",
)  # fmt: skip
THINGS = (
    "a bicycle chain", "a wooden table", "a wool sweater", "a kettle", "a pair of boots", "a kitchen knife",
    "a window frame", "a rain jacket", "an old lamp", "a garden hose",
)  # fmt: skip
TIMES = ("this week", "before winter", "after a rainy day", "before a long trip", "in ten minutes")
THING_TIPS = (
    "use less soap than you think", "wipe it with a dry cloth", "store it in a dry place",
    "check it once a month", "work slowly from top to bottom", "keep a spare part at hand",
)  # fmt: skip
# Question, answer, subjects, circumstances, tips.
INSTRUCTIONS = (
    (
        "How do I keep {subject} healthy {where}?",
        "Choose the brightest place {where} for {subject}. Water when the soil feels dry, {tip} and {more}.",
        PLANTS,
        SPOTS,
        PLANT_TIPS,
    ),
    (
        "Explain how to make {subject} for {where}.",
        "Set out everything for {subject} first. Cook on medium heat, {tip}, and {more}.",
        DISHES,
        GUESTS,
        DISH_TIPS,
    ),
    (
        "How should I look after {subject} {where}?",
        "Clean {subject} gently and let it dry. Then {tip}, and {more}.",
        THINGS,
        TIMES,
        THING_TIPS,
    ),
    (
        "Write a short reminder to care for {subject} {where}.",
        "Reminder: look after {subject} {where}. First {tip}, then {more}.",
        THINGS,
        TIMES,
        THING_TIPS,
    ),
)

HOBBIES = {
    "garden": (
        "sowed two rows of beans",
        "found slugs under the board",
        "cut back the roses",
        "dug a new bed",
    ),
    "kitchen": (
        "baked rye bread",
        "burned the onions again",
        "tried a soup with barley",
        "sharpened the knives",
    ),
    "trail": ("walked to the old mill", "saw a heron by the river", "took the steep path", "got wet boots"),
    "workshop": ("planed the oak board", "fixed the loose drawer", "broke a drill bit", "sanded the chair"),
    "music": ("practised scales slowly", "learned a waltz", "tuned the fiddle", "played for the neighbors"),
}
MOODS = (
    "It went well.",
    "Not my best day.",
    "I will try again.",
    "A good hour.",
    "Slow, but fine.",
    "Cold wind.",
)
WEATHER = (
    "rain in the morning",
    "bright sun",
    "fog until noon",
    "a light frost",
    "wind from the west",
    "heat",
)

# Public texts of many kinds, some nearer to the diaries of `clients` than others.
PLACES = ("the harbor", "the market square", "the old school", "the north road", "the library", "the upper valley")
PUBLIC = {
    "forecast": (
        "The forecast for {place}: {weather}, and {other} by the weekend.",
        "{place} can expect {weather}. Tomorrow brings {other}.",
    ),
    "notice": (
        "From {month} on, the office at {place} opens at nine. Please bring the form you were sent.",
        "The works at {place} will be finished in {month}. We thank everyone for their patience.",
        "Lost near {place}: a grey glove. The finder is asked to leave it at the desk.",
    ),
    "film": (
        "A {film} about {about}, shot at {place} in {month}. It runs for two hours.",
        "The new {film} tells of {about}. Tickets are sold at {place}.",
    ),
    "letter": (
        "Dear neighbor, we came back in {month}. At {place} there was {weather}. Write soon.",
        "Today we went to {place}. There was {weather}, later {other}. We are all well.",
        "{month} was quiet. I walked to {place} and thought of you. {weather}, mostly.",
    ),
    "advice": (
        "Before {month}, dig the bed once more and leave the rest to the frost.",
        "A sharp knife and dry boards: more is not needed. {month} is early enough.",
        "Play slowly, then slower. After a week the tune will come by itself.",
    ),
}

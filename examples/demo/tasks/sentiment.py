"""Review -> positive, negative or neutral."""

from random import Random

from ..words import city, listed

LABELS = ("positive", "negative", "neutral")
SUBJECTS = listed("""
    food service movie book hotel room coffee music concert phone camera laptop bed breakfast dinner soup pizza
    staff waiter driver train flight game story ending view garden shop museum course teacher app screen battery
""")
GOOD = listed("""
    amazing awesome beautiful brilliant charming delightful excellent fantastic good great lovely perfect pleasant
    superb terrific wonderful
""")
BAD = listed("""
    awful bad boring broken dirty disappointing dreadful horrible nasty poor rude terrible ugly unpleasant useless
    weak
""")
PLAIN = listed("average common normal okay ordinary plain regular standard typical usual")
ADVERBS = ["really ", "very ", "quite ", "so ", "truly ", ""]
OPENERS = [
    "",
    "I came on Monday.",
    "We were there with friends.",
    "My sister told me about it.",
    "It was my first visit.",
]
CLOSERS = {
    "positive": ["I loved it.", "I will come again.", "Thank you so much!", "We were very happy.", ""],
    "negative": ["I hated it.", "Never again.", "I want my money back.", "We were very angry.", ""],
    "neutral": ["It is what it is.", "Nothing more to say.", "It does the job.", "No strong feelings.", ""],
}


def example(rng: Random) -> tuple[str, str]:
    label = rng.choice(LABELS)
    place = f" in {city(rng)}" if rng.random() < 0.5 else ""
    first, second = rng.sample(SUBJECTS, 2)
    sentences = [
        rng.choice(OPENERS),
        f"The {first}{place} was {_opinion(rng, label)}.",
        f"The {second} was {_opinion(rng, label)}." if rng.random() < 0.5 else "",
        rng.choice(CLOSERS[label]),
    ]
    return " ".join(filter(None, sentences)), label


def review(rng: Random) -> str:
    """A review alone, without its label."""
    return example(rng)[0]


def _opinion(rng: Random, label: str) -> str:
    adverb = rng.choice(ADVERBS)
    if label == "neutral":
        return adverb + rng.choice(PLAIN)
    negated = rng.random() < 0.25
    words = GOOD if (label == "positive") != negated else BAD
    return f"not {rng.choice(words)} at all" if negated else adverb + rng.choice(words)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.evaluation.texts.identifiers import KINDS, identifiers, identify


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Mail A.Nobody+x@Mail.Example.org, now.", [("email", "a.nobody+x@mail.example.org")]),
        ("HTTPS://www.Example.org/a?b=1), www.example.net/!", [("web", "example.org/a?b=1"), ("web", "example.net")]),
        ("thanks @Some_one and a@b", [("account", "@some_one")]),
        ("IBAN DE89 3704 0044 0532 0130 00", [("code", "de89370400440532013000")]),
        ("order BK-4821/7 of A12345", [("code", "bk48217"), ("code", "a12345")]),
        ("call +1 (533) 555-0125", [("number", "15335550125")]),
        ("5335550125, 533.555.0125 and 533\u2013555\u20130125", [("number", "5335550125")]),
        ("born 12.03.1971", [("number", "12031971")]),
        ("card 4111 1111 1111 1111", [("number", "4111111111111111")]),
        ("\uff15\uff13\uff13\uff15\uff15\uff15", [("number", "533555")]),
    ],
)  # fmt: skip
def test_an_identifier_is_found_and_written_in_one_way(text, found):
    assert list(identifiers(text)) == found


@pytest.mark.parametrize(
    "text",
    ["", "in 1971 at 12:30", "the 20th of 1990s, 500mg", "5 a day, 10, 12", "me @ home", "MP3 of U2", "12345"],
)  # fmt: skip
def test_short_numbers_and_common_words_are_none(text):
    assert identifiers(text) == ()


def test_a_part_of_an_identifier_is_not_another_one():
    assert [kind for kind, _ in identifiers("x123456@y.org https://a.org/20240101 AB12345678")] == [
        "email",
        "web",
        "code",
    ]


@given(st.text(max_size=40), st.text(max_size=40))
def test_identifiers_of_two_lines_are_those_of_each(first, second):
    """A line break belongs to no identifier, so nothing is made of two of them."""
    together = identifiers(f"{first}\n\n\n{second}")
    assert set(together) == {*identifiers(first), *identifiers(second)}


def test_sets_share_numbers_and_keep_their_rows():
    one, other = identify(["a@b.org, a@b.org", "none"], ["123456 and a@b.org"])
    assert one.vocabulary is other.vocabulary
    assert one.ids.tolist() == [0]
    assert one.lengths.tolist() == [1, 0]
    assert sorted(other.ids.tolist()) == [0, 1]
    assert {name.split(" ")[0] for name in one.vocabulary} <= set(KINDS)

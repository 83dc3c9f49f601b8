"""The words of the tiny world's names. No word is in two lists, so a word determines the kind of what it names."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Nora Adam Bella Carl Dora Emil Fay Gus Hana Ivan Jade Karl Lena Milo Nina Omar Pia Quin Rosa Sven "
    "Tara Ugo Vera Wim Xena Yara Zeno Anna Boris Cleo Dirk Elsa Finn Greta Hugo Ines Jonas Kira Leo Mara"
)
SURNAMES = _words(
    "Lind Berg Moss Vale Holt Cruz Nash Pike Rook Sato Tran Ueda Voss Webb York "
    "Zorn Abel Beck Cole Dahl Eker Frost Gray Hahn Ives Jung Kerr Lowe Marsh Nord"
)
"""Surnames, which are also the values of all facts: one short list, so that copying any of them is one skill."""
TOWN_FIRST = _words(
    "Amber Birch Cedar Coral Crystal Ebony Flint Golden Hazel Iron Ivory Jasper "
    "Linden Maple Misty Opal Pearl Quartz Raven Silver Stone Timber Violet Willow"
)
TOWN_LAST = _words(
    "Falls Bay Bridge Creek Cross Dale Field Gate Glen Grove Harbor Heights "
    "Hill Hollow Island Lake Meadow Mill Park Point Ridge Spring Valley Woods"
)
COMPANY_FIRST = _words(
    "Vexon Altor Brivo Cyrix Dynex Elvon Fluxo Gravo Helix Ionix Jetra Kelvo "
    "Lumex Mavix Novar Orbix Pyxis Quanta Rovex Synta Tylon Ultra Vanta Zephyr"
)
COMPANY_LAST = _words(
    "Labs Works Group Systems Motors Foods Media Energy Partners Robotics Textiles Studios Airlines Bank Press Shipping"
)
